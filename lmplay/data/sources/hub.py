"""Data sets of the hub as sources: streamed, kept on this disk, or saved earlier; and the messages when one cannot be opened.  Data floor, no torch at top."""
from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from ...errors import LmplayError, Unavailable, UserError, nearest
from ...hub import Patience, first_line, hub_endpoint, hub_problem, outage_of, shared_cache
from ..roles import needed_columns
from .base import AnySource, SourceSpec, StreamedSource
from .library import (
    DatasetSource,
    DatasetStreamedSource,
    check_splits,
    disk_is_full,
    load_saved,
    own_validation,
    quiet_library,
    saved_fingerprint,
    split_names,
)
from .local import open_selection
from .registry import Opener
from .remote import RemoteFile, remote_file, sizes
from .selection import Selection
from .shards import ShardedSource, parquet_schema

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder

# The files in a saved data set that the library does not read: the rows of a split as JSON lines.
LINES = "{}.jsonl"
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
Answer = TypeVar("Answer")


def open_hub(spec: SourceSpec, split: str, folder: Path) -> AnySource | None:
    """Open a data set of the hub, or what `--save-datasets` saved of it, which needs no network.

    :param spec: the source asked for.
    :param split: "train" or "validation".
    :param folder: the data sets folder.
    :return: the source; None where "validation" is asked for and it has no such split.
    :raises UserError: when it cannot be had; says why.
    :raises Unavailable: when the hub does not answer.
    """
    saved = saved_folder(spec, folder)
    if (saved / LINES.format("train")).is_file():
        name = LINES.format(split)
        return open_selection(Selection(_title(spec, split), saved, [name]), folder, spec) if (saved / name).is_file() else None
    if saved.is_dir():
        part = load_saved(saved).get(split)
        return None if part is None else DatasetSource(_title(spec, split), part, {**_asked(spec, split), **saved_fingerprint(part)})
    if _is_streamed(spec):
        return _open_stream(spec, split, folder)
    dataset, commit = prepared(spec, split, folder)
    return None if dataset is None else DatasetSource(_title(spec, split), dataset, {"kind": "hub", **_asked(spec, split), "commit": commit})


def saved_folder(spec: SourceSpec, folder: Path) -> Path:
    """Say where a data set of the hub is saved: one folder for each config, revision and training split.

    :param spec: the source.
    :param folder: the data sets folder.
    :return: the folder, whether or not it exists.
    """
    parts = [spec.path.replace("/", "--"), spec.config, f"@{spec.revision}" if spec.revision else None, spec.split if spec.split != "train" else None]
    return folder / "saved" / "--".join(quote(part, safe="@") for part in parts if part)


def prepared(spec: SourceSpec, split: str, folder: Path) -> tuple[Dataset | None, str]:
    """Download a data set, unless that has been done, and map it into memory.

    :param spec: the source.
    :param split: "train" or "validation".
    :param folder: the data sets folder.
    :return: the data set, None where "validation" is asked for and there is none; and the commit that it is of.
    :raises UserError: when it cannot be had.
    :raises Unavailable: when the hub does not answer.
    """
    builder = _builder(spec.path, spec.config, spec.revision, folder, cache=True)

    def prepare() -> Dataset | None:
        if not Path(builder.cache_dir).is_relative_to(shared_cache("datasets")):  # else another program has made it
            builder.download_and_prepare()
        chosen = _choose(spec, list(builder.info.splits or ()), split)
        return builder.as_dataset(split=chosen) if chosen else None

    files = _files_of(spec, builder)
    return _ask(spec.path, folder, prepare, hub_cache=shared_cache("hub") if files and all(file.is_cached for file in files) else None), str(builder.hash)


@dataclass(frozen=True)
class Download:
    """A file of a data set that has to be on this disk before its rows can be; `size` is in bytes."""

    repo: str
    revision: str
    path: str
    size: int


