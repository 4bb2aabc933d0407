"""Which run a checkpoint belongs to: none takes or replaces the file of another, even where their names meet (stage `one` of m.lmp, and a model m.one.lmp).
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from .best import best_names
from .format import Damaged, read

_ADVICE = "Choose another --model, or move that file elsewhere."


class Owner(NamedTuple):
    """What a checkpoint says of its origin: a random id that the run drew when it began, and the model's name (its file's, without suffix)."""

    run: str
    model: str


def owner_of(content: dict[str, Any]) -> Owner | None:
    """Return the origin of a checkpoint; None where it does not say (files of version 0.1, and files of weights alone)."""
    run, model = (_at(content, "runner", "state", "clock", name) for name in ("run", "model"))
    return Owner(run, model) if isinstance(run, str) and isinstance(model, str) else None


def refuse_as_newest(path: Path, content: dict[str, Any]) -> None:
    """Refuse to go on in a file that another model's run keeps for itself: the state of a stage, the best one, or an older one.

    :param path: the model file.
    :param content: what it holds.
    :raises UserError: saying which model it belongs to.
    """
    owner = owner_of(content)
    if owner is None or not path.stem.startswith(f"{owner.model}."):
        return  # its own, or a copy under another name
    stages = [str(_at(stage, "name")) for stage in _at(content, "curriculum", "state", "stages") or ()]
    what = re.sub(r"^(old|damaged)-[0-9]+\.", "", path.stem.removeprefix(f"{owner.model}."))
    if what in (*stages, *best_names(stages)):
        raise UserError(f"model {path}: is a file of the model {owner.model}: its state '{what}'. To go on from it, choose another --model with "
                        f"--resume {path}; or give the file another name.")


def refuse_as_stage(path: Path, candidate: Path, content: dict[str, Any]) -> None:
    """Refuse to take the newest state of another model for that of a stage.

    :param path: the model file, which is missing or damaged.
    :param candidate: the file with the name of a stage's.
    :param content: what it holds.
    :raises UserError: naming the other model.
    """
    owner = owner_of(content)
    if owner is not None and owner.model != path.stem:
        raise UserError(f"model {path}: there is no valid state of it, and {candidate} belongs to the model {owner.model}, not to a stage of this one. "
                        f"{_ADVICE}")


def refuse_others(path: Path, files: Sequence[Path], content: dict[str, Any] | None, aside: bool) -> None:
    """Refuse to replace the files of other models and of other runs.

    :param path: the model file.
    :param files: those of its stages, its best and its older states, as far as they exist.
    :param content: the state that the run continues from; None = a new run.
    :param aside: whether what is there gets another name first: then it may be of any run of this model.
    :raises UserError: naming each file.
    """
    mine = owner_of(content) if content is not None else None
    faults = []
    for file in files:
        try:
            other = read(file, mmap=True, check=False)
        except Damaged:
            continue
        owner = owner_of(other)
        if owner is None:
            continue
        if owner.model == file.stem:
            faults.append(f"model {path}: {file} is a model of its own, where this run would keep one of its states. {_ADVICE}")
        elif not aside and (owner.model != path.stem if content is None else mine is not None and mine.run != owner.run):
            faults.append(f"model {path}: {file} belongs to another run ({owner.run} of the model {owner.model}) and would be replaced. "
                          f"Move it elsewhere, or keep it under another name with --reset-history.")
    if faults:
        raise UserError(*faults)


def is_model(file: Path) -> bool:
    """Tell whether a file is the newest state of a model of its own."""
    try:
        owner = owner_of(read(file, mmap=True, check=False))
    except UserError:
        return False
    return owner is not None and owner.model == file.stem


def _at(content: Any, *keys: str) -> Any:
    """Return a value in nested dicts of a file that nobody has checked; None where there is none."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content
