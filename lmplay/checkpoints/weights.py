"""`--save-weights-only`: the model alone, for those who start from it or use it elsewhere.  Engine floor."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import check_folder
from ..plan.settings import Settings
from . import format as checkpoint


def check_target(settings: Settings, path: Path) -> None:
    """See, before training, that the file can be written.

    :param settings: the run's.
    :param path: the model file, which it must not be.
    :raises UserError: when it cannot.
    """
    target = _target(settings)
    if target is not None:
        if target.absolute() == path.absolute() or target.is_dir():
            raise UserError(f"--save-weights-only {target}: is {'a folder' if target.is_dir() else 'the model file itself'}; give another file.")
        check_folder(target.parent, "folder of --save-weights-only")


def save_weights(settings: Settings, model: dict[str, Any]) -> Path | None:
    """Write the file, if it is asked for.

    :param settings: the run's.
    :param model: the model component, as a checkpoint has it.
    :return: the file; None when it is not asked for.
    :raises UserError: when it cannot be written.
    """
    target = _target(settings)
    if target is not None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.save_weights(target, model)
        except OSError as error:
            raise UserError(f"--save-weights-only {target}: cannot be written ({error.strerror or error}); the checkpoint is whole.") from None
    return target


def _target(settings: Settings) -> Path | None:
    """Give the file that is asked for."""
    return Path(settings.save_weights_only).expanduser() if settings.save_weights_only is not None else None
