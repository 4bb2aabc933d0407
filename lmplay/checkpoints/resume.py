"""Which state a run resumes from, and which files are renamed for it: none is ever destroyed."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from ..errors import UserError
from ..files import identity, is_state, link_atomic, make_folder, remove, sync_folder
from ..paths import expanded
from ..plan.schema import Plan
from ..plan.settings import Settings
from ..stats.writing import read_stats
from . import rotation
from .base import bring_base, finished_file, with_base
from .best import best_file, best_names
from .format import Damaged, Verified, load, read, stage_file
from .ownership import Owner, is_model, owner_of, refuse_as_newest, refuse_others
from .rotation import Found


def choose_state(settings: Settings, path: Path, stages: Sequence[str], verified: Verified | None = None) -> Found | None:
    """Choose the state that a run resumes from, without changing anything.

    :param path: the model file.
    :param stages: names of the plan's stages.
    :param verified: tells what a verification of a state has found, where it has been done; None = it is done here.
    :return: the checkpoint of `--resume`, by default the newest whole one; None for a new run.
    :raises UserError: when the checkpoint of `--resume` does not exist, all are damaged, or a file of another model or run would be taken or replaced.
    """
    found = _choose(settings, path, stages, verified)
    with suppress(Damaged):
        if path.exists() and (found is None or found.path != path):  # it will get another name
            refuse_as_newest(path, read(path, mmap=True, check=False))
    there = rotation.existing(path, [*stages, *best_names(stages)])
    files = [file for file in there if file != path and (found is None or identity(file) != identity(found.path))]
    refuse_others(path, files, found.content if found is not None else None, settings.reset_history or settings.resume != "latest")
    return found


def states_to_choose(settings: Settings, path: Path, stages: Sequence[str]) -> list[Path]:
    """List the states of which :func:`choose_state` takes the first that is whole."""
    if settings.resume != "latest":
        return [chosen] if is_state(chosen := _asked_for(settings, path)) else []
    found: dict[tuple[int, int], Path] = {}
    for state in [] if settings.reset_history else rotation.existing(path, stages):
        found.setdefault(identity(state), state)  # links to one state are verified once
    return [*found.values()]


def _asked_for(settings: Settings, path: Path) -> Path:
    """Give the state that `--resume` names."""
    chosen = best_file(path) if settings.resume == "best" else settings.found(settings.resume)
    return path if path.exists() and chosen.exists() and identity(path) == identity(chosen) else chosen


def _choose(settings: Settings, path: Path, stages: Sequence[str], verified: Verified | None) -> Found | None:
    """Choose the state, see :func:`choose_state`."""
    best = best_file(path)
    if settings.resume == "latest":
        try:
            return None if settings.reset_history else rotation.find(path, stages, settings.divides_model, verified)
        except Damaged as error:
            raise UserError(*error.faults, *([f"model {best}: is there too; --resume best continues from it."] if best.exists() else [])) from None
    chosen = _asked_for(settings, path)
    if not is_state(chosen):
        hint = "it is written with the first save after a validation" if settings.resume == "best" else "give latest, best or a checkpoint file"
        raise UserError(f"--resume {settings.resume}: there is no file {chosen}; {hint}.")
    try:
        return Found(chosen, with_base(chosen, load(chosen, mmap=settings.divides_model, verified=verified), verified))
    except Damaged as error:
        raise UserError(f"--resume {settings.resume}: {error.faults[0].split('. ')[0]}. It is left as it is; without --resume the run continues from its "
                        "newest state.") from None


def adopt(settings: Settings, path: Path, found: Found | None, to_come: list[str], say: Callable[[str], None]) -> None:
    """Make the state that the run resumes from the newest one; every file that the run would replace is kept under another name.

    :param found: the result of :func:`choose_state`.
    :param to_come: names of the stages that are not done in that state.
    :param say: shows a line to the user.
    """
    if found is not None:
        bring_base(path, found.content, found.path)
    if settings.resume == "latest":
        rotation.recover(path, found, expanded(settings.out_dir), say)
        if found is None and (kept := _set_best_aside(path, to_come)):
            say(f"kept the best state of a run whose newest state is gone as {kept}")
    elif found is not None and found.path != path:
        kept = _step_back(path, found, to_come)
        say(f"continues from {found.path}" + (f"; kept the newest state as {kept}" if kept else ""))


def set_history_aside(path: Path, folder: Path, plan: Plan) -> Path | None:
    """Rename a model's files to make way for a new run of a plan, and move its statistics in `folder` into a folder of the new name.

    :return: the new name of the model file; None where there is no file.
    """
    stages = {stage.name for stage in plan.stages}
    with suppress(UserError):  # a damaged file is renamed as well
        stages |= {stage["name"] for stage in load(path, mmap=True)["curriculum"]["state"]["stages"]}
    names = [name for name in (*stages, *best_names(sorted(stages))) if not is_model(stage_file(path, name))]
    if not rotation.existing(path, names):
        return None
    kept = rotation.free_name(path, "old")
    statistics = [file for file in folder.glob(f"{path.stem}_*_stats.json") if read_stats(file).get("model") == path.stem]
    others = [folder / f"{path.stem}_{rest}" for rest in ("settings.json", "samples.jsonl", "train.csv", "validate.csv")]
    moved = [*statistics, *(other for other in others if other.exists())]
    if moved:
        old = make_folder(folder / kept.stem, "folder of old statistics")
        for file in moved:
            file.rename(old / file.name)
        sync_folder(old)
    _set_adapters_aside(path, kept, names)
    return rotation.set_aside(path, names)


def _set_adapters_aside(path: Path, kept: Path, stages: Iterable[str]) -> None:
    """Rename the adapters that stages have left, for a model file that is renamed to `kept`."""
    for stage in stages:
        if (finished := finished_file(path, stage)).exists():
            finished.rename(finished_file(kept, stage))


def _set_best_aside(path: Path, stages: list[str]) -> Path | None:
    """Rename the best states that a new run finds; return the new name of the first. A run that was killed in its first save leaves some, too."""
    new = rotation.free_name(path, "old")
    _set_adapters_aside(path, new, stages)
    there = [file for name in best_names(stages) if (file := stage_file(path, name)).exists()]
    kept = [file.rename(new.with_name(new.stem + file.name.removeprefix(path.stem))) for file in there]
    return kept[0] if kept else None


def _step_back(path: Path, found: Found, to_come: list[str]) -> Path | None:
    """Make an earlier state the newest, and return the new name of the newest one before, if there was one.

    The file of the earlier state is not changed, and the model file is whole at every instant.
    """
    same_run = _is_of_run(path, owner_of(found.content))
    stages = to_come if same_run else list(dict.fromkeys([*to_come, *(stage["name"] for stage in found.content["curriculum"]["state"]["stages"])]))
    names = [name for name in (*stages, *best_names(stages)) if not is_model(stage_file(path, name))]
    there = rotation.existing(path, names)
    kept = rotation.free_name(path, "old")
    for file in there:
        link_atomic(file, kept.with_name(kept.stem + file.name.removeprefix(path.stem)))
    link_atomic(found.path, path)
    _set_adapters_aside(path, kept, names)
    # Older states are later than the one that the run resumes from, and those of another run are none of this one's: they are kept under their new names.
    for file in (*rotation.previous(path).values(), *(() if same_run else there)):
        if file != path and file.exists() and identity(file) != identity(found.path):
            remove(file)
    return kept if there else None


def _is_of_run(path: Path, owner: Owner | None) -> bool:
    """Tell whether the model file is of a run, as far as both say where they come from; a damaged one says nothing."""
    try:
        there = owner_of(read(path, mmap=True, check=False))
    except UserError:
        return not path.exists()
    return there is None or owner is None or there.run == owner.run
