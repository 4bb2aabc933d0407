"""Saving: the state is copied between two steps, and the copy is written by a thread while training goes on.

This is the only place where state is copied.  States are files, or folders of shards that all ranks write together.
"""
from __future__ import annotations

import copy
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..device.memory import is_out_of_memory
from ..modules.sharded import is_sharded
from . import rotation
from .best import best_file, write_best
from .folder import Divided, File, divide
from .format import write_folder
from .hashed import Cancelled
from .staging import Staging
from .writers import Job, Writers

_NICENESS = 10  # a thread with it gets about a tenth of a core where all are busy (sched(7))
_PLAIN = {int, float, str, bool, type(None)}

Record = TypeVar("Record")
Collect = Callable[[torch.Tensor, torch.Tensor | None], None]


class Copier:
    """Copies nested values; the tensors of the copy are buffers on the CPU, which the next copy reuses.

    Those of a GPU come by way of `staging`; without it they are copied to buffers where they are. Sharded tensors are whole in the copy: `collect` fills them.
    """

    def __init__(self, staging: Staging | None, collect: Collect | None = None):
        self._staging, self._collect = staging, collect
        self._buffers: dict[str, torch.Tensor] = {}
        self.is_slow_to_allocate = False  # memory on the CPU, for tensors of a GPU

    def __call__(self, value: Any) -> Any:
        """Copy dicts, lists, objects, plain values, and tensors on any device; the copy overwrites the one before.

        Tensors that share memory share it in the copy.
        """
        seen: dict[tuple[Any, ...], torch.Tensor] = {}
        result = self._copy(value, "", seen)
        if self._staging is not None:
            self._staging.finish()
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
        place = value.untyped_storage()._cdata, value.storage_offset()
        key = (place, value.dtype, value.shape, value.stride(), value.device) if value.numel() else (where,)
        if key not in seen:
            buffer, on_gpu = self._buffers.get(where), value.device.type == "cuda"
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype or buffer.stride() != value.stride():
                device = value.device if self._staging is None and on_gpu else torch.device("cpu")
                buffer = self._buffers[where] = torch.empty_like(value, device=device, requires_grad=False)
            if self._staging is not None and on_gpu:
                self.is_slow_to_allocate = True
                self._staging.copy(value, buffer)
            else:
                buffer.copy_(value.detach())
            seen[key] = buffer
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


def _send(value: Any, collect: Collect, seen: set[int]) -> None:
    """Send the parts of sharded tensors in nested values to the rank that copies them."""
    if is_sharded(value):
        if id(value) not in seen:
            seen.add(id(value))
            collect(value, None)
    elif isinstance(value, dict):
        for part in value.values():
            _send(part, collect, seen)


def _n_bytes(value: Any) -> int:
    """Count the bytes of the tensors in nested values."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, Divided):
        return _n_bytes([value.rest, *(part.rows for part in value.own.values())])
    return sum(map(_n_bytes, value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()))


@dataclass(frozen=True)
class _Best:
    """A copy of the best state, or of this rank's part of it, with the buffers that it is in: on the CPU, or where the state is."""

    content: dict[str, Any] | Divided
    stage: str | None
    copier: Copier
    is_on_cpu: bool = True


def _complete(divided: Divided, files: Mapping[str, File], path: Path, content: dict[str, Any], before_rename: Callable[[Path], None] | None,
              cancelled: Callable[[], bool]) -> None:
    """Make a folder of shards a state; a :data:`lmplay.checkpoints.format.Write`."""
    write_folder(path, divided, files, before_rename, cancelled)


