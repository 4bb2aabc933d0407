"""The .lmp file: one dictionary of plain values and tensors, whole or absent.  Engine floor."""
from __future__ import annotations

import errno
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch

from .. import __version__
from ..component import Component
from ..errors import UserError
from ..files import link_atomic, write_atomic

FORMAT = 1
COMPONENTS = ("curriculum", "model", "runner", "optimizers", "lr_schedulers")


def save(path: Path, components: Sequence[Component], stage: str | None) -> None:
    """Write a checkpoint: a temporary file, synced, renamed; then the stage's name for the same file.

    :param path: NAME.lmp, the newest state.
    :param components: the five.
    :param stage: the stage whose newest state this is: NAME.STAGE.lmp.
    :raises OSError: when it cannot be written; the file that was there is untouched.
    """
    write(path, content_of(components))
    if stage is not None:
        link_atomic(path, stage_file(path, stage))


def content_of(components: Sequence[Component]) -> dict[str, Any]:
    """Give what a file holds of components; the tensors are theirs, not copies."""
    content: dict[str, Any] = {"format": FORMAT, "versions": versions()}
    return content | {component.name: {"state_args": component.state_args(), "state": component.state()} for component in components}


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint file; OSError when it cannot be written, the file that was there is then untouched."""
    write_atomic(path, lambda file: _write(content, file))


def versions() -> dict[str, str]:
    """Say what writes a checkpoint."""
    return {"lmplay": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def save_weights(path: Path, model: dict[str, Any]) -> None:
    """Write the model alone: neither optimizer nor history.

    :param path: the file.
    :param model: the model component, as a checkpoint has it.
    :raises OSError: when it cannot be written.
    """
    write(path, {"format": FORMAT, "versions": versions(), "model": model})


def load(path: Path, parts: Sequence[str] = COMPONENTS) -> dict[str, Any]:
    """Read a checkpoint; nothing in it is executed.

    :param path: the file.
    :param parts: the components that must be in it.
    :return: its content, tensors on the CPU.
    :raises UserError: when it cannot be read, is damaged, no checkpoint of ours, or of a version that is not known.
    """
    keep = "It is left as it is; choose another --model, or --reset-history to start anew beside it."
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"model {path}: cannot be read ({error.strerror or error}).") from None
    except Exception as error:  # damaged bytes fail in any way at all
        raise UserError(f"model {path}: damaged, or not a checkpoint of lmplay ({type(error).__name__}). {keep}") from None
    if not isinstance(content, dict) or "format" not in content:
        raise UserError(f"model {path}: not a checkpoint of lmplay. {keep}")
    if content["format"] == FORMAT and set(content) == {"format", "versions", "model"} and len(parts) > 1:
        raise UserError(f"model {path}: holds weights only, so no run can go on from it; --initial-model {path} starts a new one with them.")
    if content["format"] != FORMAT or not all(name in content for name in parts):
        raise UserError(f"model {path}: has format {content['format']}, and this lmplay ({__version__}) reads format {FORMAT}. {keep}")
    return content


def _write(content: dict[str, Any], file: IO[bytes]) -> None:
    """Write the content; a disk that is full is an OSError, also where torch's writer makes something else of it."""
    try:
        torch.save(content, file)
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        raise cause or OSError(errno.EIO, str(error).splitlines()[0]) from error


def stage_file(path: Path, stage: str) -> Path:
    """Name the file that keeps the newest state within a stage."""
    return path.with_name(f"{path.stem}.{stage}{path.suffix}")


def set_aside(path: Path, stages: Sequence[str]) -> Path:
    """Give a model file and its stage files other names, so that a new run can have theirs.

    :param path: NAME.lmp, which exists.
    :param stages: the stages of which there may be files.
    :return: the new name, NAME.old-1.lmp or the first number that is free.
    """
    number = next(n for n in range(1, 1_000_000) if not path.with_name(f"{path.stem}.old-{n}{path.suffix}").exists())
    new = path.with_name(f"{path.stem}.old-{number}{path.suffix}")
    for stage in stages:
        if stage_file(path, stage).exists():
            stage_file(path, stage).rename(stage_file(new, stage))
    path.rename(new)
    return new
