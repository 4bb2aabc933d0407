"""Saving behind the training: a copy of the state is taken between two steps and written by a thread.  Engine floor."""
from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

# About a tenth of a core where all are busy (sched(7)).
_NICENESS = 10
_PLAIN = {int, float, str, bool, type(None)}


class Copier:
    """Copies nested values; the tensors of a copy are buffers on the CPU, which the next copy uses again."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def __call__(self, value: Any) -> Any:
        """Copy values, so that nothing that happens to the originals can be seen in the copy.

        :param value: dicts, lists, objects, plain values, and tensors on any device; two that share memory share it in the copy.
        :return: the copy; the one before is overwritten.
        """
        seen: dict[tuple[Any, ...], torch.Tensor] = {}
        result = self._copy(value, "", seen)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # the copies into pinned memory run beside each other
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
        key = (value.data_ptr(), value.dtype, value.shape, value.stride(), value.device) if value.numel() else (where,)
        if key not in seen:
            buffer = self._buffers.get(where)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype or buffer.stride() != value.stride():
                buffer = self._buffers[where] = torch.empty_like(value, device="cpu", pin_memory=value.device.type == "cuda", requires_grad=False)
            seen[key] = buffer.copy_(value.detach(), non_blocking=value.device.type == "cuda")
        return seen[key]


class Saver:
    """Writes one state at a time; who wants to write the next waits for the one before."""

    def __init__(self) -> None:
        self._copier = Copier()
        self._idle = threading.Event()  # not Thread.join: in Python 3.11 a signal that raises in it makes the thread count as ended
        self._idle.set()
        self._result = True
        self.failed = 0  # saves in a row up to here
        self._error: BaseException | None = None
        self._cancel = False

    @property
    def busy(self) -> bool:
        """Whether a state is being written."""
        return not self._idle.is_set()

    def copy(self, value: Any) -> Any:
        """Copy values to be written: as soon as those of the copy before have been."""
        self.wait()
        return self._copier(value)

    def start(self, write: Callable[[Callable[[], bool]], bool]) -> None:
        """Write in the background.

        :param write: does it; is given a function that says whether to give up, and returns whether the state has been written.
        :raises BaseException: what the write before raised.
        """
        self.wait()
        self._idle.clear()
        try:
            threading.Thread(target=self._run_beside, args=(write,), name="lmplay-save").start()
        except RuntimeError:  # there can be no more threads
            self._run(write)

    def wait(self) -> bool:
        """Wait until nothing is being written.

        :return: whether the last state has been written.
        :raises BaseException: what its writing raised.
        """
        self._idle.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result

    def close(self, give_up: bool) -> None:
        """End the writing.

        :param give_up: leave the state that is being written half done (it has no name yet), instead of waiting for it.
        """
        self._cancel = give_up
        try:
            self._idle.wait()
        except BaseException:  # a request to end at once
            self._cancel = True
            raise

    def _run_beside(self, write: Callable[[Callable[[], bool]], bool]) -> None:
        """Do the writing in a thread that lets the steps have the cores first."""
        if sys.platform == "linux":  # where a thread has a niceness of its own; while the training waits, it has all cores
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        self._run(write)

    def _run(self, write: Callable[[Callable[[], bool]], bool]) -> None:
        """Do the writing."""
        try:
            self._result = write(lambda: self._cancel)
            self.failed = 0 if self._result else self.failed + 1
        except BaseException as error:
            self._error = error
        finally:
            self._idle.set()