def downloads(spec: SourceSpec, folder: Path) -> tuple[list[Download], int]:
    """List what saving a data set downloads; nothing where the hub is away and the cache has to do.

    :param spec: the source.
    :param folder: the data sets folder.
    :return: the files that the hub has, and the bytes that the rows will take: what the description states, at least as many as the files.
    :raises UserError: when it cannot be had.
    :raises Unavailable: when the hub does not answer.
    """
    builder = _builder(spec.path, spec.config, spec.revision, folder, cache=True)
    found = _files_of(spec, builder)
    files = [Download(*address, size) for address, size in _ask(spec.path, folder, lambda: sizes(list(dict.fromkeys(file.address for file in found)))).items()]
    return files, max(builder.info.dataset_size or 0, sum(file.size for file in files))


def download(spec: SourceSpec, file: Download, folder: Path) -> None:
    """Download a file to where the library looks for it, unless it is there.

    :param spec: the source.
    :param file: one of its files.
    :param folder: the data sets folder.
    :raises UserError: when it cannot be had, or there is no space.
    :raises Unavailable: when the hub does not answer.
    """
    import huggingface_hub

    _ask(spec.path, folder, lambda: huggingface_hub.hf_hub_download(file.repo, file.path, repo_type="dataset", revision=file.revision,
                                                                    cache_dir=folder / "hub", endpoint=hub_endpoint()))


def _files_of(spec: SourceSpec, builder: DatasetBuilder) -> list[RemoteFile]:
    """List the files of all splits of a data set that are on the hub."""
    return [file for urls in _urls(builder).values() for url in urls if (file := remote_file(spec.path, url))]


def _open_stream(spec: SourceSpec, split: str, folder: Path) -> StreamedSource | None:
    """Open a data set without downloading it: by our own reader where it knows the format, else by the library's."""
    builder = _builder(spec.path, spec.config, spec.revision, folder, cache=False)
    title, asked = _title(spec, split), {**_asked(spec, split), "commit": str(builder.hash)}
    urls = _urls(builder)
    form = _own_form(builder)
    if form:
        chosen = _choose(spec, list(urls), split)
        if chosen is None:
            return None
        files = _remote_files(title, [url for name in split_names(chosen) for url in urls[name]])
        if files is not None:
            source = _open_shards(title, form, files, _stated_rows(builder, chosen), {"kind": f"stream of {form}", **asked}, spec.columns)
            if source is not None:
                return source

    def open_parts() -> tuple[str | None, Any]:
        parts = builder.as_streaming_dataset()
        chosen = _choose(spec, list(parts), split)
        return chosen, None if chosen is None else parts[chosen] if chosen in parts else builder.as_streaming_dataset(split=chosen)

    chosen, dataset = _ask(spec.path, folder, open_parts)
    return None if chosen is None else DatasetStreamedSource(title, dataset, _stated_rows(builder, chosen), {"kind": "stream", **asked})


def downloaded_lines(spec: SourceSpec, split: str, folder: Path) -> ShardedSource | None:
    """Open JSON lines that have been downloaded with our own reader, which goes on after a line that the library does not read.

    :param spec: the source.
    :param split: "train" or "validation".
    :param folder: the data sets folder.
    :return: the source; None where there is no such split, or it is not what our own reader streams.
    :raises UserError: when it has not the split that is asked for.
    """
    builder = _builder(spec.path, spec.config, spec.revision, folder, cache=True)
    urls = _urls(builder)
    chosen = _choose(spec, list(urls), split) if _own_form(builder) == "lines" and "[" not in (spec.split or "") else None
    files = _remote_files(_title(spec, split), [url for name in split_names(chosen) for url in urls[name]], folder / "hub") if chosen else None
    return _open_shards(_title(spec, split), "lines", files, None, {}, None) if files else None


def _urls(builder: DatasetBuilder) -> dict[str, list[str]]:
    """List the addresses of the files of each split."""
    return {str(name): list(map(str, found)) for name, found in (builder.config.data_files or {}).items()}


def _remote_files(title: str, urls: list[str], downloads: Path | None = None) -> list[RemoteFile] | None:
    """Make the files that addresses mean; None where one of them is not on the hub."""
    files = [file for url in urls if (file := remote_file(title, url, downloads))]
    return files if len(files) == len(urls) else None


