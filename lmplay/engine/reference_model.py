"""The model as it was at the start of a stage, for objectives that ask it about texts which are written later.  Engine floor.

Its weights are kept in a file that is named by them, so that a run which was stopped in the stage finds them again, and knows that they are whole.
"""
from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch

from ..checkpoints.base import identify
from ..device.model import DeviceModel
from ..errors import UserError
from ..files import write_atomic
from .reference import FOLDER, anew
from .run import OpenStage, Run


def find_model(run: Run, stage: OpenStage) -> DeviceModel:
    """Give the model at the start of the stage: the run's own, copied and kept in a file, or the one from the file.

    Where the stage trains an adapter it is the run's own model, which is to be asked with the adapter off: the weights below it stay as they are.

    :raises UserError: when the file is missing or damaged and the model has been trained since, and when it cannot be written.
    """
    if stage.settings.adapter is not None:
        return run.device_model
    module = copy.deepcopy(run.device_model.raw).requires_grad_(False).eval()
    folder = run.out_dir / FOLDER
    if stage.state.position is None or stage.state.reference is None:  # nothing has been trained in this stage
        weights = module.state_dict()
        stage.state.reference = identify(weights)
        if run.is_main:
            _write(run, stage, folder / f"{stage.state.reference}.pt", weights)
    else:
        path = folder / f"{stage.state.reference}.pt"
        found = _read(path)
        if isinstance(found, str):
            raise UserError(f"stage '{stage.stage.name}': {path} {found}, the model at the start of the stage, and it has been trained since. Bring the file "
                            f"back, or {anew(run, stage)}.")
        module.load_state_dict(found)
    return DeviceModel(module, module, run.runtime)


def _write(run: Run, stage: OpenStage, path: Path, weights: dict[str, Any]) -> None:
    """Keep the weights, unless they are kept already."""
    if not isinstance(_read(path), str):
        return
    run.report.say(f"stage '{stage.stage.name}': the model as it is now is kept in {path}, to be compared with")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda file: torch.save(weights, file))
    except OSError as error:
        raise UserError(f"{path}: the model at the start of stage '{stage.stage.name}' could not be written ({error.strerror or error}); the same command goes "
                        "on with it.") from error


def _read(path: Path) -> dict[str, Any] | str:
    """Read the weights that a file is named by; what is wrong with it, as text, where they are not there."""
    try:
        found = torch.load(path, weights_only=True, map_location="cpu")
        whole = identify(found) == path.stem
    except FileNotFoundError:
        return "is not there"
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError, BadZipFile, TypeError, AttributeError):
        return "is damaged"
    return found if whole else "is damaged"
