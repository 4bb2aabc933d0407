"""Units of pieces to batches: every unit whole within a batch, nothing lost, and a position from which the same batches follow.  Data floor, no torch."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from .continuation import Piece, Prepare
from .permutation import Permutation
from .samples import Sample
from .sentences import Cut

# With pieces "spread", a unit gives at most this share of a batch at a time.
_SHARE = 4
# With pieces "shuffled", units are mixed until their pieces fill this many batches.
_WINDOW = 16
# At most this many units wait for a batch that has enough left for them; with more a batch goes out short. Bounds memory and what a resume reads again.
_MOST_WAITING = 32
_T = TypeVar("_T")


class Samples(Protocol):
    """Where samples come from."""

    @property
    def progress(self) -> float | None:
        """The share of all samples that has been given, 0 to 1; None where their number is unknown."""

    def next(self) -> Sample | None:
        """Give the next sample, or None at the end."""

    def state(self) -> dict[str, Any]:
        """Give the position before the next sample."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position."""


class Cutting(Protocol):
    """Prepares many samples, ahead of whoever takes the pieces."""

    def __call__(self, samples: Iterator[tuple[Sample, _T]]) -> Iterator[tuple[list[Piece], _T]]:
        """Give the pieces of each sample, with what came with it, in order; what reading or preparing a sample raises comes when it is that sample's turn."""


class Sizes(Protocol):
    """Batch size and context length of a stage, as functions of its progress (0 to 1) up to the batch that is made."""

    def batch_size(self, progress: float) -> int:
        """Give the most pieces of the batch."""

    def prepare(self, sample: Sample, progress: float) -> list[Piece]:
        """Make the unit of a sample that is read for the batch."""


class Halted(BaseException):
    """Raised instead of giving the next sample when nobody wants it any more; not an Exception, so that no handler of errors catches it."""


@dataclass(frozen=True)
class Batch:
    """Pieces for one optimizer step.

    `samples` are those that end in this batch; `broken` counts the units that go on in the next; `position` is where the batch after this one
    starts; `progress` is the share of the stage that is done with it (0 to 1), up to where the oldest unit waits, None where its length is unknown;
    `empty` counts the samples read for it that gave no piece, because the tokenizer has no token for their text.
    """

    pieces: list[Piece]
    position: dict[str, Any]
    broken: int = 0
    progress: float | None = None
    empty: int = 0

    @property
    def samples(self) -> list[Sample]:
        """The samples that end in this batch."""
        return [piece.sample for piece in self.pieces if piece.last]

    @property
    def n_truth(self) -> int:
        """Count the tokens to be learned."""
        return sum(piece.n_truth for piece in self.pieces)

    def counts(self) -> Counter[str]:
        """Count what users ask of a batch: pieces, continuations, samples broken by its end, pieces that end inside a word or sentence, bytes lost, and
        prompts whose beginning was left out; of preference pairs also the answers whose end was."""
        pairs = [piece for piece in self.pieces if piece.preferred is not None]
        answers = {"cut_answers": sum(piece.cut is not Cut.END for piece in pairs)} if pairs else {}
        return Counter(pieces=len(self.pieces), continuations=sum(piece.number > 0 and piece.preferred is None for piece in self.pieces),
                       broken_samples=self.broken, no_tokens=self.empty,
                       forced_cuts=sum(piece.cut in (Cut.WORD, Cut.CHARACTER) for piece in self.pieces),
                       bytes_lost=sum(piece.bytes_lost for piece in self.pieces),
                       cut_prompts=sum(piece.prompt_lost > 0 for piece in self.pieces if piece.preferred is not False), **answers)


@dataclass(slots=True)
class Unit:
    """Pieces that must share a batch, unless they are more than a batch holds: what was made of one sample.

    The pieces of a text, or, where an objective compares answers, those of all answers to one prompt. `placed` pieces of it are in a batch already.
    """

    ordinal: int  # counted from the start of the stage
    before: dict[str, Any]  # the position of the samples before it was read
    tokens: int  # to be learned from the samples before it
    pieces: list[Piece]
    shares: tuple[float | None, float | None]  # of the stage, without it and with it
    placed: int = 0
    at: float = 0.0  # progress of the stage at which it was prepared, where context lengths change

    @property
    def progress(self) -> float | None:
        """The share of the stage up to the first of its pieces that is in no batch yet."""
        before, after = self.shares
        return None if before is None or after is None else before + (after - before) * self.placed / len(self.pieces)