def _own_form(builder: DatasetBuilder) -> str | None:
    """Tell how our own reader would read a data set; None where the library has to: another format, or values that it decodes."""
    form = next((own for kind in type(builder).__mro__ if (own := {"Parquet": "parquet", "Json": "lines"}.get(kind.__name__))), None)
    asked = [getattr(builder.config, name, None) for name in ("columns", "filters", "field", "encoding", "encoding_errors")]
    plain = builder.info.features is None or _is_plain(dict(builder.info.features))
    return form if plain and all(value in (None, "utf-8") for value in asked) else None


def _open_shards(title: str, form: str, files: list[RemoteFile], n_rows: int | None, fingerprint: dict[str, Any],
                 roles: dict[str, str] | None) -> ShardedSource | None:
    """Open files with our own reader, for the roles that the plan gives to their columns; None where they are not what it reads."""
    if form == "parquet":
        import datasets

        features = datasets.Features.from_arrow_schema(parquet_schema(files[0]))
        choose = partial(needed_columns, roles=roles)
        return ShardedSource(title, form, files, n_rows, fingerprint, choose) if _is_plain(dict(features)) else None
    try:
        return ShardedSource(title, form, files, n_rows, fingerprint)
    except UserError:
        return None  # JSON, but not in lines


def _is_plain(feature: Any) -> bool:
    """Tell whether the library gives values of a feature as they are stored."""
    if isinstance(feature, dict):
        return all(map(_is_plain, feature.values()))
    if isinstance(feature, (list, tuple)):
        return all(map(_is_plain, feature))
    inner = getattr(feature, "feature", None)
    # A Sequence of several fields is stored as a list of them, and given as a dict of lists.
    if type(feature).__name__ in ("Sequence", "List", "LargeList"):
        return not (type(feature).__name__ == "Sequence" and isinstance(inner, dict)) and _is_plain(inner)
    return type(feature).__name__ in ("Value", "ClassLabel")


def _stated_rows(builder: DatasetBuilder, split: str) -> int | None:
    """Give the number of rows that the data set's description states."""
    counts = [info.num_examples for name, info in (builder.info.splits or {}).items() if name in split_names(split)]
    return sum(counts) if len(counts) == len(split_names(split)) and all(counts) else None  # 0 stands for a number that nobody stated


def _choose(spec: SourceSpec, splits: list[str], split: str) -> str | None:
    """Choose the split to read; None where there are no validation rows."""
    train = spec.split or "train"
    check_splits(spec.path, splits, split_names(train))
    return train if split == "train" else own_validation(splits, train)


def _is_streamed(spec: SourceSpec) -> bool:
    """Tell whether a data set is streamed: unless it is refused, or a slice is asked for, which needs the rows' numbers."""
    sliced = "[" in (spec.split or "")
    if sliced and spec.streaming:
        raise UserError(f"source {spec.path}: split '{spec.split}' is a slice, which cannot be streamed; write \"streaming\": false, or name a whole split.")
    return not sliced if spec.streaming is None else spec.streaming


def _title(spec: SourceSpec, split: str) -> str:
    """Make the short name: path, config where there is one, split where it isn't the usual one."""
    part = split if split != "train" else spec.split if spec.split != "train" else None
    return " ".join(filter(None, [spec.path, spec.config, part]))


def _asked(spec: SourceSpec, split: str) -> dict[str, Any]:
    """Give the part of the fingerprint that the plan states."""
    return {"path": spec.path, "config": spec.config, "split": spec.split or "train" if split == "train" else split, "revision": spec.revision}


@lru_cache(maxsize=16)  # training and validation rows come from one commit, and the hub is asked once
def _builder(path: str, config: str | None, revision: str | None, folder: Path, cache: bool) -> DatasetBuilder:
    """Ask the hub what a data set consists of; where it cannot be reached and `cache` allows it, ask the cache."""
    if not _NAME.fullmatch(path):
        raise UserError(f"source {path}: neither a file or folder that exists nor the name of a data set on the hub (owner/name).")
    away = hub_problem()
    if away and not cache:
        raise _hub_away(path, away)

    own, shared = folder / "hub", shared_cache("datasets")

    def load(place: Path = own) -> DatasetBuilder:
        import datasets

        try:
            builder = datasets.load_dataset_builder(_full_name(path, away), config, revision=revision, cache_dir=str(place))
        except Exception:
            if away and place == own and shared.is_dir():
                return load(shared)
            raise
        if not builder.repo_id:  # "json" and the like: it would read whatever lies in the working folder
            raise UserError(f"source {path}: is a loader of the datasets library, not a data set; give the path of the files.")
        made = Path(builder.cache_dir)
        elsewhere = cache and place == own and not made.is_dir() and made.is_relative_to(own) and (shared / made.relative_to(own)).is_dir()
        return load(shared) if elsewhere else builder

    return _ask(path, folder, load, away)


