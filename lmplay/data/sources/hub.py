"""Data sets of the hub as sources: streamed, kept on this disk, or saved earlier; and what is said when one cannot be had.  Data floor, no torch at top."""
from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...errors import UserError
from ...hub import hub_endpoint, hub_problem
from .base import IndexedSource, SourceSpec, StreamedSource
from .library import DatasetSource, DatasetStreamedSource, check_splits, first_line, load_saved, own_validation, quiet_library, saved_fingerprint, split_names

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
# Errors of the client's network libraries, by name: which libraries those are changes with its version.
_AWAY = ("ConnectError", "ConnectTimeout", "ReadError", "ReadTimeout", "Timeout", "LocalEntryNotFoundError", "OfflineModeIsEnabled", "HfHubHTTPError")


def open_hub(spec: SourceSpec, split: str, folder: Path) -> IndexedSource | StreamedSource | None:
    """Open a data set of the hub, or what `--save-datasets` saved of it, which needs no network.

    :param spec: the source asked for.
    :param split: "train" or "validation".
    :param folder: the data sets folder.
    :return: the source; None where "validation" is asked for and it has no such split.
    :raises UserError: when it cannot be had; says why.
    """
    saved = saved_folder(spec, folder)
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
    """
    builder = _builder(spec.path, spec.config, spec.revision, folder, cache=True)
    with _asking(spec.path, folder):
        builder.download_and_prepare()
        chosen = _choose(spec, list(builder.info.splits or ()), split)
        return builder.as_dataset(split=chosen) if chosen else None, str(builder.hash)


def _open_stream(spec: SourceSpec, split: str, folder: Path) -> DatasetStreamedSource | None:
    """Open a data set without downloading it."""
    builder = _builder(spec.path, spec.config, spec.revision, folder, cache=False)
    with _asking(spec.path, folder):
        parts = builder.as_streaming_dataset()
        chosen = _choose(spec, list(parts), split)
        if chosen is None:
            return None
        dataset = parts[chosen] if chosen in parts else builder.as_streaming_dataset(split=chosen)
    counts = [info.num_examples for name, info in (builder.info.splits or {}).items() if name in split_names(chosen)]
    n_rows = sum(counts) if counts and all(counts) else None  # 0 stands for a number that nobody stated
    return DatasetStreamedSource(_title(spec, split), dataset, n_rows, {"kind": "stream", **_asked(spec, split), "commit": str(builder.hash)})


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
        raise UserError(_hub_away(path, away))
    with _asking(path, folder, away):
        import datasets

        builder = datasets.load_dataset_builder(path, config, revision=revision, cache_dir=str(folder / "hub"))
        if not builder.repo_id:  # "json" and the like: it would read whatever lies in the working folder
            raise UserError(f"source {path}: is a loader of the datasets library, not a data set; give the path of the files.")
        return builder


@contextmanager
def _asking(path: str, folder: Path, away: str | None = None) -> Iterator[None]:
    """Turn what goes wrong with the library into one clear line; `away` says why the hub cannot be reached, if so."""
    try:
        with quiet_library(folder, offline=away is not None):
            yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(_hub_away(path, away) if away else explain(path, error)) from None


def explain(path: str, error: Exception) -> str:
    """Say in one line, with what to do, why the library could not open a data set.

    :param path: its name.
    :param error: what the library raised.
    :return: the line.
    """
    text, kind, start = str(error), type(error).__name__, f"source {path}: "
    configs = re.search(r"[Aa]vailable(?: configs)?: (\[.*?\])", text)
    if configs:
        return f"{start}needs one of its configs in 'config': {configs[1].strip('[]').replace(chr(39), '')}."
    if "scripts are no longer supported" in text:
        return f"{start}needs a loading script, which the datasets library no longer runs; look for a copy of it in Parquet on {hub_endpoint()}/datasets."
    if "is a gated dataset" in text:
        return f"{start}is gated; accept its terms on {hub_endpoint()}/datasets/{path}, then log in with 'hf auth login' or set HF_TOKEN."
    if text.startswith("Revision"):
        return f"{start}{first_line(error)}; leave 'revision' out for the newest."
    if kind == "DatasetNotFoundError":
        return f"{start}there is no such data set on {hub_endpoint()} (or it is private), and no such file or folder here; check the name."
    if kind in ("DataFilesNotFoundError", "EmptyDatasetError"):
        return f"{start}holds no files that the datasets library reads; choose another data set."
    if isinstance(error, ConnectionError) or kind in _AWAY:
        return _hub_away(path, first_line(error))
    cause = error.__cause__ or error
    return f"{start}cannot be opened ({type(cause).__name__}: {first_line(cause)}); check its page on {hub_endpoint()}/datasets/{path}."


def _hub_away(path: str, reason: str) -> str:
    """Say that the hub cannot be reached."""
    return (f"source {path}: the hub cannot be reached for it ({reason}). Check the network, or use local files with --dataset PATH, "
            "or '--training-plan quickstart', which needs no network.")