class Batcher:
    """Fills batches of `batch_size` pieces.

    The units that wait come first, oldest first; then new ones are read until the batch is full. A unit that does not fit in what is left waits
    whole. One that is longer than any batch is broken: it takes what is left of the batch when it is the oldest, and goes on in the next. With `spread`
    a unit that is longer than a quarter of a batch gives a quarter to each batch, so that others come between; only when nothing more can be read, more.
    """

    def __init__(self, samples: Samples, prepare: Prepare, batch_size: int, most_tokens: int | None = None, *, spread: bool = False,
                 cutting: Cutting | None = None, halted: Callable[[], bool] = lambda: False, sizes: Sizes | None = None):
        """
        :param samples: read from where they are.
        :param prepare: makes the unit of a sample, such as :meth:`lmplay.data.continuation.Cutter.cut`.
        :param batch_size: the most pieces of a batch.
        :param most_tokens: no sample is taken once this many tokens to be learned have been.
        :param spread: divide long units among batches.
        :param cutting: prepares the samples, perhaps ahead and elsewhere; None = here, sample by sample. The batches are the same.
        :param halted: asked before each sample; once it says True, :class:`Halted` is raised.
        :param sizes: instead of `batch_size` and `prepare`, where they change; `cutting` must not prepare ahead then.
        """
        self._samples = samples
        self._sizes, self._at = sizes, 0.0
        if sizes is not None:
            cutting = cutting or (lambda reads: ((sizes.prepare(sample, self._at), after) for sample, after in reads))
        self._cutting = cutting or (lambda reads: ((prepare(sample), after) for sample, after in reads))
        self._batch_size = batch_size
        self._most_tokens = most_tokens
        self._spread = spread
        self._halted = halted
        self._read = self._tokens = 0
        self._ended = False  # the end of the samples has been seen
        self.empty = 0  # samples without a token, read since the last batch
        self._waiting: list[Unit] = []
        self._reached: dict[str, Any] = {}
        self._progress: float | None = None
        self._start()

    @property
    def reached(self) -> dict[str, Any]:
        """The position of the samples after the last that was taken; a `cutting` that works ahead has read further."""
        return self._reached

    def next(self, progress: float = 0.0) -> Batch | None:
        """Give the next batch, or None when every unit is in one.

        :param progress: of the batch before, where sizes change with it; 0 at the beginning.
        """
        self._go_to(progress)
        pieces: list[Piece] = []
        still: list[Unit] = []
        for unit in self._waiting:
            if not self._place(unit, pieces, oldest=not still):
                still.append(unit)
        self._waiting = still
        while len(pieces) < self._batch_size and len(self._waiting) < _MOST_WAITING:
            read = self._read_one()
            if read is None:
                self._fill(pieces)
                break
            if not self._place(read, pieces, oldest=not self._waiting):
                self._waiting.append(read)
        if not pieces:
            return None
        broken = sum(unit.placed > 0 and not self._spreads(unit) for unit in self._waiting)
        reached = self._waiting[0].progress if self._waiting else self._share_read()
        empty, self.empty = self.empty, 0
        return Batch(pieces, self.state(), broken, reached, empty)

    def state(self) -> dict[str, Any]:
        """Give the position: where the oldest unit that waits begins, which wait, and how many of their pieces are in batches already."""
        if not self._waiting:
            return {"samples": self._reached, "read": self._read, "tokens": self._tokens, "until": self._read, "ended": self._ended, "waiting": []}
        oldest = self._waiting[0]
        at = {} if self._sizes is None else {"at": [unit.at for unit in self._waiting]}
        return {"samples": oldest.before, "read": oldest.ordinal, "tokens": oldest.tokens, "until": self._read, "ended": self._ended,
                "waiting": [[unit.ordinal, unit.placed] for unit in self._waiting], **at}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position: what waited is read again."""
        self._samples.restore(state["samples"])
        self._read, self._tokens = state["read"], state["tokens"]
        self._start()
        placed = dict(state["waiting"])
        prepared_at = dict(zip(placed, state.get("at", ()), strict=False))
        while self._read < state["until"]:
            self._at = prepared_at.get(self._read, 0.0)
            if (read := self._read_one()) is None:
                break
            if read.ordinal in placed:
                read.placed = min(placed[read.ordinal], len(read.pieces) - 1)  # fewer pieces, where the rules of cutting have changed
                self._waiting.append(read)
        if state["ended"]:  # rows at the end that give no sample had been read, too
            self._read_one()
        self.empty = 0

    def _start(self) -> None:
        """Begin to read from where the samples are."""
        self._waiting = []
        self._reached, self._progress, self._ended = self._samples.state(), self._samples.progress, False
        self._reads = self._cutting(self._read_samples())

    def _read_samples(self) -> Iterator[tuple[Sample, tuple[dict[str, Any], float | None]]]:
        """Read samples, each with the position and the share of the stage after it."""
        while not self._halted():
            sample = self._samples.next()
            if sample is None:
                return
            yield sample, (self._samples.state(), self._samples.progress)
        raise Halted

    def _read_one(self) -> Unit | None:
        """Take the next sample; None at the end."""
        if self._most_tokens is not None and self._tokens >= self._most_tokens:
            return None
        read = next(self._reads, None)
        if read is None:
            self._reached, self._progress, self._ended = self._samples.state(), self._samples.progress, True
            return None
        pieces, after = read
        ordinal, before, tokens, share = self._read, self._reached, self._tokens, self._share_read()
        self.empty += not pieces
        self._reached, self._progress = after
        self._read += 1
        self._tokens += sum([piece.n_truth for piece in pieces])
        return Unit(ordinal, before, tokens, pieces, (share, self._share_read()), at=self._at)

    def _share_read(self) -> float | None:
        """Give the share of the stage that has been read."""
        return self._progress if self._most_tokens is None else min(1.0, self._tokens / self._most_tokens)

    def _go_to(self, progress: float) -> None:
        """Take the sizes of this progress from here on."""
        if self._sizes is not None:
            self._at, self._batch_size = progress, self._sizes.batch_size(progress)

    @property
    def _most_of_unit(self) -> int:
        """The most pieces that a unit which is spread gives to a batch."""
        return max(1, self._batch_size // _SHARE)

    def _spreads(self, unit: Unit) -> bool:
        """Tell whether a unit is divided among batches on purpose."""
        return self._spread and len(unit.pieces) > self._most_of_unit

    def _fill(self, pieces: list[Piece]) -> None:
        """Fill up one of the last batches with more of the units that are divided."""
        for unit in self._waiting:
            if self._spreads(unit):
                taken = unit.pieces[unit.placed:][:self._batch_size - len(pieces)]
                pieces += taken
                unit.placed += len(taken)
        self._waiting = [unit for unit in self._waiting if unit.placed < len(unit.pieces)]

    def _place(self, unit: Unit, pieces: list[Piece], oldest: bool) -> bool:
        """Put what fits of a unit into the batch; tell whether all of it is in batches now."""
        left = unit.pieces[unit.placed:]
        free = self._batch_size - len(pieces)
        if self._spreads(unit):
            taken = left[:min(free, self._most_of_unit)]
            pieces += taken
            unit.placed += len(taken)
        elif len(left) <= free or (free and oldest and len(unit.pieces) > self._batch_size):
            pieces += left[:free]
            unit.placed += min(free, len(left))
        return unit.placed == len(unit.pieces)


class ShuffledBatcher(Batcher):
    """Fills batches from a window of units, mixed: the pieces of a unit keep their order, and are wherever chance puts them.

    A window is units of at least 16 batches together; its batches are equally long, up to one piece.
    """

    def next(self, progress: float = 0.0) -> Batch | None:
        """See :class:`Batcher`; sizes change from one window to the next."""
        while self._given == self._n_batches:
            self._go_to(progress)
            if not self._read_window():
                return None
        begin, end = (len(self._window) * number // self._n_batches for number in (self._given, self._given + 1))
        self._given += 1
        before, after = self._shares
        reached = None if before is None or after is None else before + (after - before) * self._given / self._n_batches
        empty, self.empty = self.empty, 0
        return Batch(self._window[begin:end], self.state(), 0, reached, empty)

    def state(self) -> dict[str, Any]:
        """Give the position: where the window begins, and how many of its batches have been given."""
        if self._given == self._n_batches:
            return {**super().state(), "given": 0}
        return {**self._before, "given": self._given, **({} if self._sizes is None else {"at": [self._at]})}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position: the window is read again."""
        super().restore(state)
        if state.get("given"):
            self._go_to(next(iter(state.get("at", ())), 0.0))
            self._read_window()
            if state["given"] > self._n_batches:
                raise ValueError("beyond the end of a window")
            self._given, self.empty = state["given"], 0

    def _start(self) -> None:
        """Begin to read from where the samples are."""
        super()._start()
        self._window: list[Piece] = []
        self._given = self._n_batches = 0

    def _read_window(self) -> bool:
        """Read the units of the next window, and mix them; False where there is nothing more."""
        self._before, share, first = super().state(), self._share_read(), self._read
        units: list[list[Piece]] = []
        count = 0
        while count < _WINDOW * self._batch_size and (read := self._read_one()) is not None:
            units.append(read.pieces)
            count += len(read.pieces)
        if not count:
            self._window, self._given, self._n_batches = [], 0, 0
            return False
        owners = [number for number, pieces in enumerate(units) for _ in pieces]
        order = Permutation(count, first)
        in_order = [iter(pieces) for pieces in units]
        self._window = [next(in_order[owners[order[place]]]) for place in range(count)]
        self._given, self._n_batches, self._shares = 0, -(-count // self._batch_size), (share, self._share_read())
        return True