def _full_name(path: str, away: str | None) -> str:
    """Ask the hub who owns a data set whose name is given without an owner."""
    if "/" in path or away:
        return path
    from huggingface_hub import HfApi

    return str(HfApi(endpoint=hub_endpoint()).dataset_info(path).id)


def _ask(path: str, folder: Path, act: Callable[[], Answer], away: str | None = None, hub_cache: Path | None = None) -> Answer:
    """Do something with the library, again where the hub does not answer; what else goes wrong becomes one clear line.

    :param path: the data set.
    :param folder: the data sets folder.
    :param act: what to do.
    :param away: why the hub cannot be reached, if so: the cache has to do.
    :param hub_cache: see :func:`quiet_library`.
    :return: what it gave.
    :raises UserError: when it cannot be done.
    :raises Unavailable: when the hub does not answer.
    """
    patience = Patience(f"source {path}")
    while True:
        try:
            with quiet_library(folder, offline=away is not None, hub_cache=hub_cache):
                return act()
        except LmplayError:
            raise
        except Exception as error:
            if away:
                raise _hub_away(path, away) from None
            outage = outage_of(error)
            if outage is None:
                raise UserError(explain(path, error)) from None
            patience.wait(outage)


def explain(path: str, error: Exception) -> str:
    """Say in one line, with what to do, why the library could not open a data set.

    :param path: its name.
    :param error: what the library raised.
    :return: the line.
    """
    text, kind, start = str(error), type(error).__name__, f"source {path}: "
    if disk_is_full(error):
        return f"{start}there is no space on the disk ({first_line(error)}); free some, or choose another --out-dir. What has been downloaded is kept."
    configs = re.search(r"[Aa]vailable(?: configs)?: (\[.*?\])", text)
    if configs:
        return f"{start}needs one of its configs in 'config': {configs[1].strip('[]').replace(chr(39), '')}."
    if "scripts are no longer supported" in text:
        return f"{start}needs a loading script, which the datasets library no longer runs; look for a copy of it in Parquet on {hub_endpoint()}/datasets."
    if "is a gated dataset" in text:
        return f"{start}is gated; accept its terms on {hub_endpoint()}/datasets/{path}, then log in with 'hf auth login' or set HF_TOKEN."
    if text.startswith("Revision"):
        return f"{start}{first_line(error)}; leave 'revision' out for the newest."
    if kind in ("DatasetNotFoundError", "RepositoryNotFoundError"):
        return f"{start}there is no such data set on {hub_endpoint()} (or it is private), and no such file or folder here; check the name."
    if kind in ("DataFilesNotFoundError", "EmptyDatasetError"):
        return f"{start}holds no files that the datasets library reads; choose another data set."
    cause = error.__cause__ or error
    return f"{start}cannot be opened ({type(cause).__name__}: {first_line(cause)}); check its page on {hub_endpoint()}/datasets/{path}."


def _hub_away(path: str, reason: str) -> LmplayError:
    """Make the error for a hub that cannot be reached: it may come back, unless it was told to stay away, or a folder here is meant."""
    near = "" if "/" in path else nearest(path, sorted(name for name in os.listdir() if os.path.isdir(name)))
    line = (f"source {path}: no file or folder of that name is in {os.getcwd()}, and the hub cannot be reached for it ({reason}).{near} Check the network, "
            "or use local files with --dataset PATH, or '--training-plan quickstart', which needs no network.")
    return UserError(line) if near or reason.startswith("HF_HUB_OFFLINE") else Unavailable(line)


HUB = Opener(open_hub, remote=True)
