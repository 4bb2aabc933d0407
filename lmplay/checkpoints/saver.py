"""Saving: the state is copied between two steps, and the copy is written by a thread while training goes on.

This is the only place where state is copied.
"""
from __future__ import annotations

import copy
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..modules.sharded import is_sharded
from . import rotation
from .best import write_best
from .format import Cancelled

_NICENESS = 10  # a thread with it gets about a tenth of a core where all are busy (sched(7))
_PLAIN = {int, float, str, bool, type(None)}

Record = TypeVar("Record")
Collect = Callable[[torch.Tensor, torch.Tensor | None], None]


class Copier:
    """Copies nested values; the tensors of the copy are buffers on the CPU, which the next copy reuses.

    With `pinned`, copies of CUDA tensors are in pinned memory, which is several times as fast. Sharded tensors are whole in the copy: `collect` fills them.
    """

    def __init__(self, pinned: bool = True, collect: Collect | None = None):
        self._pinned, self._collect = pinned, collect
        self._buffers: dict[str, torch.Tensor] = {}
        self._devices: set[torch.device] = set()

    def __call__(self, value: Any) -> Any:
        """Copy dicts, lists, objects, plain values, and tensors on any device; the copy overwrites the one before.

        Tensors that share memory share it in the copy.
        """
        seen: dict[tuple[Any, ...], torch.Tensor] = {}
        result = self._copy(value, "", seen)
        for device in self._devices:
            torch.cuda.synchronize(device)  # the copies into pinned memory are asynchronous
        return result

    def _copy(self, value: Any, where: str, seen: dict[tuple[Any, ...], torch.Tensor]) -> Any:
        """Copy a value."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value, where, seen)
        if isinstance(value, (list, tuple)):
            if set(map(type, value)) <= _PLAIN:
                return value[:]
            return type(value)(self._copy(part, f"{where}.{number}", seen) for number, part in enumerate(value))
        new = copy.copy(value)
        parts = new if isinstance(new, dict) else getattr(new, "__dict__", {})
        for key, part in parts.items():
            parts[key] = self._copy(part, f"{where}.{key}", seen)
        return new

    def _copy_tensor(self, value: torch.Tensor, where: str, seen: dict[tuple[Any, ...], torch.Tensor]) -> torch.Tensor:
        """Copy a tensor into its buffer."""
        if is_sharded(value):
            return self._copy_sharded(value, where, seen)
        key = (value.data_ptr(), value.dtype, value.shape, value.stride(), value.device) if value.numel() else (where,)
        if key not in seen:
            buffer = self._buffers.get(where)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype or buffer.stride() != value.stride():
                buffer = self._buffers[where] = self._allocate(value)
            pinned = value.device.type == "cuda" and buffer.is_pinned()
            if pinned:
                self._devices.add(value.device)
            seen[key] = buffer.copy_(value.detach(), non_blocking=pinned)
        return seen[key]

    def _copy_sharded(self, value: torch.Tensor, where: str, seen: dict[tuple[Any, ...], torch.Tensor]) -> torch.Tensor:
        """Collect a sharded tensor in its buffer; :func:`_send` meets the same ones in the same order."""
        key = ("sharded", id(value))
        if key not in seen:
            buffer = self._buffers.get(where)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                buffer = self._buffers[where] = torch.empty(value.shape, dtype=value.dtype)
            assert self._collect is not None
            self._collect(value, buffer)
            seen[key] = buffer
        return seen[key]

    def _allocate(self, value: torch.Tensor) -> torch.Tensor:
        """Make a buffer for a tensor; where no more memory can be pinned (in small containers, under WSL 2), in ordinary memory from there on."""
        if self._pinned and value.device.type == "cuda":
            try:
                return torch.empty_like(value, device="cpu", pin_memory=True, requires_grad=False)
            except RuntimeError:
                self._pinned = False
        return torch.empty_like(value, device="cpu", requires_grad=False)


def _send(value: Any, collect: Collect, seen: set[int]) -> None:
    """Send the parts of sharded tensors in nested values to the rank that copies them."""
    if is_sharded(value):
        if id(value) not in seen:
            seen.add(id(value))
            collect(value, None)
    elif isinstance(value, dict):
        for part in value.values():
            _send(part, collect, seen)


@dataclass(frozen=True)
class _Best:
    """A copy of the best state, with the buffers that it is in."""

    content: dict[str, Any]
    stage: str | None
    copier: Copier


class Saver:
    """Saves the state of a run to NAME.lmp and keeps `keep` older states, one save at a time: the next one waits for the one before.

    A save writes the statistics first, then the best state, then the checkpoint. A run that is killed in between repeats the steps since the checkpoint
    before, finds the same best state again, and so leaves the same files.
    """

    def __init__(self, path: Path, keep: int, collect: Collect | None = None):
        """
        :param path: NAME.lmp.
        :param keep: number of older states to keep.
        :param collect: gathers a sharded tensor, see :meth:`lmplay.device.ranks.Ranks.collect`.
        """
        self.failed = 0  # saves in a row
        self._path, self._keep, self._collect = path, keep, collect
        self._copier = Copier(collect=collect)
        self._best: _Best | None = None  # the best state since the last save
        self._unwritten_best: _Best | None = None  # used by the writing thread alone, while there is one
        self._idle = threading.Event()  # not Thread.join: in Python 3.11 a signal that raises in it makes the thread count as ended
        self._idle.set()
        self._result = True
        self._error: BaseException | None = None
        self._cancel = False

    @property
    def busy(self) -> bool:
        """Whether a state is being written."""
        return not self._idle.is_set()

    def keep_best(self, content: dict[str, Any], stage: str | None) -> None:
        """Copy the best state so far, to be written with the next save: the disk is written to no more often than the run saves.

        :param content: of all components; not changed, and not used afterwards.
        :param stage: the current stage, if it may end early: it has a best state of its own.
        """
        copier = Copier(pinned=False, collect=self._collect) if self._best is None else self._best.copier
        self._best = None  # what it was is overwritten
        self._best = _Best(copier(content), stage, copier)

    def send(self, content: dict[str, Any]) -> None:
        """Send this rank's parts of what rank 0 copies at the same time; nothing to do where nothing is sharded."""
        if self._collect is not None:
            _send(content, self._collect, set())

    def copied(self, content: dict[str, Any]) -> dict[str, Any]:
        """Copy a content once, with whole tensors."""
        found: dict[str, Any] = Copier(pinned=False, collect=self._collect)(content)
        return found

    def save(self, content: dict[str, Any], stage: str, record: Record, before: Callable[[Record], None], saved: Callable[[Record, float], None],
             failed: Callable[[OSError], None]) -> None:
        """Copy the state when the save before is done, and write the copy in a thread, which also calls the three functions.

        :param content: of all components; not changed, and not used afterwards.
        :param stage: the current stage.
        :param record: what the functions need to know of the run at this moment; copied together with the content.
        :param before: called with the copied record before anything is written: writes the statistics.
        :param saved: called with the copied record and the seconds that it took, when all has been written.
        :param failed: called when the files cannot be written; those that were there are whole, and the next save tries again.
        :raises BaseException: what the save before has raised.
        """
        self.wait()
        content, record = self._copier((content, record))
        if self._best is not None:
            self._unwritten_best, self._best = self._best, None

        def write() -> bool:
            started = time.monotonic()
            before(record)
            try:
                self._write(content, stage)
            except Cancelled:
                return False
            except OSError as error:
                failed(error)
                return False
            saved(record, time.monotonic() - started)
            return True

        self._idle.clear()
        try:
            threading.Thread(target=self._run, args=(write, True), name="lmplay-save").start()
        except RuntimeError:  # no more threads can be started
            self._run(write, in_thread=False)

    def wait(self) -> bool:
        """Wait for the running save, if there is one, and return whether the last save has written its state; raises what it has raised, once."""
        self._idle.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result

    def close(self, give_up: bool) -> None:
        """Wait for the running save; `give_up` cancels it: the half-written file, which has a temporary name, is removed."""
        self._cancel = give_up
        try:
            self._idle.wait()
        except BaseException:  # a request to end at once
            self._cancel = True
            raise

    def _write(self, content: dict[str, Any], stage: str) -> None:
        """Write the best state, if there is a new one, then the newest."""
        if self._unwritten_best is not None:
            write_best(self._path, self._unwritten_best.content, self._unwritten_best.stage, lambda: self._cancel)
            self._unwritten_best = None
        rotation.save(self._path, content, stage, self._keep, lambda: self._cancel)

    def _run(self, write: Callable[[], bool], in_thread: bool) -> None:
        """Write, in a thread with a low priority, so that the steps come first; keep the result for :meth:`wait`."""
        try:
            if in_thread and sys.platform == "linux":  # where a thread has a niceness of its own; while training waits for it, it has all cores
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
            self._result = write()
            self.failed = 0 if self._result else self.failed + 1
        except BaseException as error:
            self._error = error
        finally:
            self._idle.set()
