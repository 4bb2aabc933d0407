"""Saving: the state is copied between two steps, and the copy is written by a thread while training goes on.

States are files, or folders of shards that all ranks write together.
"""
from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..device.memory import is_out_of_memory, memory_left
from . import rotation
from .best import best_file, write_best
from .copier import Collect, Copier, n_bytes, send
from .folder import Divided, File, divide
from .format import write_folder
from .hashed import Cancelled
from .staging import Staging
from .writers import Job, Writers

_NICENESS = 10  # a thread with it gets about a tenth of a core where all are busy (sched(7))

Record = TypeVar("Record")
T = TypeVar("T")


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

    def __init__(self, path: Path, keep: int, collect: Collect | None = None, writers: Writers | None = None, say: Callable[[str], None] = print):
        """
        :param path: NAME.lmp.
        :param keep: number of older states to keep.
        :param collect: gathers sharded tensors where states are files.
        :param writers: where states are folders.
        :param say: is given a line when a best state is lost.
        """
        self.failed = 0  # saves in a row
        self._path, self._keep, self._collect, self._writers, self._say = path, keep, collect, writers, say
        self._staging = Staging()
        self._copier = self._new_copier()  # of the newest state; its buffers are kept
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

    @property
    def writes_folders(self) -> bool:
        """Whether states are folders of shards."""
        return self._writers is not None

    def keep_best(self, content: dict[str, Any], stage: str | None, has_room: Callable[[int], bool] = lambda size: False) -> None:
        """Copy the best state so far, to be written with the next save: the disk is written to no more often than the run saves.

        Where the GPU has room for it the copy stays there until a save takes it: a better one may come before that.

        :param content: of all components; not changed, and not used afterwards.
        :param stage: the current stage, if it may end early: it has a best state of its own.
        :param has_room: tells whether that many bytes more fit on the device.
        :raises OSError: when there is no memory for the copy. The best state before is kept then; where states are folders none is, as other ranks may have
            copied their parts of this one.
        """
        mine, before, is_gathered = self._divided(content), self._best, self._collect is not None and self._writers is None
        if not is_gathered and (not before.is_on_cpu if before is not None else has_room(n_bytes(mine))):
            with suppress(torch.OutOfMemoryError):
                self._replace_best(Copier(None) if before is None else before.copier, mine, stage, is_on_cpu=False)
                return
        copier = before.copier if before is not None and before.is_on_cpu else self._new_copier()
        try:
            self._with_memory(lambda: self._replace_best(copier, mine, stage))
        except OSError:
            if self._writers is not None:
                self._best = self._unwritten_best = None  # also one whose save has failed: the parts of the others may be of this one
            raise

    @property
    def best_is_on_gpu(self) -> bool:
        """Whether the best state takes memory of the GPU."""
        return self._best is not None and not self._best.is_on_cpu

    def release_best(self) -> None:
        """Move the best state from the GPU to the CPU; raises OSError when there is no memory for it."""
        if (best := self._best) is not None:
            self._best = self._with_memory(lambda: self._on_cpu(best))

    def send(self, content: dict[str, Any]) -> None:
        """Send this rank's parts of what rank 0 copies at the same time; nothing to do where nothing is sharded. Not for folders of shards."""
        if self._collect is not None:
            send(content, self._collect, set())

    def copied(self, content: dict[str, Any]) -> dict[str, Any]:
        """Copy a content with whole tensors, into the memory that the copy of the newest state had, which is written before."""
        self._idle.wait()
        found, _ = self._copier((content, None))  # in the place that a state has beside its record: its tensors' memory is used again
        return dict(found)

    def write_folder(self, path: Path, content: dict[str, Any]) -> None:
        """Write a content as a folder of shards, each rank its own part, while training waits.

        :param path: not that of a state of the run.
        :raises OSError: on rank 0 when any rank could not write.
        """
        assert self._writers is not None
        self._idle.wait()
        jobs: list[Job] = []
        fault: OSError | None = None
        try:
            jobs = [(path, self._with_memory(lambda: self._copier((self._divided(content), None)))[0])]
        except OSError as error:
            fault = error
        try:
            files = self._writers.write(jobs, lambda: self._cancel, fault)
            for _, divided in jobs if files else ():
                write_folder(path, divided, files[path], None, lambda: self._cancel)
        finally:
            self._writers.clear([path])

    def save(self, content: dict[str, Any], stage: str, record: Record, before: Callable[[Record], None], saved: Callable[[Record, float], None],
             failed: Callable[[OSError], None]) -> None:
        """Copy the state when the save before is done, and write the copy in a thread, which also calls the three functions.

        Where there is no memory for a copy of the best state and one of the newest, the best one is written first, while training waits; where states are
        folders it is given up.

        :param content: of all components; not changed, and not used afterwards.
        :param stage: the current stage.
        :param record: what the functions need to know of the run at this moment; copied together with the content.
        :param before: called with the record before anything is written: writes the statistics.
        :param saved: called with the copied record and the seconds that it took, when all has been written.
        :param failed: called when the state cannot be copied, or the files cannot be written; those that were there are whole, and the next save tries again.
        :raises BaseException: what the save before has raised.
        """
        self.wait()
        try:
            copied, record = self._copy(content, record, lambda: self._write_best_alone(partial(before, record)))
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
            self._unwritten_best = None
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

    def _copy(self, content: dict[str, Any], record: Record, write_best: Callable[[], None] | None = None) -> tuple[dict[str, Any] | Divided, Record]:
        """Copy a state, or this rank's part of it; the best state is the next to be written.

        :param write_best: writes the best state now, where states are files.
        :raises OSError: when there is no memory for it, or the best state cannot be written.
        """
        if self._best is not None:
            self._unwritten_best = None  # this one is better
        if self._writers is not None or not self._is_short_of_memory(content):
            try:
                return self._copy_with_best(content, record)
            except OSError:
                if self._best is None and self._unwritten_best is None:
                    raise
        if self._writers is not None or write_best is None:
            self._best = self._unwritten_best = None
            if self._writers is not None and not self._writers.rank:
                self._say(f"WARNING: the best state is not written to {best_file(self._path)}: there is no memory for its copy and one of the newest state.")
        else:
            write_best()
        return self._copy_with_best(content, record)

    def _copy_with_best(self, content: dict[str, Any], record: Record) -> tuple[dict[str, Any] | Divided, Record]:
        """Copy a state, and bring the best one to the CPU."""
        copied: tuple[dict[str, Any] | Divided, Record] = self._with_memory(lambda: self._copier((self._divided(content), record)))
        if (best := self._best) is not None:
            self._unwritten_best, self._best = self._with_memory(lambda: self._on_cpu(best)), None
        return copied

    def _is_short_of_memory(self, content: dict[str, Any]) -> bool:
        """Tell whether there is a best state, and the system has no memory for the copies that are still to be made: Linux would end the process."""
        copies = (not self._copier.has_buffers) + self.best_is_on_gpu
        if not copies or (self._best is None and self._unwritten_best is None):
            return False
        left = memory_left(torch.device("cpu"))
        return left is not None and left < n_bytes(content) * copies

    def _write_best_alone(self, before: Callable[[], None]) -> None:
        """Write the best state while training waits, so that its memory is free again; raises OSError when that is not possible."""
        self._copier = self._new_copier()
        if (best := self._best) is not None:
            self._unwritten_best, self._best = self._with_memory(lambda: self._on_cpu(best)), None

        def write() -> None:
            before()
            self._write_best()

        self._start(write)
        self.wait()

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

    def _start(self, write: Callable[[], bool | None]) -> None:
        """Write in a thread; see :meth:`_run`."""
        self._idle.clear()
        try:
            threading.Thread(target=self._run, args=([write], True), name="lmplay-save").start()
        except RuntimeError:  # no more threads can be started
            self._run([write], in_thread=False)

    def wait(self) -> bool:
        """Wait for the running save, if there is one, and return whether the last save has written its state; raises what it has raised, once."""
        self._idle.wait()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its trace has this frame, and so they would keep each other, and the copy that was written, in memory
        return self._result

    def _with_memory(self, work: Callable[[], T]) -> T:
        """Do work that needs memory for a copy. Where there is none, it is done again when no state is being written and the newest state's buffers are free.

        Where rank 0 collects sharded weights any error is raised at once, as the others would wait.

        :raises OSError: when there is no memory then, either.
        """
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if (self._collect is not None and self._writers is None) or not is_out_of_memory(error):
                raise
        # here the error is gone, and with it what its frames held
        self._idle.wait()
        self._staging.drop()
        self._copier = self._new_copier()
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._staging.drop()
            raise OSError(f"the state cannot be copied: {str(error).partition(chr(10))[0] or type(error).__name__}") from error

    def _replace_best(self, copier: Copier, content: dict[str, Any] | Divided, stage: str | None, is_on_cpu: bool = True) -> None:
        """Copy a state as the best one; the one before is whole as long as there is no memory for it."""
        copy_it = copier.reserve(content)
        self._best = None  # it may be overwritten
        self._best = _Best(copy_it(), stage, copier, is_on_cpu)

    def _on_cpu(self, best: _Best) -> _Best:
        """Give the best state in buffers on the CPU."""
        if best.is_on_cpu:
            return best
        copier = self._new_copier()
        return _Best(copier(best.content), best.stage, copier)

    def _new_copier(self) -> Copier:
        """Make what copies to the CPU."""
        return Copier(self._staging, self._collect)

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
        if isinstance(content, Divided):
            self._write_folders(content, stage)
        else:
            self._write_best()
            rotation.save(self._path, content, stage, self._keep, lambda: self._cancel)

    def _write_best(self) -> None:
        """Write the best state, if there is a new one, and free its memory."""
        best = self._unwritten_best
        if best is not None:
            assert not isinstance(best.content, Divided)
            write_best(self._path, best.content, best.stage, lambda: self._cancel)
            self._unwritten_best = None

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
            elif best is not None:
                self._say(f"WARNING: the best state is not written to {path}: another rank had no memory for a copy of its part.")
            rotation.save(self._path, content.rest, stage, self._keep, lambda: self._cancel, writes[self._path])
            self._unwritten_best = None  # not before: the other ranks hear of the save as a whole
        finally:
            self._clear()

    def _jobs(self, content: dict[str, Any] | Divided) -> list[Job]:
        """List the states to write, in order: the best one, if there is a new one, and the newest."""
        best = [] if self._unwritten_best is None else [(best_file(self._path), self._unwritten_best.content)]
        return [(path, part) for path, part in (*best, (self._path, content)) if isinstance(part, Divided)]

    def _run(self, work: list[Callable[[], bool | None]], in_thread: bool) -> None:
        """Write, in a thread with a low priority, so that the steps come first; keep the result for :meth:`wait`, None = it is not that of a save."""
        try:
            if in_thread and sys.platform == "linux":  # where a thread has a niceness of its own; while training waits for it, it has all cores
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
            result = work.pop()()  # nothing holds it, and the copy that it has, once it is done: whoever waits may need that memory
            if result is not None:
                self._result, self.failed = result, 0 if result else self.failed + 1
        except BaseException as error:
            self._error = error
        finally:
            self._idle.set()
