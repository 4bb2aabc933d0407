"""Finding the trackers and callbacks that were asked for.  Stats floor."""
from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ..errors import UserError, nearest
from .background import Background
from .callback import Callback, Callbacks, Naming, Tracker

# Name, class, and the package that it needs, which is also the name of our extra.
TRACKERS = {"csv": ("csv_file:CsvTracker", None), "tensorboard": ("tensorboard:TensorBoardTracker", "tensorboard"),
            "wandb": ("wandb:WandbTracker", "wandb"), "mlflow": ("mlflow:MlflowTracker", "mlflow")}


def open_callbacks(track: str | None, callback: str | None, say: Callable[[str], None], naming: Naming | None = None) -> Callbacks:
    """Make the trackers and callbacks of a run.

    :param track: names of trackers, separated by commas (`--track`).
    :param callback: ``module:Class`` of callbacks, separated by commas (`--callback`).
    :param say: warns the user when one is given up.
    :param naming: what the run is called in trackers.
    :return: all of them as one.
    :raises UserError: naming all that cannot be made.
    """
    members: dict[str, Callback] = {}
    faults: list[str] = []
    makers: tuple[tuple[str | None, Callable[[str], Callback]], ...] = ((track, lambda name: Background(name, _tracker(name, naming or Naming()), say)),
                                                                           (callback, _imported))
    for names, make in makers:
        for name in listed(names):
            try:
                members[name] = make(name)
            except UserError as error:
                faults += error.faults
    if faults:
        raise UserError(*faults)
    return Callbacks(members, say)


def listed(names: str | None) -> list[str]:
    """Split a list of names, each once."""
    return list(dict.fromkeys(name.strip() for name in (names or "").split(",") if name.strip()))


def _tracker(name: str, naming: Naming) -> Callback:
    """Make one of our trackers."""
    if name not in TRACKERS:
        raise UserError(f"--track {name}: there is no such tracker.{nearest(name, TRACKERS)} There are: {', '.join(TRACKERS)}.")
    target, package = TRACKERS[name]
    if package is not None and find_spec(package) is None:
        raise UserError(f"--track {name}: the package {package} is not installed; pip install 'lmplay[{package}]'.")
    module, _, kind = target.partition(":")
    made: Callback = getattr(importlib.import_module(f".{module}", __package__), kind)()
    if isinstance(made, Tracker):
        made.naming = naming
    return made


def _imported(name: str) -> Callback:
    """Make a user's callback."""
    module, colon, kind = name.partition(":")
    if not colon or not module or not kind:
        raise UserError(f"--callback {name}: allowed is module:Class, such as my_callbacks:Alarm.")
    if os.getcwd() not in sys.path:  # the command lmp_trainer does not search it by itself
        sys.path.append(os.getcwd())
    try:
        found: Any = getattr(importlib.import_module(module), kind)
        if isinstance(found, type) and issubclass(found, Callback):  # anything else is not called: who knows what it does
            return found()
    except Exception as error:  # a user's module may raise anything
        raise UserError(f"--callback {name}: cannot be made ({type(error).__name__}: {error}); is its folder on PYTHONPATH?") from error
    raise UserError(f"--callback {name}: is not a lmplay.track.callback.Callback; make it a subclass.")
