"""The files of a model: the newest state, the older ones beside it, and which of them a run resumes from.

NAME.lmp is the newest state, NAME.prev-1.lmp the one before it, and so on; NAME.STAGE.lmp is the newest state of a stage. A damaged file is renamed to
NAME.damaged-1.lmp, and the model that `--reset-history` replaces to NAME.old-1.lmp. Each of them is a file, or a folder of shards.
"""
from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import check_free_bytes, identity, link_atomic, remove, remove_leftovers, size_of
from ..stats.writing import read_stats, stats_files
from ..words import counted
from .base import FINISHED, with_base
from .format import Damaged, Verified, Write, content_bytes, load, stage_file, write
from .ownership import refuse_as_newest, refuse_as_stage


@dataclass
class Found:
    """A whole checkpoint, and the newer ones that are damaged: pairs of a file and what is wrong with it."""

    path: Path
    content: dict[str, Any]
    damaged: list[tuple[Path, str]] = field(default_factory=list)


def write_checked(path: Path, content: dict[str, Any], before_rename: Callable[[Path], None] | None, cancelled: Callable[[], bool]) -> None:
    """Write a state as a file, where there is room for it; raises OSError, see :func:`lmplay.checkpoints.format.write`."""
    check_free_bytes(path.parent, content_bytes(content))
    write(path, content, before_rename, cancelled)


def save(path: Path, content: dict[str, Any], stage: str | None, keep: int, cancelled: Callable[[], bool] = lambda: False,
         how: Write | None = None) -> None:
    """Write the newest state, rotate the older ones, and link the newest as the stage's.

    :param path: NAME.lmp.
    :param stage: the stage whose newest state this is; None = no stage's.
    :param keep: number of older states to keep.
    :param cancelled: called between chunks; True cancels the write.
    :param how: writes the state; None = as a file.
    :raises OSError: when the file cannot be written; those that were there are whole.
    """
    def link_and_rotate(new: Path) -> None:
        if stage is not None:  # first: a run that is killed after the last save of a stage does not save that stage again when it resumes
            link_atomic(new, stage_file(path, stage))
        _rotate(path, keep)

    (how or write_checked)(path, content, link_and_rotate, cancelled)
    for number, old in previous(path).items():
        if number > keep:
            remove(old)


def find(path: Path, stages: Sequence[str], mmap: bool = False, verified: Verified | None = None) -> Found | None:
    """Find the newest whole state of a model, without changing anything; None when there is no file at all.

    :param mmap: leave the tensors on the disk until they are used.
    :param verified: see :func:`lmplay.checkpoints.format.read`.
    :raises Damaged: when all files are damaged.
    :raises UserError: when the newest whole file has an unknown format version, or belongs to another model.
    """
    damaged: list[tuple[Path, str]] = []
    for candidate in existing(path, stages):
        fault = next((fault for other, fault in damaged if os.path.samefile(other, candidate)), None)  # a link to a damaged file
        try:
            if fault is None:
                content = load(candidate, mmap=mmap, verified=verified)
                if candidate == path:
                    refuse_as_newest(path, content)
                elif candidate not in previous(path).values():
                    refuse_as_stage(path, candidate, content)
                return Found(candidate, with_base(candidate, content, verified), damaged)
        except Damaged as error:
            fault = str(error)
        damaged.append((candidate, fault))
    if damaged:
        raise Damaged(damaged[0][1], *(f"model {other}: damaged too." for other, _ in damaged[1:]))
    return None


