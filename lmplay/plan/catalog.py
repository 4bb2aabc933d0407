"""Short names of data sets, kinds of sources, and the formats of files that are read."""
from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ..errors import UserError, nearest
from ..plugins import Plugin, with_offered


class Entry(NamedTuple):
    """A data set known by a short name: one line about it, and the source keys that the name stands for."""

    description: str
    source: dict[str, Any]


# Only sets that current versions of `datasets` read without a script of their own.
CATALOG: dict[str, Entry] = {
    "wikipedia": Entry("English Wikipedia, 6.4 million articles", {"path": "wikimedia/wikipedia", "config": "20231101.en"}),
    "wikipedia_es": Entry("Spanish Wikipedia, 1.8 million articles", {"path": "wikimedia/wikipedia", "config": "20231101.es"}),
    "wikipedia_simple": Entry("Wikipedia in simple English, 0.2 million articles", {"path": "wikimedia/wikipedia", "config": "20231101.simple"}),
    "wikitext": Entry("good and featured English Wikipedia articles, 103 million words",
                      {"path": "Salesforce/wikitext", "config": "wikitext-103-raw-v1", "streaming": False, "rows": "articles"}),
    "wikitext2": Entry("a small part of wikitext, 2 million words",
                       {"path": "Salesforce/wikitext", "config": "wikitext-2-raw-v1", "streaming": False, "rows": "articles"}),
    "tinystories": Entry("2 million short stories in the words of a small child", {"path": "roneneldan/TinyStories"}),
    "fineweb": Entry("filtered web pages, a sample of 10 billion tokens", {"path": "HuggingFaceFW/fineweb", "config": "sample-10BT"}),
    "fineweb_edu": Entry("educational web pages, a sample of 10 billion tokens", {"path": "HuggingFaceFW/fineweb-edu", "config": "sample-10BT"}),
    "c4": Entry("cleaned English web pages, 365 million", {"path": "allenai/c4", "config": "en"}),
}

# What is read of local files, by the end of a file's name; "text" has no columns, all others are tables.
FORMATS = {".txt": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv",
           ".parquet": "parquet", ".arrow": "arrow"}
PACKED_SUFFIXES = (".gz", ".zst")
DATA_SUFFIXES = (*FORMATS, *PACKED_SUFFIXES)

BUILTINS = ("builtin:tales", "builtin:tales/1", "builtin:tales/2", "builtin:tales/3", "builtin:tales/4",
            "builtin:questions", "builtin:preferences", "builtin:sums")


@dataclass(frozen=True)
class SourceKind(Plugin):
    """Sources whose paths begin with `NAME:`; another package offers a kind by an entry point of the group ``lmplay.sources``.

    `target` is what opens them, see :class:`lmplay.data.sources.Opener`. A kind with a `pattern` has the paths that match it, which `allowed` says in words;
    of others only the target knows them. `without` are the keys that such a source may not have. An `endless` one has no epochs.
    """

    kind: ClassVar[str] = "source"
    chosen_by: ClassVar[str] = "dataset"
    method: ClassVar[str] = "open"
    pattern: str = ""
    allowed: str = ""
    without: tuple[str, ...] = ()
    endless: bool = False

    def locate(self, path: str, folder: Path) -> str:
        """Check a path as the user wrote it, with this kind's prefix, and return it as it is stored.

        :param folder: that of the plan, for relative paths.
        :raises UserError: when there is no such source, or its kind cannot be imported.
        """
        if not self.pattern:
            locate = getattr(self.load(), "locate", None)
            return path if locate is None else str(locate(path, folder))
        if not re.fullmatch(self.pattern, path):
            near = nearest(path.partition("?")[0], self.allowed.split(", "))
            raise UserError(f'found "{path}", allowed: {self.allowed}.{near}')
        return path


BUILTIN_KIND = SourceKind("builtin", "the built-in corpus", "lmplay.data.sources.builtin:BUILTIN",
                          r"builtin:(tales(/(?P<level>[1-4]))?|(?P<rows>questions|preferences|sums))(\?seed=(?P<seed>[0-9]+))?",
                          f"{', '.join(BUILTINS)}, with ?seed=NUMBER behind it or not",
                          without=("config", "split", "revision", "streaming"), endless=True)
_STORES = {"s3": "S3 and what speaks like it", "gs": "Google Cloud Storage", "hf": "repositories of the hub", "https": "a web server", "http": "a web server"}
KINDS = (BUILTIN_KIND, *(SourceKind(name, f"files of {what}", "lmplay.data.sources.stored:STORED", rf"{name}://[^/]+/.*[^/].*", f"{name}://PLACE/PATH",
                                    without=("config", "revision")) for name, what in _STORES.items()))


def expand(source: dict[str, Any]) -> dict[str, Any]:
    """Replace a short name in the keys of a source by the keys of the catalog; the source's own win (None counts as not given). Other paths stay."""
    entry = CATALOG.get(source["path"]) if isinstance(source.get("path"), str) else None
    if entry is None:
        return source
    own = {key: value for key, value in source.items() if key != "path" and value is not None}
    return {**entry.source, **own}


@cache
def source_kinds() -> dict[str, SourceKind]:
    """List the kinds of sources that have a prefix, by it: the built-in ones, then those of installed packages."""
    return with_offered(SourceKind, KINDS)


def kind_of(path: str) -> SourceKind | None:
    """Find the kind of source whose prefix a path has; None for a file, or a data set of the hub, which have no prefix."""
    name, colon, _ = path.partition(":")
    return (next((kind for kind in KINDS if kind.name == name), None) or source_kinds().get(name)) if colon else None


def is_endless(path: str) -> bool:
    """Tell whether a path names a source that never ends (`builtin:tales/2?seed=7`)."""
    kind = kind_of(path)
    return kind is not None and kind.endless and re.fullmatch(kind.pattern, path) is not None


def nearest_source(path: str) -> str:
    """Say which prefix or short name a misspelt path may have meant, as :func:`lmplay.errors.nearest` does."""
    name, colon, _ = path.partition(":")
    return nearest(name + colon, [f"{kind}:" for kind in source_kinds()] if colon else CATALOG)