class Saver:
    """Saves the state of a run to NAME.lmp and keeps `keep` older states, one save at a time: the next one waits for the one before.

    A save writes the statistics first, then the best state, then the checkpoint. A run that is killed in between repeats the steps since the checkpoint
    before, finds the same best state again, and so leaves the same files.

    With `writers` states are folders of shards: all ranks make the same calls, and each copies and writes its own part; what is said and decided is rank 0's.
    """

    def __init__(self, path: Path, keep: int, collect: Collect | None = None, writers: Writers | None = None):
        """
        :param path: NAME.lmp.
        :param keep: number of older states to keep.
        :param collect: gathers a sharded tensor, see :meth:`lmplay.device.ranks.Ranks.collect`; where states are files.
        :param writers: where states are folders.
        """
        self.failed = 0  # saves in a row
        self._path, self._keep, self._collect, self._writers = path, keep, collect, writers
        self._staging = Staging()
        self._copier = Copier(self._staging, collect)
        self._best: _Best | None = None  # the best state since the last save
        self._spare: Copier | None = None  # for the next one
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

    @property
    def writes_folders(self) -> bool:
        """Whether states are folders of shards."""
        return self._writers is not None

    def keep_best(self, content: dict[str, Any], stage: str | None, has_room: Callable[[int], bool] = lambda n_bytes: False) -> None:
        """Copy the best state so far, to be written with the next save: the disk is written to no more often than the run saves.

        Where the GPU has room for it the copy stays there until a save takes it: a better one may come before that.

        :param content: of all components; not changed, and not used afterwards.
        :param stage: the current stage, if it may end early: it has a best state of its own.
        :param has_room: tells whether the device has room for so many bytes more.
        :raises OSError: when there is no memory for the copy.
        """
        before, self._best = self._best, None  # what it was is overwritten
        mine, is_gathered = self._divided(content), self._collect is not None and self._writers is None
        if not is_gathered and (not before.is_on_cpu if before is not None else has_room(_n_bytes(mine))):
            copier = Copier(None) if before is None else before.copier
            with suppress(torch.OutOfMemoryError):
                self._best = _Best(copier(mine), stage, copier, is_on_cpu=False)
                return
            before = None
        with self._copying():
            copier = self._free_copier() if before is None else before.copier
            self._best = _Best(copier(mine), stage, copier)

    @property
    def best_is_on_gpu(self) -> bool:
        """Whether the best state takes memory of the GPU."""
        return self._best is not None and not self._best.is_on_cpu

    def release_best(self) -> None:
        """Move the best state from the GPU to the CPU; raises OSError when there is no memory for it."""
        if self._best is not None:
            with self._copying():
                self._best = self._on_cpu(self._best)

    def send(self, content: dict[str, Any]) -> None:
        """Send this rank's parts of what rank 0 copies at the same time; nothing to do where nothing is sharded. Not for folders of shards."""
        if self._collect is not None:
            _send(content, self._collect, set())

    def copied(self, content: dict[str, Any]) -> dict[str, Any]:
        """Copy a content once, with whole tensors."""
        found: dict[str, Any] = Copier(self._staging, self._collect)(content)
        return found

    def save(self, content: dict[str, Any], stage: str, record: Record, before: Callable[[Record], None], saved: Callable[[Record, float], None],
             failed: Callable[[OSError], None]) -> None:
        """Copy the state when the save before is done, and write the copy in a thread, which also calls the three functions.

        :param content: of all components; not changed, and not used afterwards.
        :param stage: the current stage.
        :param record: what the functions need to know of the run at this moment; copied together with the content.
        :param before: called with the copied record before anything is written: writes the statistics.
        :param saved: called with the copied record and the seconds that it took, when all has been written.
        :param failed: called when the state cannot be copied, or the files cannot be written; those that were there are whole, and the next save tries again.
        :raises BaseException: what the save before has raised.
        """
        self.wait()
        try:
            copied, record = self._copy(content, record)
        except OSError as error:
            if self._writers is not None:
                self._start(partial(self._refuse, error, failed))
                return
            self._result, self.failed = False, self.failed + 1
            failed(error)
            return

        def write() -> bool:
            started = time.monotonic()
            before(record)
            try:
                self._write(copied, stage)
            except Cancelled:
                return False
            except OSError as error:
                failed(error)
                return False
            saved(record, time.monotonic() - started)
            return True

        self._start(write)

    def save_part(self, content: dict[str, Any], written: bool) -> None:
        """Copy this rank's part of what rank 0 saves at the same time, and write it in a thread; where states are folders, on other ranks than rank 0.

        :param content: of the components that have a part.
        :param written: whether rank 0 has written the state before.
        :raises BaseException: what the save before has raised.
        """
        self.wait()
        if written:
            self._best_is_written()
        try:
            copied, _ = self._copy(content, None)
        except OSError as error:
            self._start(partial(self._refuse, error, lambda error: None))
            return

        def write() -> bool:
            assert self._writers is not None
            with suppress(OSError):  # rank 0 has gone, which ends the run
                self._writers.write(self._jobs(copied), lambda: self._cancel)
            return True

        self._start(write)

    def _copy(self, content: dict[str, Any], record: Record) -> tuple[dict[str, Any] | Divided, Record]:
        """Copy a state, or this rank's part of it; the best state is the next to be written. Raises OSError when there is no memory for it."""
        with self._copying():
            copied: tuple[dict[str, Any] | Divided, Record] = self._copier((self._divided(content), record))
            if self._best is not None:
                self._unwritten_best, self._best = self._on_cpu(self._best), None
        return copied

    def _divided(self, content: dict[str, Any]) -> dict[str, Any] | Divided:
        """Give what this rank writes of a state."""
        return content if self._writers is None else divide(content, self._writers.rank, self._writers.size)

    def _refuse(self, error: OSError, failed: Callable[[OSError], None]) -> bool:
        """Take part in a save of which this rank has no copy: it fails for all."""
        assert self._writers is not None
        try:
            self._writers.write([], lambda: self._cancel, error)
        except OSError as fault:
            failed(fault)
        finally:
            self._clear()
        return False

    def _clear(self) -> None:
        """Remove the folders that were not completed."""
        if self._writers is not None:
            self._writers.clear([best_file(self._path), self._path])

    def _start(self, write: Callable[[], bool]) -> None:
        """Write in a thread."""
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

    @contextmanager
    def _copying(self) -> Iterator[None]:
        """Raise an OSError where there is no memory for a copy; where rank 0 collects sharded weights the error, as the others would wait."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if (self._collect is not None and self._writers is None) or not is_out_of_memory(error):
                raise
            self._staging.drop()
            self._copier, self._spare = Copier(self._staging), None
            raise OSError(f"the state cannot be copied: {str(error).partition(chr(10))[0] or type(error).__name__}") from error

    def _on_cpu(self, best: _Best) -> _Best:
        """Give the best state in buffers on the CPU."""
        if best.is_on_cpu:
            return best
        copier = self._free_copier()
        return _Best(copier(best.content), best.stage, copier)

    def _free_copier(self) -> Copier:
        """Give a copier whose buffers nobody uses."""
        copier, self._spare = self._spare, None
        return copier or Copier(self._staging, self._collect)

    def close(self, give_up: bool) -> None:
        """Wait for the running save; `give_up` cancels it: the half-written file, which has a temporary name, is removed."""
        self._cancel = give_up
        try:
            self._idle.wait()
        except BaseException:  # a request to end at once
            self._cancel = True
            raise

    def _write(self, content: dict[str, Any] | Divided, stage: str) -> None:
        """Write the best state, if there is a new one, then the newest."""
        best = self._unwritten_best
        if isinstance(content, Divided):
            self._write_folders(content, stage)
        else:
            if best is not None:
                assert not isinstance(best.content, Divided)
                write_best(self._path, best.content, best.stage, lambda: self._cancel)
                self._best_is_written()
            rotation.save(self._path, content, stage, self._keep, lambda: self._cancel)

    def _best_is_written(self) -> None:
        """Forget the best state, and keep its buffers for the next one where that pays."""
        if self._unwritten_best is not None:
            copier, self._unwritten_best = self._unwritten_best.copier, None
            self._spare = copier if copier.is_slow_to_allocate else None

    def _write_folders(self, content: Divided, stage: str) -> None:
        """Write both with the other ranks."""
        assert self._writers is not None
        jobs, best = self._jobs(content), self._unwritten_best
        try:
            files = self._writers.write(jobs, lambda: self._cancel)
            writes = {path: partial(_complete, divided, files[path]) for path, divided in jobs if path in files}
            path = best_file(self._path)
            if best is not None and path in writes:
                write_best(self._path, jobs[0][1].rest, best.stage, lambda: self._cancel, writes[path])
            rotation.save(self._path, content.rest, stage, self._keep, lambda: self._cancel, writes[self._path])
            self._best_is_written()  # not before: the other ranks hear of the save as a whole
        finally:
            self._clear()

    def _jobs(self, content: dict[str, Any] | Divided) -> list[Job]:
        """List the states to write, in order: the best one, if there is a new one, and the newest."""
        best = [] if self._unwritten_best is None else [(best_file(self._path), self._unwritten_best.content)]
        return [(path, part) for path, part in (*best, (self._path, content)) if isinstance(part, Divided)]

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
