"""Weights: whether those of a file are a model's, and `--save-weights-only`: the model alone, to start another run from or to use elsewhere."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from ..exp.folding import for_use
from ..files import NotAFile, check_folder, check_is_state, make_folder
from ..optim.set import OptimizerSet
from ..plan.names import RESERVED_ENDING
from ..plan.settings import Settings
from .best import best_names
from .format import FORMAT, read, stage_file, versions, write, write_shards


def check_target(settings: Settings, path: Path, stages: Sequence[str], averaged: bool = False) -> None:
    """Check before training that the file can be written, and that it is no file of a run.

    :param path: the model file.
    :param stages: of the plan.
    :param averaged: whether there will be a second file, see :func:`save_weights`.
    :raises UserError: when it cannot, or is one.
    """
    target = _target(settings)
    if target is not None:
        for file in (target, _raw(target))[:1 + averaged]:
            _check(file, path, stages)


def _check(target: Path, path: Path, stages: Sequence[str]) -> None:
    """Check one of the files of :func:`check_target`."""
    try:
        check_is_state(target)
    except NotAFile as error:
        raise UserError(f"--save-weights-only {target}: {error.strerror}; give another one.") from None
    real, names = Path(os.path.realpath(target)), ("", *stages, *best_names(stages))
    ours = [Path(os.path.realpath(stage_file(path, name) if name else path)) for name in names]
    reserved = real.parent == ours[0].parent and RESERVED_ENDING.fullmatch(real.stem.removeprefix(f"{ours[0].stem}."))
    if real in ours or reserved or _holds_run(target):
        what = "the model file itself" if real == ours[0] else "a file of a run"
        raise UserError(f"--save-weights-only {target}: is {what}; give another file.")
    check_folder(target.parent, "folder of --save-weights-only")


def save_weights(settings: Settings, write: Callable[[Path], None], optimizers: OptimizerSet | None) -> Path | None:
    """Write the file, if `--save-weights-only` is given, and return it.

    :param write: writes the model's weights to a path, without what only training needs.
    :param optimizers: where they keep averages of the weights, the file has those, and another one, FILE_raw.lmp, the weights themselves.
    """
    target = _target(settings)
    if target is not None:
        with optimizers.averaged() if optimizers is not None else nullcontext(False) as is_averaged:
            write(target)
        if is_averaged:
            write(_raw(target))
    return target


def weights_content(model: dict[str, Any]) -> dict[str, Any]:
    """Give what a file of weights alone holds; `model` is the component, as in a checkpoint."""
    return {"format": FORMAT, "versions": versions(), "model": model}


def write_alone(target: Path, model: dict[str, Any], as_folder: bool = False) -> None:
    """Write the weights of a model, of which this process has all.

    :param model: the component; written to a file without what only training needs.
    :raises UserError: when they cannot be written.
    """
    make_folder_of(target)
    with refused_by_name(target):
        if as_folder:
            write_shards(target, weights_content(model), 1)
        else:
            write(target, weights_content(for_use(model)))


def make_folder_of(target: Path) -> Path:
    """Create the folder of a file of weights, and return it; raises UserError when it is not writable."""
    return make_folder(target.parent, "folder of --save-weights-only")


@contextmanager
def refused_by_name(target: Path) -> Iterator[None]:
    """Make a context manager around the writing of a file of weights; an OSError becomes a UserError that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"--save-weights-only {target}: cannot be written ({error.strerror or error}); the checkpoint is intact.") from None


def _raw(target: Path) -> Path:
    """Name the file of the weights themselves, beside that of their averages."""
    return target.with_stem(f"{target.stem}_raw")


def _holds_run(target: Path) -> bool:
    """Tell whether a file holds the state of a run, not weights alone."""
    try:
        return "runner" in read(target, mmap=True, check=False)
    except UserError:
        return False
def check_weights(own: Mapping[str, torch.Tensor], stored: Mapping[str, torch.Tensor], experiment: str) -> None:
    """Check that stored weights are those of a model, before memory is taken for it.

    :param own: the model's state; may be on "meta".
    :param stored: that of a file.
    :param experiment: the model's name, for messages.
    :raises UserError: with a line for each key that is missing, not the model's, or of another shape or kind.
    """
    faults = [f"model: '{key}' is missing in the file." for key in own if key not in stored]
    faults += [f"model: '{key}' is in the file and not in experiment {experiment}." for key in stored if key not in own]
    faults += [f"model: '{key}' is {list(stored[key].shape)} in the file and {list(own[key].shape)} in experiment {experiment}."
               for key in own if key in stored and stored[key].shape != own[key].shape]
    faults += [f"model: '{key}' is {stored[key].dtype} in the file and {own[key].dtype} in experiment {experiment}."
               for key in own if key in stored and stored[key].dtype.is_floating_point != own[key].dtype.is_floating_point]
    if faults:
        raise UserError(*faults)


def _target(settings: Settings) -> Path | None:
    """Return the file of `--save-weights-only`."""
    return settings.file(settings.save_weights_only) if settings.save_weights_only is not None else None
