"""The model as it was at the start of a stage, for objectives that ask it about texts which are written later.  Engine floor.

Its weights are kept in a file that is named by them, so that a run which was stopped in the stage finds them again, and knows that they are whole.
"""
from __future__ import annotations

import copy
import pickle
from hashlib import blake2b
from pathlib import Path
from zipfile import BadZipFile

import torch
from torch import nn

from ..checkpoints.base import hash_weights
from ..device.model import DeviceModel
from ..errors import UserError
from ..files import write_atomic
from .reference import FOLDER, anew
from .run import OpenStage, Run


def find_model(run: Run, stage: OpenStage) -> DeviceModel:
    """Give the model at the start of the stage: the run's own, copied and kept in a file, or the one from the file.

    :raises UserError: when the file is missing or damaged and the model has been trained since, and when it cannot be written.
    """
    module = copy.deepcopy(run.device_model.raw).requires_grad_(False).eval()
    folder = run.out_dir / FOLDER
    if stage.state.position is None or stage.state.reference is None:  # nothing has been trained in this stage
        stage.state.reference = _name(module)
        _write(run, stage, folder / f"{stage.state.reference}.pt", module)
    else:
        path = folder / f"{stage.state.reference}.pt"
        if wrong := _read(path, module, stage.state.reference):
            raise UserError(f"stage '{stage.stage.name}': {path} {wrong}, the model at the start of the stage, and it has been trained since. Bring the file "
                            f"back, or {anew(run, stage)}.")
    return DeviceModel(module, module, run.runtime)


def _write(run: Run, stage: OpenStage, path: Path, module: nn.Module) -> None:
    """Keep the weights, unless they are kept already."""
    if path.exists() and not _read(path, copy.deepcopy(module), path.stem):
        return
    run.report.say(f"stage '{stage.stage.name}': the model as it is now is kept in {path}, to be compared with")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, lambda file: torch.save(module.state_dict(), file))
    except OSError as error:
        raise UserError(f"{path}: the model at the start of stage '{stage.stage.name}' could not be written ({error.strerror or error}); the same command goes "
                        "on with it.") from error


def _read(path: Path, module: nn.Module, name: str) -> str:
    """Give a module the weights of a file; returns what is wrong with it, else the empty text."""
    try:
        module.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    except FileNotFoundError:
        return "is not there"
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError, BadZipFile, TypeError, AttributeError):
        return "is damaged"
    return "" if _name(module) == name else "is damaged"


def _name(module: nn.Module) -> str:
    """Hash the weights."""
    said = blake2b(digest_size=16)
    hash_weights(module.state_dict(), said.update)
    return said.hexdigest()
