"""Short names of data sets, the names of the built-in corpus, and the formats of files that are read.  Floor: plan; imports nothing of lmplay."""
from __future__ import annotations

import re
from typing import Any, NamedTuple


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
                      {"path": "Salesforce/wikitext", "config": "wikitext-103-raw-v1", "streaming": False}),
    "wikitext2": Entry("a small part of wikitext, 2 million words", {"path": "Salesforce/wikitext", "config": "wikitext-2-raw-v1", "streaming": False}),
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

BUILTINS = ("builtin:tales", "builtin:tales/1", "builtin:tales/2", "builtin:tales/3", "builtin:tales/4")
_BUILTIN = re.compile(r"builtin:tales(/[1-4])?(\?seed=[0-9]+)?")


def expand(source: dict[str, Any]) -> dict[str, Any]:
    """Replace a short name by what it stands for.

    :param source: the keys of a source; `path` may be a short name.
    :return: the keys of the catalog overlaid by the source's own (a key that holds None counts as not given); unchanged for any other path.
    """
    entry = CATALOG.get(source["path"]) if isinstance(source.get("path"), str) else None
    if entry is None:
        return source
    own = {key: value for key, value in source.items() if key != "path" and value is not None}
    return {**entry.source, **own}


def is_builtin(path: str) -> bool:
    """Tell whether a path names the built-in corpus (`builtin:tales/2?seed=7`); such a source is written on the fly and never ends."""
    return _BUILTIN.fullmatch(path) is not None
