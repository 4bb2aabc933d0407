"""Weights: whether those of a file are a model's, and `--save-weights-only`: a file of the model alone, to start another run from or to use elsewhere."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from ..files import check_folder
from ..plan.settings import Settings
from .format import FORMAT, versions, write


def check_target(settings: Settings, path: Path) -> None:
    """Check before training that the file can be written, and is not the model file `path`; raises UserError when not."""
    target = _target(settings)
    if target is not None:
        if target.absolute() == path.absolute() or target.is_dir():
            raise UserError(f"--save-weights-only {target}: is {'a folder' if target.is_dir() else 'the model file itself'}; give another file.")
        check_folder(target.parent, "folder of --save-weights-only")


def save_weights(settings: Settings, model: dict[str, Any]) -> Path | None:
    """Write the file, if `--save-weights-only` is given, and return it; raises UserError when it cannot be written.

    :param model: the model component, as in a checkpoint.
    """
    target = _target(settings)
    if target is not None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write(target, {"format": FORMAT, "versions": versions(), "model": model})
        except OSError as error:
            raise UserError(f"--save-weights-only {target}: cannot be written ({error.strerror or error}); the checkpoint is whole.") from None
    return target


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
    return Path(settings.save_weights_only).expanduser() if settings.save_weights_only is not None else None
