"""Saving the data sets of a plan for machines without a network (`--save-datasets`).  Data floor, no torch at top."""
from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..files import make_folder
from ..hub import first_line
from ..words import bytes_in_words
from .sources import SourceSpec
from .sources.hub import LINES, Download, download, downloaded_lines, downloads, prepared, saved_folder
from .sources.library import quiet_library
from .sources.registry import HUB, find_kind
from .stream import NAMED_ROWS, describe_losses, refused_row

if TYPE_CHECKING:
    from datasets import Dataset

    from .sources.shards import ShardedSource

_SPLITS = ("train", "validation")
# Seconds between two lines of progress where there is no terminal.
_PLAIN_SECONDS = 10.0


def save_sources(specs: Iterable[SourceSpec], folder: Path, say: Callable[[str], None]) -> None:
    """Save every data set of the hub, its training and its own validation rows, where opening it looks first.

    It can be stopped at any time and done again: what is saved is whole, and what has been downloaded is not downloaded again.

    :param specs: the sources; one that is local, built in or already saved needs nothing.
    :param folder: the data sets folder; `saved/` in it gets one folder for each.
    :param say: is given one line of text for each source, and lines of progress.
    :raises UserError: when a data set cannot be had, or there is no space; what was saved before stays.
    :raises Unavailable: when the hub does not answer.
    """
    for spec in specs:
        target = saved_folder(spec, folder)
        if find_kind(spec.path) != HUB:
            say(f"{spec.path}: is not on the hub and needs no saving.")
        elif target.is_dir():
            say(f"{spec.path}: is already saved in {target}.")
        else:
            try:
                rows = _save(spec, folder, target, say)
            except BaseException:
                say(f"{spec.path}: not saved; what has been downloaded is kept, and the same command continues from there.")
                raise
            say(f"{spec.path}: saved {rows} rows in {target}.")


def _save(spec: SourceSpec, folder: Path, target: Path, say: Callable[[str], None]) -> int:
    """Save one data set under a temporary name and rename it; gives the number of its rows."""
    files, row_bytes = downloads(spec, folder)
    make_folder(target.parent, "the data sets folder")
    _check_disk(spec, folder, sum(file.size for file in files if not _is_here(file, folder)) + 2 * row_bytes)
    _download(spec, files, folder, say)
    say(f"{spec.path}: writing its rows.")
    write = _choose_form(spec, folder, say)
    temporary = target.parent / f".{target.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    try:
        rows = write(temporary)
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"source {spec.path}: cannot be saved in {target} ({first_line(error)}); is there space on the disk?") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return rows


def _choose_form(spec: SourceSpec, folder: Path, say: Callable[[str], None]) -> Callable[[Path], int]:
    """Choose how the rows are saved: as the library reads them, or line by line where it does not read JSON lines that our own streams do.

    :return: writes the rows into a folder, which is not there yet, and gives their number.
    """
    try:
        found = {split: prepared(spec, split, folder)[0] for split in _SPLITS}
    except UserError:
        lines = {split: source for split in _SPLITS if (source := downloaded_lines(spec, split, folder)) is not None}
        if "train" not in lines:
            raise
        return lambda target: _write_lines(lines, target, spec, say)
    parts = {split: part for split, part in found.items() if part is not None}
    return lambda target: _write_dataset(parts, target, folder)


def _write_dataset(parts: dict[str, Dataset], target: Path, folder: Path) -> int:
    """Save rows as the library does; gives their number."""
    from datasets import DatasetDict

    with quiet_library(folder):
        DatasetDict(parts).save_to_disk(str(target))
    return sum(len(part) for part in parts.values())


def _write_lines(lines: dict[str, ShardedSource], target: Path, spec: SourceSpec, say: Callable[[str], None]) -> int:
    """Save the lines that are rows and say which are not; gives their number. Raises UserError when a source that is to have no bad rows has one."""
    target.mkdir()
    rows, skipped, places = 0, Counter[str](), dict[str, list[str]]()
    for split, source in lines.items():
        with open(target / LINES.format(split), "wb") as file:
            for line in source.good_lines():
                if isinstance(line, bytes):
                    file.write(line)
                    rows += 1
                    continue
                if spec.on_bad_row == "stop":
                    raise refused_row(line.faults)
                skipped[line.reason] += 1
                places[line.reason] = [*places.get(line.reason, []), line.location][:NAMED_ROWS]
    for loss in describe_losses({"skipped": skipped, "places": places, "replaced": {}}):
        say(f"{spec.path}: {loss}")
    return rows


def _check_disk(spec: SourceSpec, folder: Path, needed: int) -> None:
    """Refuse before downloading when the disk has too little left for the files, the rows that the library makes of them, and the rows that are saved."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(f"source {spec.path}: needs at least {bytes_in_words(needed)} in {folder}, and {bytes_in_words(free)} are free; "
                        "free some space, or choose another --out-dir.")


def _is_here(file: Download, folder: Path) -> bool:
    """Tell whether a file has been downloaded."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(file.repo, file.path, cache_dir=folder / "hub", revision=file.revision, repo_type="dataset"), str)


def _download(spec: SourceSpec, files: list[Download], folder: Path, say: Callable[[str], None]) -> None:
    """Download files, telling how far it is: on a terminal by a bar, else by a line now and then."""
    total, done, last = sum(file.size for file in files), 0, time.monotonic()
    say(f"{spec.path}: downloading {len(files)} file{'s' * (len(files) != 1)}, {bytes_in_words(total)}.")
    bar: Any = None
    if sys.stderr.isatty():
        from tqdm import tqdm

        bar = tqdm(total=total, unit="B", unit_scale=True, desc=spec.path, dynamic_ncols=True, leave=False)
    try:
        for number, file in enumerate(files, 1):
            download(spec, file, folder)
            done += file.size
            if bar is not None:
                bar.update(file.size)
            elif number == len(files) or time.monotonic() - last >= _PLAIN_SECONDS:
                last = time.monotonic()
                say(f"{spec.path}: {number} of {len(files)} files, {bytes_in_words(done)} of {bytes_in_words(total)}.")
    finally:
        if bar is not None:
            bar.close()
