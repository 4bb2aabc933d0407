"""What a run goes on from, and what is set aside for it: nothing is ever destroyed.  Engine floor."""
from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import link_atomic, make_folder
from ..plan.schema import Plan
from ..plan.settings import Settings
from . import checkpoint
from .best import NAME, best_file


def choose_state(settings: Settings, path: Path) -> Path | None:
    """Choose what a run goes on from.

    :param settings: --resume and --reset-history.
    :param path: the model file.
    :return: a checkpoint; None for a new run.
    :raises UserError: when there is none where one is asked for.
    """
    if settings.resume == "latest":
        return path if path.exists() and not settings.reset_history else None
    if settings.reset_history:
        raise UserError(f"--resume {settings.resume} and --reset-history together: give one of them.")
    chosen = best_file(path) if settings.resume == "best" else Path(settings.resume).expanduser()
    if not chosen.is_file():
        hint = "it is written with the first save after a validation" if settings.resume == "best" else "give latest, best or a checkpoint file"
        raise UserError(f"--resume {settings.resume}: there is no file {chosen}; {hint}.")
    return path if path.exists() and path.samefile(chosen) else chosen


def step_back(path: Path, source: Path, to_come: list[str]) -> Path | None:
    """Make an earlier state the newest; the files that the run would now replace are kept under other names.

    :param path: the model file; at every instant it is whole.
    :param source: the checkpoint to go on from; stays as it is.
    :param to_come: the stages that are not done in it.
    :return: the new name of the state that was the newest; None where there was none.
    """
    kept = None
    if path.exists():
        kept = _free_name(path)
        for file in _files(path, to_come):
            link_atomic(file, kept.with_name(kept.stem + file.name.removeprefix(path.stem)))
    link_atomic(source, path)
    return kept


def set_history_aside(path: Path, folder: Path, plan: Plan) -> Path:
    """Give a model's files other names, so that a new run can have theirs, and move its statistics into a folder of that name.

    :param path: the model file, which exists.
    :param folder: where its statistics are.
    :param plan: the new plan; the stages of the old one are in the file.
    :return: the new name of the model file.
    """
    stages = {stage.name for stage in plan.stages}
    with suppress(UserError):  # a damaged file is set aside as well
        stages |= {stage["name"] for stage in checkpoint.load(path)["curriculum"]["state"]["stages"]}
    kept = _free_name(path)
    statistics = [file for file in folder.glob(f"{path.stem}_*_stats.json") if _model_of(file) == path.stem]
    settings = folder / f"{path.stem}_settings.json"
    for file in [*statistics, *([settings] if settings.exists() else [])]:
        file.rename(make_folder(folder / kept.stem, "folder of old statistics") / file.name)
    return checkpoint.set_aside(path, [NAME, *(name for stage in stages for name in (stage, f"{stage}.{NAME}"))])


def _files(path: Path, stages: list[str]) -> list[Path]:
    """List the checkpoints that a run of these stages writes, those that exist."""
    names = [path, best_file(path), *(name for stage in stages for name in (checkpoint.stage_file(path, stage), best_file(path, stage)))]
    return [name for name in names if name.exists()]


def _free_name(path: Path) -> Path:
    """Give NAME.old-1.lmp, or the first number that is free."""
    names = (path.with_name(f"{path.stem}.old-{number}{path.suffix}") for number in range(1, 1_000_000))
    return next(name for name in names if not name.exists())


def _model_of(statistics: Path) -> Any:
    """Say which model a statistics file is of; None when it cannot be read."""
    try:
        return json.loads(statistics.read_text(encoding="utf-8")).get("model")
    except (OSError, ValueError, AttributeError):
        return None
