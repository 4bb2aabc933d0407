"""The files of the state with the lowest validation loss: NAME.best.lmp, and NAME.STAGE.best.lmp for a stage that may end early."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..files import link_atomic
from .format import Write, stage_file, write

NAME = "best"


def write_best(path: Path, content: dict[str, Any], stage: str | None, cancelled: Callable[[], bool] = lambda: False,
               how: Write | None = None) -> None:
    """Write the best state, of all components, and link it as that of `stage`, the stage that it belongs to, if that one may end early.

    :param path: NAME.lmp.
    :param cancelled: called between chunks; True cancels the write.
    :param how: writes the state; None = as a file.
    :raises OSError: when the file cannot be written; the old one is whole then.
    """
    (how or write)(best_file(path), content, None, cancelled)
    if stage is not None:
        link_atomic(best_file(path), best_file(path, stage))


def best_file(path: Path, stage: str | None = None) -> Path:
    """Return the path of the best state: of the newest stage, or of a stage that may end early."""
    return stage_file(path, NAME if stage is None else f"{stage}.{NAME}")


def best_names(stages: Sequence[str]) -> list[str]:
    """Return the names of the best states, as stages are named; `stages` are those that may end early."""
    return [NAME, *(f"{stage}.{NAME}" for stage in stages)]
