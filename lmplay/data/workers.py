"""Processes that prepare samples, so that several cores share the tokenizer's work; the pieces come in the samples' order.  Data floor, no torch.

A process is this file, run by a plain interpreter: it imports nothing of the program that started it, and talks over its standard input and output.
It needs no locks, leaves no files, and ends when its input ends: at the latest when the program that started it ends, however that happens.
"""
from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count as count_up
from itertools import cycle
from queue import SimpleQueue
from typing import IO, Any, TypeVar

from ..errors import TrainingError
from .continuation import Piece, Prepare
from .prefetch import SIGNALS
from .samples import Sample

# Samples are sent to a process in chunks, so that sending costs little: at most this many samples, and no more once they have this many characters.
_CHUNK_SAMPLES, _CHUNK_CHARACTERS = 64, 200_000
# Chunks that each process has: one that it works on, and the next.
_CHUNKS_EACH = 2
_NO_SAMPLE = Sample("", "")
_T = TypeVar("_T")
# What a process answers to a chunk: its number, the pieces of its samples up to the first that fails, and the error of that one with its trace.
_Answer = tuple[int, list[list[Piece]], "tuple[Exception, str] | None"]


class Workers:
    """Prepares samples in processes, started when they are first needed.  A context manager: the processes end with it."""

    def __init__(self, prepare: Prepare, count: int):
        """
        :param prepare: makes the pieces of a sample; has to be picklable.
        :param count: number of processes, at least 1.
        """
        self._prepare, self._count = prepare, count
        self._processes: list[_Process] = []
        self._numbers = count_up()  # of chunks: answers that an earlier reading did not take are skipped by the next

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.end()

    def cut(self, samples: Iterator[tuple[Sample, _T]]) -> Iterator[tuple[list[Piece], _T]]:
        """Prepare samples; see :class:`lmplay.data.batcher.Cutting`.

        :param samples: each with a tag that comes back with its pieces; read ahead as far as keeps the processes busy.
        :return: the pieces, in the samples' order.
        :raises Exception: what reading or preparing raised, after the samples before it.
        :raises TrainingError: when a process has died.
        """
        if not self._processes:
            data = pickle.dumps(self._prepare, pickle.HIGHEST_PROTOCOL)
            self._processes = [_Process() for _ in range(self._count)]
            for process in self._processes:
                process.send(data)
        turns = cycle(self._processes)
        sent: deque[tuple[_Process, int, list[tuple[Sample, _T]]]] = deque()
        more, error = True, None
        while more or sent:
            while more and len(sent) < _CHUNKS_EACH * self._count:
                chunk, more, error = _read_chunk(samples)
                if chunk:
                    process, number = next(turns), next(self._numbers)
                    process.send(pickle.dumps((number, [sample for sample, _ in chunk]), pickle.HIGHEST_PROTOCOL))
                    sent.append((process, number, chunk))
            if sent:
                process, number, chunk = sent.popleft()
                yield from _join(chunk, process.receive(number))
        if error is not None:
            raise error


class _Process:
    """One process, as seen from the program that started it."""

    def __init__(self) -> None:
        program = f"import sys; sys.path[:] = {[str(path) for path in sys.path]!r}; from {__name__} import main; main()"
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}
        # On Windows, Ctrl+C goes to a group of processes; elsewhere the thread that starts the process has the signals blocked.
        group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        self._process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, creationflags=group)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def send(self, data: bytes) -> None:
        """Send a pickled value; the process always reads, so this waits for nothing else."""
        try:
            self._input.write(data)
            self._input.flush()
        except OSError:
            raise self._died() from None

    def receive(self, number: int) -> _Answer:
        """Wait for the answer to a chunk."""
        try:
            while (answer := pickle.load(self._output))[0] != number:
                pass
            return answer
        except (OSError, EOFError, pickle.UnpicklingError):
            raise self._died() from None

    def end(self) -> None:
        """End the process at once: it has no state."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._input, self._output):
            with suppress(OSError):  # what it has not read can't be sent any more
                pipe.close()

    def _died(self) -> TrainingError:
        """Make the error for a process that has gone away."""
        try:
            code: int | str = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = "none"
        return TrainingError(f"a process that prepares data has died (exit code {code}); was there too little memory? The same command continues from the "
                             "last save; fewer --data-workers need less.")


class Trace(Exception):
    """The trace of an error in another process, as its cause."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in a process that prepares data:\n{self.text}"


def _read_chunk(samples: Iterator[tuple[Sample, _T]]) -> tuple[list[tuple[Sample, _T]], bool, Exception | None]:
    """Read samples for one chunk; tell whether there may be more, and what ended the reading if it was an error."""
    chunk: list[tuple[Sample, _T]] = []
    characters = 0
    try:
        for sample, tag in samples:
            chunk.append((sample, tag))
            characters += len(sample.prompt) + len(sample.truth)
            if len(chunk) == _CHUNK_SAMPLES or characters >= _CHUNK_CHARACTERS:
                return chunk, True, None
    except Exception as error:
        return chunk, False, error
    return chunk, False, None


def _join(chunk: Sequence[tuple[Sample, _T]], answer: _Answer) -> Iterator[tuple[list[Piece], _T]]:
    """Give pieces their samples back, which were not sent back with them; raise the error that comes after them."""
    _, units, failed = answer
    for (sample, tag), pieces in zip(chunk, units, strict=False):
        yield [replace(piece, sample=sample) if piece.sample == _NO_SAMPLE else piece for piece in pieces], tag
    if failed is not None:
        error, trace = failed
        raise error from Trace(trace)


def main() -> None:
    """Be a process: prepare the chunks that come in, until the program that started this one ends."""
    for number in SIGNALS:  # that program handles them, and ends this one
        signal.signal(number, signal.SIG_IGN)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not look like an answer
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, inbox), daemon=True).start()
    try:
        prepare = inbox.get()
        while True:
            pickle.dump(_prepare_chunk(prepare, *inbox.get()), output, pickle.HIGHEST_PROTOCOL)
            output.flush()
    except BrokenPipeError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _receive(stream: IO[bytes], inbox: SimpleQueue[Any]) -> None:
    """Take in whatever comes, so that the other side never waits; when the input ends, exit at once, even in the middle of a long text."""
    while True:
        try:
            inbox.put(pickle.load(stream))
        except (EOFError, pickle.UnpicklingError):  # the input has ended, perhaps in the middle of a message
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def _prepare_chunk(prepare: Prepare, number: int, samples: list[Sample]) -> _Answer:
    """Prepare the samples of a chunk."""
    units: list[list[Piece]] = []
    try:
        for sample in samples:
            units.append([replace(piece, sample=_NO_SAMPLE) if piece.sample is sample else piece for piece in prepare(sample)])
    except Exception as error:
        return number, units, portable(error)
    return number, units, None


def portable(error: Exception) -> tuple[Exception, str]:
    """Give the error, or one with the same message where it cannot be pickled, and its trace."""
    trace = "".join(traceback.format_exception(error))
    try:
        return (error if type(pickle.loads(pickle.dumps(error))) is type(error) else RuntimeError(repr(error))), trace
    except Exception:
        return RuntimeError(repr(error)), trace
