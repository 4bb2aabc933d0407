"""The state with the lowest validation loss: kept in memory, and written with the next save.  Engine floor."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..component import Component
from ..files import link_atomic
from . import format as checkpoint

NAME = "best"


class BestState:
    """Holds a copy of the best state until it is written.

    A run that is killed before that goes on from the save before, finds the same best state again, and so leaves the same file.
    """

    def __init__(self) -> None:
        self._kept: tuple[dict[str, Any], str | None] | None = None
        self._unwritten: tuple[dict[str, Any], str | None] | None = None  # nobody but who writes touches it while that is done

    def keep(self, components: Sequence[Component], stage: str | None) -> None:
        """Copy the state: at each best validation, so that the disk is written to no more often than the run saves.

        :param components: whose state it is.
        :param stage: the stage at work, if it may end early: it has a best state of its own.
        """
        self._kept = _copy(checkpoint.content_of(components), {}), stage

    def hand_over(self) -> None:
        """Make what has been kept what the next save writes; to be called while none is being written."""
        if self._kept is not None:
            self._unwritten, self._kept = self._kept, None

    def write(self, path: Path, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Write what is not yet written, as NAME.best.lmp, and as NAME.STAGE.best.lmp too where its stage may end early.

        :param path: NAME.lmp.
        :param cancelled: True stops the writing.
        :raises OSError: when it cannot be written; the next save tries again.
        """
        if self._unwritten is not None:
            content, stage = self._unwritten
            checkpoint.write(best_file(path), content, cancelled=cancelled)
            if stage is not None:
                link_atomic(best_file(path), best_file(path, stage))
            self._unwritten = None


def best_file(path: Path, stage: str | None = None) -> Path:
    """Name the file of the best state: of the newest stage, or of a stage that may end early."""
    return checkpoint.stage_file(path, NAME if stage is None else f"{stage}.{NAME}")


def best_names(stages: Sequence[str]) -> list[str]:
    """Name the best states as stages are named, of stages that may all end early."""
    return [NAME, *(f"{stage}.{NAME}" for stage in stages)]


def _copy(value: Any, seen: dict[Any, torch.Tensor]) -> Any:
    """Copy plain values and tensors to the CPU; tensors that share their memory go on sharing it."""
    if isinstance(value, torch.Tensor):
        key = (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype) if value.numel() else id(value)
        if key not in seen:
            seen[key] = value.detach().to("cpu", copy=True)
        return seen[key]
    if isinstance(value, dict):
        return {key: _copy(entry, seen) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copy(entry, seen) for entry in value)
    return value
