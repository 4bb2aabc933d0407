"""The files of a model: the newest state, the older ones kept beside it, and which of them to go on from.  Engine floor.

NAME.lmp is the newest state, NAME.prev-1.lmp the one before it, and so on; NAME.STAGE.lmp is the newest within a stage. A file that turns out to be damaged
becomes NAME.damaged-1.lmp, and a history that is not to be gone on with NAME.old-1.lmp.
"""
from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from ..files import check_room, link_atomic, remove_leftovers
from ..words import counted
from .format import Damaged, load, stage_file, write


@dataclass
class Found:
    """A whole checkpoint, and what stood before it that is not whole: pairs of a file and what is wrong with it."""

    path: Path
    content: dict[str, Any]
    damaged: list[tuple[Path, str]] = field(default_factory=list)


def save(path: Path, content: dict[str, Any], stage: str | None, keep: int, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Write the newest state, keep the one before, and give the file the stage's name too.

    :param path: NAME.lmp.
    :param content: of all components.
    :param stage: the stage whose newest state this is; None = no stage's.
    :param keep: older states to keep.
    :param cancelled: True stops the writing.
    :raises OSError: when it cannot be written; the files that were there are whole.
    """
    def name_it(new: Path) -> None:
        if stage is not None:  # first: killed after the last save of a stage, the run that goes on does not save it again
            link_atomic(new, stage_file(path, stage))
        _move_back(path, keep)

    check_room(path.parent, size_of(content))
    write(path, content, name_it, cancelled)
    for number, old in previous(path).items():
        if number > keep:
            old.unlink()


def find(path: Path, stages: Sequence[str]) -> Found | None:
    """Find the newest whole state of a model; nothing is changed.

    :param path: NAME.lmp.
    :param stages: names of the plan's stages.
    :return: what is to be gone on from; None when there is no file at all.
    :raises Damaged: when none is whole.
    :raises UserError: when the newest whole one is of a version that is not known.
    """
    damaged: list[tuple[Path, str]] = []
    for candidate in _candidates(path, stages):
        twin = next((fault for other, fault in damaged if os.path.samefile(other, candidate)), None)
        try:
            if twin is None:
                return Found(candidate, load(candidate), damaged)
        except Damaged as error:
            twin = str(error)
        damaged.append((candidate, twin))
    if damaged:
        raise Damaged(damaged[0][1], *(f"model {other}: damaged too." for other, _ in damaged[1:]))
    return None


def recover(path: Path, found: Found | None, out_dir: Path, say: Callable[[str], None]) -> None:
    """Where the newest state is damaged or missing: give damaged files other names, and NAME.lmp back to the state that is gone on from.

    :param path: NAME.lmp.
    :param found: what :func:`find` gave.
    :param out_dir: where the statistics are; they know how far the run had come.
    :param say: tells the user.
    """
    if found is None or found.path == path:
        return
    if not path.exists():
        say(f"WARNING: {path} is missing.")
    for other, fault in found.damaged:
        aside = free_name(path, "damaged")
        other.rename(aside)
        say(f"WARNING: {fault.split('. ')[0]}. It is kept as {aside.name}.")
    link_atomic(found.path, path)
    samples = found.content["runner"]["state"]["stats"]["total_train_samples"]
    before = _samples_in_statistics(path, out_dir)
    lost = "how many samples are lost is not known" if before is None else f"at most {counted(max(before - samples, 0), 'sample')} lost"
    say(f"WARNING: going on from {found.path.name}, the newest state that is whole, at {samples:,} samples; {lost}, trained on again. "
        "--reset-history would start anew.")


def set_aside(path: Path, stages: Sequence[str]) -> Path:
    """Give all files of a model other names, so that a new run can have theirs.

    :param path: NAME.lmp.
    :param stages: the stages of which there may be files.
    :return: the new name, NAME.old-1.lmp or the first number that is free.
    """
    new = free_name(path, "old")
    for other in _candidates(path, stages)[::-1]:  # NAME.lmp last: killed in between, this is done again
        name = new if other == path else new.with_name(new.stem + other.name.removeprefix(path.stem))
        other.rename(name)
    return new


def exists(path: Path, stages: Sequence[str]) -> bool:
    """Tell whether a model has any file."""
    return bool(_candidates(path, stages))


def clean_up(path: Path, out_dir: Path) -> None:
    """Remove what a killed run of this model left half written; the model's lock must be held.

    :param path: NAME.lmp.
    :param out_dir: where its statistics are.
    """
    name = re.escape(path.stem)
    ours = re.compile(rf"{name}(\.[^/]+)?\.lmp|{name}(_step_.+)?_(train|validate)_stats\.json|{name}_settings\.json")
    for folder in {path.parent, out_dir}:
        remove_leftovers(folder, lambda file: ours.fullmatch(file) is not None)


def check_total_room(path: Path, size: int, stages: Sequence[str], keep: int) -> None:
    """See that the files of a run will fit on the disk together.

    :param path: NAME.lmp; its folder need not be there yet.
    :param size: of one file, in bytes.
    :param stages: names of the plan's stages; each but the last keeps a file of its own.
    :param keep: older states to keep.
    :raises UserError: with the bytes that are needed and there.
    """
    count = len(stages) + 1 + keep  # the newest with the stages', the older ones, and the one that is being written
    there = {(stat.st_dev, stat.st_ino): stat.st_size for stat in (other.stat() for other in _candidates(path, stages))}
    try:
        check_room(next(folder for folder in path.absolute().parents if folder.exists()), count * size - sum(there.values()))
    except OSError as error:
        raise UserError(f"model {path}: {error.strerror}: up to {count} states of {size:,} bytes are there at once. "
                        "Make room, choose a --model on another disk, or keep fewer with --keep.") from None


def previous(path: Path) -> dict[int, Path]:
    """List the older states that are kept, newest first, by number."""
    names = re.compile(rf"{re.escape(path.stem)}\.prev-([1-9][0-9]*){re.escape(path.suffix)}")
    found = ((names.fullmatch(other.name), other) for other in path.parent.glob("*.lmp"))
    return dict(sorted((int(match[1]), other) for match, other in found if match))


def free_name(path: Path, why: str) -> Path:
    """Give the first of NAME.why-1.lmp, NAME.why-2.lmp … that is free."""
    return next(name for number in range(1, 1_000_000) if not (name := stage_file(path, f"{why}-{number}")).exists())


def size_of(content: dict[str, Any]) -> int:
    """Estimate the bytes that a file of nested values takes: those of the tensors (memory that two share once), 9 a number in a list, and something more."""
    tensors: dict[int, int] = {}

    def rest(value: Any) -> int:
        if isinstance(value, torch.Tensor):
            tensors[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        if isinstance(value, dict):
            return sum(map(rest, value.values()))
        return 9 * len(value) if isinstance(value, (str, list)) else 9

    return rest(content) + sum(tensors.values()) + (1 << 16)


def _candidates(path: Path, stages: Sequence[str]) -> list[Path]:
    """List the files that there are to go on from: the newest, the older ones, those of the stages from the last."""
    names = [path, *previous(path).values(), *(stage_file(path, stage) for stage in reversed(stages))]
    return [name for name in names if name.exists()]


def _move_back(path: Path, keep: int) -> None:
    """Give the state that has been the newest the name of the one before it, by a link, and those before it the names before theirs."""
    before = previous(path)
    if not keep or not path.exists() or (1 in before and path.samefile(before[1])):
        return
    gap = next((number for number in range(1, keep) if number not in before), keep)
    for number in range(gap - 1, 0, -1):
        before[number].replace(_previous_file(path, number + 1))
    newest = _previous_file(path, 1)
    newest.unlink(missing_ok=True)  # only there when no other is kept
    try:
        os.link(path, newest)
    except OSError:  # no links here: for an instant there is no NAME.lmp, and a run killed in it goes on from this one
        path.replace(newest)


def _previous_file(path: Path, number: int) -> Path:
    """Name an older state."""
    return stage_file(path, f"prev-{number}")


def _samples_in_statistics(path: Path, out_dir: Path) -> int | None:
    """Read from the statistics how many samples a run had trained on."""
    try:
        return int(json.loads((out_dir / f"{path.stem}_train_stats.json").read_text())["totals"]["total_train_samples"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
