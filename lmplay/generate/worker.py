"""The thread in which a server's models write: texts join and leave between two tokens.  Imported where a server is started."""
from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..web.guard import Refused
from ..writing.continuous import ContinuousBatch
from ..writing.prompting import Prompting
from ..writing.sampling import Sampling
from .writer import GrowingText

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Served:
    """A model that is served."""

    name: str
    module: nn.Module
    draft: nn.Module | None
    """Guesses what the model will write, see :class:`ContinuousBatch`."""
    prompting: Prompting
    """How the prompts of texts are read."""
    chat: Prompting
    """How conversations are read."""
    context_len: int
    created: int
    """When its file was written: seconds since 1970."""


@dataclass(frozen=True)
class Added:
    """What is added to a text: characters, tokens, and why it has ended ("stop", "length"), None = it goes on."""

    text: str
    tokens: int
    finish: str | None


@dataclass(eq=False)
class Job:
    """A text to be written.

    :param prompting: how the prompt was read; it says what ends the text.
    :param most_tokens: the most new tokens.
    :param until: when it ends at the latest, in the seconds of `time.monotonic`.
    :param tell: called in the worker's thread with what is added, and with what went wrong, after which there is no more.
    """

    model: str
    prompt: Sequence[int]
    prompting: Prompting
    sampling: Sampling
    seed: int
    most_tokens: int
    stops: tuple[str, ...]
    until: float
    tell: Callable[[Added | Refused], None]
    is_cancelled: bool = False


class Worker:
    """Writes texts with several models, all in one thread.

    :param side_by_side: the most texts that are written at once.
    :param queue: the most texts that wait.
    """

    def __init__(self, models: Mapping[str, Served], side_by_side: int, queue: int):
        self._models, self._side_by_side, self._queue = models, side_by_side, queue
        self._batches: dict[tuple[str, frozenset[int]], ContinuousBatch] = {}  # of texts with the same model and end tokens
        self._waiting: deque[Job] = deque()
        self._written: dict[Job, _Written] = {}
        self._changed = threading.Condition()
        self._closing = self._ended = False
        self._thread = threading.Thread(target=self._run, name="lmp_generator writes", daemon=True)
        self._thread.start()

    @property
    def most_texts(self) -> int:
        """The most texts of a request."""
        return self._side_by_side + self._queue

    def counts(self) -> tuple[int, int]:
        """Count the texts that are being written, and those that wait."""
        return len(self._written), len(self._waiting)

    @property
    def has_failed(self) -> bool:
        """Whether the thread has ended though nobody has ended it."""
        return not (self._thread.is_alive() or self._ended)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Let texts be written, all of them or none.

        :raises Refused: 429 when too many wait, 503 when the server ends.
        """
        with self._changed:
            if self._closing:
                raise _ending()
            if len(self._written) + len(self._waiting) + len(jobs) > self.most_texts:
                raise queue_full(self.most_texts, "texts are being written and waiting")
            self._waiting += jobs
            self._changed.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Give texts up: nobody reads them any more."""
        with self._changed:
            for job in jobs:
                job.is_cancelled = True
            self._changed.notify()

    def close(self) -> None:
        """Take no more texts; those that wait are refused, those that are being written go on."""
        with self._changed:
            self._closing = True
            waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            job.tell(_ending())

    def end(self, seconds: float = 10) -> None:
        """End the thread after its step; texts that are not whole are refused."""
        self.close()
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        """Write until the end; what is not whole then is refused, whatever ended it."""
        try:
            self._write()
        finally:
            self.close()
            for job in list(self._written):
                job.tell(_ending())

    def _write(self) -> None:
        """Write the next tokens of each text after the other."""
        while True:
            with self._changed:
                while not (self._waiting or self._written or self._ended):
                    self._changed.wait()
                if self._ended:
                    return
                begun = self._take()
            for job, failure in begun:
                if failure is not None:
                    job.tell(failure)
                elif job in self._written:
                    with self._guarded(job.model):
                        self._begin(job)
            for job in [job for job in self._written if job.is_cancelled]:
                if job in self._written:
                    with self._guarded(job.model):
                        self._leave(job)
            for key in list(self._batches):
                if len(self._batches.get(key, ())):
                    with self._guarded(key[0]):
                        self._step(self._batches[key])

    def _take(self) -> list[tuple[Job, Refused | None]]:
        """Take texts that wait: as many as there is a place for, and those that have waited too long."""
        taken: list[tuple[Job, Refused | None]] = []
        free, now, stay = self._side_by_side - len(self._written), time.monotonic(), deque[Job]()
        for job in self._waiting:
            if job.is_cancelled:
                continue
            if now > job.until:
                taken.append((job, Refused(503, "The request has waited for all its time; try again later.", code="timeout", headers={"Retry-After": "10"})))
            elif free > 0:
                taken.append((job, None))
                self._written[job] = _Written(job)
                free -= 1
            else:
                stay.append(job)
        self._waiting = stay
        return taken

    def _begin(self, job: Job) -> None:
        """Let a text join those of its model."""
        served = self._models[job.model]
        key = (job.model, frozenset(job.prompting.ends))
        if key not in self._batches:
            self._batches[key] = ContinuousBatch(served.module, key[1], served.context_len, draft=served.draft)
        self._written[job].key = key
        self._batches[key].add(job, job.prompt, job.sampling, job.seed)

    def _leave(self, job: Job) -> None:
        """End a text; the place is free."""
        self._batches[self._written.pop(job).key].remove(job)

    def _step(self, batch: ContinuousBatch) -> None:
        """Write the next tokens of each text of a batch."""
        for job, tokens in batch.step().items():
            assert isinstance(job, Job)
            for token in tokens:
                added = self._written[job].add(token)
                job.tell(added)
                if added.finish is not None:
                    self._leave(job)
                    break

    @contextmanager
    def _guarded(self, model: str) -> Iterator[None]:
        """Where a model fails, refuse its texts; those of the others go on."""
        try:
            yield
        except Exception:
            print(f"lmp_generator: the model {model} has failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            self._batches = {key: batch for key, batch in self._batches.items() if key[0] != model}
            for job in [job for job in self._written if job.model == model]:
                del self._written[job]
                job.tell(Refused(500, f"The model {model} has failed; the server has written out why where it runs."))


class _Written:
    """A text that is being written."""

    def __init__(self, job: Job):
        self.key: tuple[str, frozenset[int]] = ("", frozenset())
        self._job, self._tokens = job, 0
        self._text = GrowingText(job.prompting.tokenizer, job.stops, job.prompting.continued(job.prompt))

    def add(self, token: int | None) -> Added:
        """Take the next token (None = the end token came instead); gives what it adds to the text."""
        if token is None:
            return Added(self._text.end(), 0, "stop")
        self._tokens += 1
        text = self._text.add(token)
        if self._text.is_stopped:
            return Added(text, 1, "stop")
        if self._tokens == self._job.most_tokens or time.monotonic() > self._job.until:
            text += self._text.end()
            return Added(text, 1, "stop" if self._text.is_stopped else "length")
        return Added(text, 1, None)


def queue_full(most: int, what: str) -> Refused:
    """Tell that there are too many: 429, as long as nothing ends."""
    return Refused(429, f"Too many {what} (at most {most}); try again soon.", code="queue_full", headers={"Retry-After": "1"})


def _ending() -> Refused:
    return Refused(503, "The server is ending.", code="ending", headers={"Retry-After": "10"})
