"""The only file that touches the `datasets` library: silent, with its caches in our folder, its data sets as sources.  Data floor, no torch at top."""
from __future__ import annotations

import copy
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import TrainingError, UserError, nearest
from ...hub import Patience, first_line, outage_of
from .base import VALIDATION_NAMES, BadRow, IndexedSource, SourceSpec, Stream, StreamedSource

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

# Rows between two notes of a reading's position: asking for it costs as much as several rows.
_ROWS_BETWEEN_STATES = 100


class DatasetSource(IndexedSource):
    """A data set that is on this disk, mapped into memory."""

    n_rows: int

    def __init__(self, name: str, dataset: Dataset, fingerprint: dict[str, Any]):
        """
        :param name: what it is called.
        :param dataset: the library's data set.
        :param fingerprint: what tells it apart from others.
        """
        self.name = name
        self._dataset = dataset
        self.n_rows = len(dataset)
        self.columns = tuple(dataset.column_names)
        self.fingerprint = {**fingerprint, "rows": self.n_rows}

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`IndexedSource`."""
        if not 0 <= index < self.n_rows:
            raise IndexError(index)
        return self._dataset[index]

    def block(self, start: int, end: int) -> list[dict[str, Any] | BadRow]:
        """See :class:`IndexedSource`."""
        columns = self._dataset[start:end]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


class DatasetStreamedSource(StreamedSource):
    """A data set that the library reads over the network while training: any format it knows.

    A reading that continues from a position, or after the hub was away, reads again what comes before it in the same file of the data set, but no more.
    """

    def __init__(self, name: str, dataset: IterableDataset, n_rows: int | None, fingerprint: dict[str, Any]):
        """
        :param name: what it is called.
        :param dataset: the library's data set, not shuffled.
        :param n_rows: the number of rows that its description states, if it does.
        :param fingerprint: what tells it apart from others.
        """
        self.name = name
        self._dataset = dataset
        self.n_rows = n_rows
        self.columns = tuple(dataset.column_names) if dataset.column_names else None
        self.fingerprint = fingerprint

    def open(self, state: Any = None) -> Stream:
        """See :class:`StreamedSource`."""
        return _DatasetStream(self.name, self._dataset, state)


class _DatasetStream(Stream):
    """One reading of a streamed data set; after an outage it is begun again where it was."""

    def __init__(self, name: str, dataset: IterableDataset, state: Any):
        self._name = name
        self._dataset = dataset
        self._patience = Patience(f"source {name}")
        self._known, self._past = state, 0  # a position, and the rows given since
        self._rows: Iterator[dict[str, Any]] | None = None

    def __next__(self) -> dict[str, Any]:
        while True:
            try:
                row = next(self._rows or self._begin())
            except StopIteration:
                raise
            except Exception as error:
                self._rows = None
                outage = outage_of(error)
                if outage is None:
                    raise TrainingError(f"source {self._name}: reading stopped ({first_line(error)}).") from error
                self._patience.wait(outage)
            else:
                self._patience.renew()
                self._past += 1
                if self._past == _ROWS_BETWEEN_STATES:
                    self._known, self._past = self._reading.state_dict(), 0
                return row

    def state(self) -> Any:
        """See :class:`Stream`."""
        # Until the first row has been read the library tells the state of the start, not the one it was given.
        return self._reading.state_dict() if self._past and self._rows is not None else self._known

    def _begin(self) -> Iterator[dict[str, Any]]:
        """Begin again, after the rows that have been given."""
        # The library keeps a reading's position in the data set itself: each reading needs its own.
        self._reading = copy.deepcopy(self._dataset)
        if self._known is not None:
            self._reading.load_state_dict(self._known)
        rows = iter(self._reading)
        for _ in range(self._past):
            next(rows)
        self._rows = rows
        return rows


@contextmanager
def quiet_library(folder: Path, offline: bool = False, hub_cache: Path | None = None) -> Iterator[None]:
    """Keep the library's caches in the data sets folder meanwhile; from then on it draws no bars, logs nothing, sends no telemetry and does not retry.

    :param folder: the data sets folder; `hub/` in it is the cache.
    :param offline: make no requests, use what is in the cache.
    :param hub_cache: where files of the hub are; None = `hub/` in the folder.
    :return: a context, in which `datasets` may be used.
    """
    os.environ.setdefault("HF_XET_CACHE", str(folder / "hub" / "xet"))  # read by a compiled library, once
    _set_up()
    import datasets
    from huggingface_hub import constants

    changed: list[tuple[Any, str, Any]] = [(constants, "HF_HUB_CACHE", str(hub_cache or folder / "hub"))]
    if offline:
        changed += [(constants, "HF_HUB_OFFLINE", True), (datasets.config, "HF_HUB_OFFLINE", True)]
    before = [(module, name, getattr(module, name)) for module, name, _ in changed]
    try:
        for module, name, value in changed:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _set_up() -> None:
    """Let the library draw no bars, log nothing, send no telemetry, and leave retries to us."""
    import datasets
    import huggingface_hub
    from huggingface_hub import file_download, hf_file_system

    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    huggingface_hub.utils.disable_progress_bars()
    huggingface_hub.utils.logging.set_verbosity_error()
    # Its retries wait for minutes and cannot be interrupted. Each setting is changed where the installed version has it.
    for name, value in {"READ_MAX_RETRIES": 1, "OPEN_MAX_RETRIES": 1, "READ_RETRY_INTERVAL": 0, "READ_SERVER_UNAVAILABLE_RETRY_INTERVAL": 0,
                        "READ_RATE_LIMIT_RETRY_INTERVAL": 0, "OPEN_RETRY_INTERVAL": 0}.items():
        setattr(datasets.config, f"STREAMING_{name}", value)
    for module, name in product((hf_file_system, file_download), ("http_backoff", "http_stream_backoff")):
        backoff = getattr(module, name, None)
        if backoff is not None and not isinstance(backoff, partial):
            setattr(module, name, partial(backoff, max_retries=0))


def own_validation(splits: list[str], train: str) -> str | None:
    """Find a data set's own validation split.

    :param splits: names of all its splits.
    :param train: the split trained on; may be a slice or a sum of splits.
    :return: a name that training does not read, None where there is none.
    """
    read = split_names(train)
    return next((name for name in VALIDATION_NAMES if name in splits and name not in read), None)


def split_names(split: str) -> list[str]:
    """Give the names in a split, which may be a slice (`train[:1000]`) or a sum (`train+test`)."""
    return [part.split("[")[0].strip() for part in split.split("+")]


def check_splits(label: str, splits: list[str], asked: list[str]) -> None:
    """Refuse splits that a data set doesn't have.

    :param label: what the user calls the data set.
    :param splits: names of all its splits.
    :param asked: names of the splits asked for.
    :raises UserError: when one of them isn't there.
    """
    for name in asked:
        if name not in splits:
            raise UserError(f"source {label}: has no split '{name}'; 'split' can be {', '.join(splits)}.{nearest(name, splits)}")


def open_saved_folder(spec: SourceSpec, path: Path, split: str) -> DatasetSource | None:
    """Open a folder written by `save_to_disk`.

    :param spec: the source asked for.
    :param path: the folder.
    :param split: "train" or "validation".
    :return: the source; None where "validation" is asked for and there is none.
    :raises UserError: when it is damaged, or has no such split.
    """
    parts = load_saved(path)
    chosen: str | None = "" if "" in parts else spec.split or "train"
    if "" in parts and spec.split:
        raise UserError(f"source {spec.path}: holds one data set without splits; leave 'split' out.")
    if chosen:
        check_splits(spec.path, list(parts), [chosen])
    if split == "validation":
        chosen = own_validation(list(parts), chosen or "")
    if chosen is None:
        return None
    return DatasetSource(path.resolve().name + (f"/{chosen}" if chosen else ""), parts[chosen], saved_fingerprint(parts[chosen]))


def load_saved(path: Path) -> dict[str, Dataset]:
    """Load what `save_to_disk` wrote.

    :param path: the folder.
    :return: the data sets by split; by "" where it is one without splits.
    :raises UserError: when it is damaged.
    """
    import datasets

    _set_up()
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:
        raise UserError(f"{path}: the saved data set cannot be read ({first_line(error)}); save it again.") from None
    return {"": loaded} if isinstance(loaded, datasets.Dataset) else {str(name): part for name, part in loaded.items()}


def saved_fingerprint(dataset: Dataset) -> dict[str, Any]:
    """Tell a saved data set by the fingerprint that the library stored with it."""
    return {"kind": "saved", "dataset": dataset._fingerprint}


def disk_is_full(error: BaseException | None) -> bool:
    """Tell whether an error, or what caused it, is a disk that is full or a quota that is used up."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
