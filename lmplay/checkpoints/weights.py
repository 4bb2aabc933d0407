"""`--save-weights-only`: a file of the model alone, to start another run from or to use elsewhere."""
from __future__ import annotations

from pathlib import Path
from typing import Any

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


def _target(settings: Settings) -> Path | None:
    """Return the file of `--save-weights-only`."""
    return settings.file(settings.save_weights_only) if settings.save_weights_only is not None else None
