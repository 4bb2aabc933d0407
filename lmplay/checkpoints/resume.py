"""Which state a run resumes from, and which files are renamed for it: none is ever destroyed."""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import link_atomic, make_folder
from ..plan.schema import Plan
from ..plan.settings import Settings
from . import rotation
from .best import best_file, best_names
from .format import Damaged, load
from .rotation import Found


def choose_state(settings: Settings, path: Path, stages: Sequence[str]) -> Found | None:
    """Choose the state that a run resumes from, without changing anything.

    :param path: the model file.
    :param stages: names of the plan's stages.
    :return: the checkpoint of `--resume`, by default the newest whole one; None for a new run.
    :raises UserError: when the checkpoint of `--resume` does not exist, or all are damaged.
    """
    best = best_file(path)
    if settings.resume == "latest":
        try:
            return None if settings.reset_history else rotation.find(path, stages)
        except Damaged as error:
            raise UserError(*error.faults, *([f"model {best}: is there too; --resume best goes on from it."] if best.exists() else [])) from None
    chosen = best if settings.resume == "best" else settings.found(settings.resume)
    if not chosen.is_file():
        hint = "it is written with the first save after a validation" if settings.resume == "best" else "give latest, best or a checkpoint file"
        raise UserError(f"--resume {settings.resume}: there is no file {chosen}; {hint}.")
    if path.exists() and path.samefile(chosen):
        chosen = path
    try:
        return Found(chosen, load(chosen))
    except Damaged as error:
        raise UserError(f"--resume {settings.resume}: {error.faults[0].split('. ')[0]}. It is left as it is; without --resume the run goes on from its "
                        "newest state.") from None


def adopt(settings: Settings, path: Path, found: Found | None, to_come: list[str], say: Callable[[str], None]) -> None:
    """Make the state that the run resumes from the newest one; every file that the run would replace is kept under another name.

    :param found: the result of :func:`choose_state`.
    :param to_come: names of the stages that are not done in that state.
    :param say: shows a line to the user.
    """
    if settings.resume == "latest":
        rotation.recover(path, found, Path(settings.out_dir).expanduser(), say)
    elif found is not None and found.path != path:
        kept = _step_back(path, found.path, to_come)
        say(f"goes on from {found.path}" + (f"; kept the newest state as {kept}" if kept else ""))


def set_history_aside(path: Path, folder: Path, plan: Plan) -> Path | None:
    """Rename a model's files to make way for a new run of a plan, and move its statistics in `folder` into a folder of the new name.

    :return: the new name of the model file; None where there is no file.
    """
    stages = {stage.name for stage in plan.stages}
    with suppress(UserError):  # a damaged file is renamed as well
        stages |= {stage["name"] for stage in load(path)["curriculum"]["state"]["stages"]}
    names = [*stages, *best_names(sorted(stages))]
    if not rotation.existing(path, names):
        return None
    kept = rotation.free_name(path, "old")
    statistics = [file for file in folder.glob(f"{path.stem}_*_stats.json") if _model_of(file) == path.stem]
    others = [folder / f"{path.stem}_{rest}" for rest in ("settings.json", "samples.jsonl", "train.csv", "validate.csv")]
    for file in [*statistics, *(other for other in others if other.exists())]:
        file.rename(make_folder(folder / kept.stem, "folder of old statistics") / file.name)
    return rotation.set_aside(path, names)


def _step_back(path: Path, source: Path, to_come: list[str]) -> Path | None:
    """Make an earlier state the newest, and return the new name of the newest one before, if there was one.

    The file of the earlier state is not changed, and the model file is whole at every instant.
    """
    kept = None
    if path.exists():
        kept = rotation.free_name(path, "old")
        for file in rotation.existing(path, [*to_come, *best_names(to_come)]):
            link_atomic(file, kept.with_name(kept.stem + file.name.removeprefix(path.stem)))
    link_atomic(source, path)
    for older in rotation.previous(path).values():  # later than the state that the run resumes from; they are kept under their new names
        if kept is not None and not older.samefile(source):
            older.unlink()
    return kept


def _model_of(statistics: Path) -> Any:
    """Read which model a statistics file belongs to; None when it cannot be read."""
    try:
        return json.loads(statistics.read_text(encoding="utf-8")).get("model")
    except (OSError, ValueError, AttributeError):
        return None
