"""Pieces to batches: every sample whole within a batch, nothing lost, and a position from which the same batches follow.  Data floor, no torch."""
from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from .continuation import Cutter, Piece
from .samples import Sample
from .sentences import Cut

# So many samples may wait for a batch with room for them; past it a batch goes out short. Bounds memory and what a resume reads again.
_MOST_WAITING = 32


class Samples(Protocol):
    """Where samples come from; `skipped` counts those that could not be used, by reason."""

    skipped: Counter[str]

    @property
    def progress(self) -> float | None:
        """The share of all samples that has been given, 0 to 1; None where their number is unknown."""

    def next(self) -> Sample | None:
        """Give the next sample, or None at the end."""

    def state(self) -> dict[str, Any]:
        """Give the position before the next sample."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position."""


@dataclass(frozen=True)
class Batch:
    """Pieces for one optimizer step.

    `samples` are those that end in this batch; `broken` counts the samples that go on in the next; `position` is where the batch after this one
    starts; `progress` is the share of the stage that has been read (0 to 1), None where its length is unknown.
    """

    pieces: list[Piece]
    position: dict[str, Any]
    broken: int = 0
    progress: float | None = None

    @property
    def samples(self) -> list[Sample]:
        """The samples that end in this batch."""
        return [piece.sample for piece in self.pieces if piece.last]

    @property
    def n_truth(self) -> int:
        """Count the tokens to be learned."""
        return sum(piece.n_truth for piece in self.pieces)

    def counts(self) -> Counter[str]:
        """Count what users ask of a batch: pieces, continuations, samples broken by its end, pieces that end inside a word or sentence."""
        return Counter(pieces=len(self.pieces), continuations=sum(piece.number > 0 for piece in self.pieces), broken_samples=self.broken,
                       forced_cuts=sum(piece.cut in (Cut.WORD, Cut.CHARACTER) for piece in self.pieces))


@dataclass
class _Waiting:
    """A sample that has been read and not, or not wholly, placed."""

    ordinal: int  # counted from the start of the stage
    before: dict[str, Any]  # the position before it was read
    pieces: list[Piece]
    placed: int = 0


@dataclass
class Batcher:
    """Fills batches of `batch_size` pieces.

    The samples that wait come first, oldest first; then new ones are read while there is room. A sample that does not fit in what is left waits
    whole. One that is longer than any batch is broken: it takes what is left of the batch when it is the oldest, and goes on in the next.
    With `most_tokens` no sample is read once that many tokens to be learned have been.
    """

    samples: Samples
    cutter: Cutter
    batch_size: int
    most_tokens: int | None = None
    _waiting: deque[_Waiting] = field(default_factory=deque)
    _read: int = 0
    _tokens: int = 0
    _ended: bool = False

    def next(self) -> Batch | None:
        """Give the next batch, or None when every sample has been placed."""
        pieces: list[Piece] = []
        self._place_waiting(pieces)
        while len(pieces) < self.batch_size and len(self._waiting) < _MOST_WAITING and not self._ended:
            self._read_one()
            self._place_waiting(pieces, only_last=True)
        if not pieces:
            return None
        broken = sum(waiting.placed > 0 for waiting in self._waiting)
        return Batch(pieces, self.state(), broken, self._progress())

    def state(self) -> dict[str, Any]:
        """Give the position: where the oldest sample that waits begins, which wait, and how many of their pieces have been placed."""
        if not self._waiting:
            return {**self._here(), "until": self._read, "waiting": []}
        return {**self._waiting[0].before, "until": self._read, "waiting": [[waiting.ordinal, waiting.placed] for waiting in self._waiting]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position: what waited is read again."""
        self.samples.restore(state["samples"])
        self._read, self._tokens = state["read"], state["tokens"]
        self._waiting.clear()
        self._ended = False
        placed = dict(state["waiting"])
        while self._read < state["until"]:
            self._read_one()
            if self._waiting[-1].ordinal in placed:
                self._waiting[-1].placed = placed[self._waiting[-1].ordinal]
            else:
                self._waiting.pop()

    def _here(self) -> dict[str, Any]:
        """Give the position before the next sample."""
        return {"samples": self.samples.state(), "read": self._read, "tokens": self._tokens}

    def _progress(self) -> float | None:
        """Give the share of the stage that has been read."""
        return self.samples.progress if self.most_tokens is None else min(1.0, self._tokens / self.most_tokens)

    def _read_one(self) -> None:
        """Read a sample into the queue."""
        before = self._here()
        sample = self.samples.next() if self.most_tokens is None or self._tokens < self.most_tokens else None
        if sample is None:
            self._ended = True
            return
        self._waiting.append(_Waiting(self._read, before, self.cutter.cut(sample)))
        if not self._waiting[-1].pieces:
            self.samples.skipped["no tokens"] += 1
        self._read += 1
        self._tokens += sum(piece.n_truth for piece in self._waiting[-1].pieces)

    def _place_waiting(self, pieces: list[Piece], only_last: bool = False) -> None:
        """Place what fits of the samples that wait, oldest first; `only_last` looks at the newest alone."""
        candidates = [self._waiting[-1]] if only_last and self._waiting else list(self._waiting)
        for waiting in candidates:
            room = self.batch_size - len(pieces)
            left = waiting.pieces[waiting.placed:]
            too_long = len(waiting.pieces) > self.batch_size and waiting is self._waiting[0]
            if room and (len(left) <= room or too_long):
                pieces += left[:room]
                waiting.placed += min(room, len(left))
                if waiting.placed == len(waiting.pieces):
                    self._waiting.remove(waiting)