def recover(path: Path, found: Found | None, out_dir: Path, say: Callable[[str], None]) -> None:
    """Where the newest state is damaged or missing: rename the damaged files, and make the state that was found NAME.lmp.

    :param found: the result of :func:`find`.
    :param out_dir: where the statistics are; they say how many samples the run had trained on.
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
    say(f"WARNING: continuing from {found.path.name}, the newest intact state, at {samples:,} samples; {lost}, trained on again. "
        "--reset-history would start over.")


def set_aside(path: Path, stages: Sequence[str]) -> Path:
    """Rename all files of a model, to make way for a new run, and return the new name of NAME.lmp: NAME.old-1.lmp, or the first number that is free."""
    new = free_name(path, "old")
    for other in existing(path, stages)[::-1]:  # NAME.lmp last: a run that is killed in between does this again
        name = new if other == path else new.with_name(new.stem + other.name.removeprefix(path.stem))
        other.rename(name)
    return new


def clean_up(path: Path, out_dir: Path) -> None:
    """Remove the half-written files of killed runs of this model, whose lock must be held; its statistics are in `out_dir`.

    :raises UserError: when one was killed while its newest state had no name, which it has again: what was decided without that state may be wrong.
    """
    was_there, name = path.exists(), re.escape(path.stem)
    ours = re.compile(rf"{name}(\.[^/]+)?\.lmp|{name}(_step_.+)?_(train|validate)_stats\.json|{name}_(settings|eval)\.json")
    for folder in {path.parent, out_dir}:
        remove_leftovers(folder, lambda file: ours.fullmatch(file) is not None)
    if not was_there and path.exists():
        raise UserError(f"model {path}: a process was killed while it replaced this state, which is there again; run the same command again.")


def check_free_space(path: Path, size: int, stages: Sequence[str], keep: int, at_once: int = 1) -> None:
    """Check that all checkpoints of a run will fit on the disk together; raises UserError with the bytes that are needed and free.

    :param path: NAME.lmp; its folder need not exist yet.
    :param size: of one file, in bytes.
    :param stages: names of the plan's stages; each but the last keeps a file of its own.
    :param keep: number of older states to keep.
    :param at_once: states that are written at the same time.
    """
    count = len(stages) + keep + at_once  # the stages' (the newest is the last one's), the older ones, and those that are being written
    there = {identity(other): size_of(other) for other in existing(path, stages)}
    try:
        check_free_bytes(next(folder for folder in path.absolute().parents if folder.exists()), count * size - sum(there.values()))
    except OSError as error:
        raise UserError(f"model {path}: {error.strerror}: up to {count} states of {size:,} bytes are kept at once. "
                        "Free some space, choose a --model on another disk, or keep fewer with --keep.") from None


def previous(path: Path) -> dict[int, Path]:
    """Return the files of the older states by number, newest first."""
    names = re.compile(rf"{re.escape(path.stem)}\.prev-([1-9][0-9]*){re.escape(path.suffix)}")
    found = ((names.fullmatch(other.name), other) for other in path.parent.glob("*.lmp"))
    return dict(sorted((int(match[1]), other) for match, other in found if match))


def existing(path: Path, stages: Sequence[str]) -> list[Path]:
    """List the existing files of a model in the order of resuming: the newest, the older ones, those of the stages from the last."""
    names = [path, *previous(path).values(), *(stage_file(path, stage) for stage in reversed(stages))]
    return [name for name in names if name.exists()]


def free_name(path: Path, why: str) -> Path:
    """Return the first of NAME.why-1.lmp, NAME.why-2.lmp … that does not exist, nor a file of its stages, nor an older state."""
    taken = re.compile(rf"{re.escape(path.stem)}\.{why}-([1-9][0-9]*)\..+")
    files = [other.name for folder in (path.parent, path.parent / FINISHED) for other in folder.glob("*")]
    numbers = {int(match[1]) for other in files if (match := taken.fullmatch(other))}
    return stage_file(path, f"{why}-{next(number for number in itertools.count(1) if number not in numbers)}")


def _rotate(path: Path, keep: int) -> None:
    """Rotate the prev-N files: prev-1 becomes prev-2 and so on, up to the first free number, and NAME.lmp is linked as prev-1."""
    before = previous(path)
    if not keep or not path.exists() or (1 in before and identity(path) == identity(before[1])):
        return
    gap = next((number for number in range(1, keep) if number not in before), keep)
    for number in range(gap - 1, 0, -1):
        older = stage_file(path, f"prev-{number + 1}")
        remove(older)
        before[number].replace(older)
    newest = stage_file(path, "prev-1")
    remove(newest)  # exists only with keep = 1
    try:
        os.link(path, newest)
    except OSError:  # a folder, or no links here: for an instant there is no NAME.lmp, and a run that is killed then resumes from prev-1
        path.replace(newest)


def _samples_in_statistics(path: Path, out_dir: Path) -> int | None:
    """Read from the statistics how many samples a run had trained on; None where they cannot be read."""
    totals = read_stats(stats_files(out_dir, path.stem, None)[0]).get("totals")
    samples = totals.get("total_train_samples") if isinstance(totals, dict) else None
    return samples if isinstance(samples, int) else None
