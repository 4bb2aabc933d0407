"""Saving the data sets of a plan for machines without a network (`--save-datasets`).  Data floor, no torch at top."""
from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import UserError
from ..files import make_folder
from .sources import SourceSpec, is_hub
from .sources.hub import prepared, saved_folder
from .sources.library import first_line, quiet_library


def save_sources(specs: Iterable[SourceSpec], folder: Path, say: Callable[[str], None]) -> None:
    """Save every data set of the hub, its training and its own validation rows, where opening it looks first.

    :param specs: the sources; one that is local, built in or already saved needs nothing.
    :param folder: the data sets folder; `saved/` in it gets one folder for each.
    :param say: is given one line of text for each source.
    :raises UserError: when a data set cannot be had, or there is no room; what was saved before stays.
    """
    for spec in specs:
        target = saved_folder(spec, folder)
        if not is_hub(spec):
            say(f"{spec.path}: is not on the hub and needs no saving.")
        elif target.is_dir():
            say(f"{spec.path}: is already saved in {target}.")
        else:
            say(f"{spec.path}: downloading.")
            rows = _save(spec, folder, target)
            say(f"{spec.path}: saved {rows} rows in {target}.")


def _save(spec: SourceSpec, folder: Path, target: Path) -> int:
    """Save one data set under a temporary name and rename it; gives the number of its rows."""
    found = {split: prepared(spec, split, folder)[0] for split in ("train", "validation")}
    parts = {split: part for split, part in found.items() if part is not None}
    temporary = make_folder(target.parent, "the data sets folder") / f".{target.name}.{os.getpid()}.tmp"
    from datasets import DatasetDict

    try:
        with quiet_library(folder):
            DatasetDict(parts).save_to_disk(str(temporary))
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"source {spec.path}: cannot be saved in {target} ({first_line(error)}); is there room?") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sum(len(part) for part in parts.values())
