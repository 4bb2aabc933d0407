"""Reading one source in order: epochs, shuffle, held-out rows, and a position that is a small value.  Data floor, no torch."""
from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from .permutation import HeldOut, Permutation
from .sources import AnySource, BadRow, IndexedSource, StreamedSource

DEFAULT_BUFFER = 1000


@dataclass(frozen=True)
class Order:
    """How a source is read.

    `seed` names the order; `shuffle` turns it on; `buffer` is the number of streamed rows permuted together; `held_out` is the share of
    rows kept for validation, `most_held_out` the most of them (None = no limit), `held_out_seed` names their choice; `validation` reads those rows
    instead of the others, unshuffled. With `spread` they come in an order that `held_out_seed` names, so that the first of them are from the whole source;
    those of a stream, which would have to be read up to there, and of a source without end come as they are.
    """

    seed: int = 0
    shuffle: bool = True
    buffer: int = DEFAULT_BUFFER
    held_out: float = 0.0
    validation: bool = False
    held_out_seed: int = 0
    most_held_out: int | None = None
    spread: bool = False


class Reader(Protocol):
    """Rows of one source, epoch after epoch; `rows_per_epoch` is None where the number is not known, or there is no end."""

    rows_per_epoch: int | None
    endless: bool

    def next(self) -> tuple[int, dict[str, Any]] | None:
        """Give the ordinal number and the row that come next; None at the end of an epoch, after which the next epoch begins.

        A row that cannot be read raises BadRow, and counts as given.
        """

    def rows_left(self) -> int | None:
        """Count the rows of this epoch that have not been given; None where `rows_per_epoch` is, or of validation rows."""

    def next_epoch(self) -> None:
        """Skip the rest of the epoch, if it has begun; an endless source has one epoch only, and stays where it is."""

    def state(self) -> dict[str, Any]:
        """Give the position: a small plain value."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position."""


def open_reader(source: AnySource, order: Order) -> Reader:
    """Choose the reader for a source.

    :param source: an open source.
    :param order: how to read it.
    :return: a reader at the beginning of epoch 0.
    """
    return IndexedReader(source, order) if isinstance(source, IndexedSource) else StreamedReader(source, order)


class IndexedReader:
    """Reads rows by number: each epoch another permutation of all rows; the position is (epoch, offset)."""

    def __init__(self, source: IndexedSource, order: Order):
        self.endless = source.n_rows is None
        self._source = source
        self._order = order
        most = None if self.endless else order.most_held_out  # of rows without end nothing is missed
        self._held_out = _choose_held_out(source.n_rows, order, most, source.n_rows)
        self.rows_per_epoch = _count_rows(source.n_rows, self._held_out, order)
        self._spread = self.rows_per_epoch if order.spread and order.validation else None  # the rows that come in an order of their own; None = there are none
        self._epoch = self._offset = 0
        self._start_epoch()

    def next(self) -> tuple[int, dict[str, Any]] | None:
        """See :class:`Reader`; an endless source never gives None."""
        while self._source.n_rows is None or self._offset < (self._source.n_rows if self._spread is None else self._spread):
            index = self._permutation[self._offset] if self._permutation else self._offset
            self._offset += 1
            if self._spread is not None:
                index = self._held_out.row(index)
                return index, self._source[index]
            if (index in self._held_out) == self._order.validation:
                return index, self._source[index]
        self.next_epoch()
        return None

    def rows_left(self) -> int | None:
        """See :class:`Reader`."""
        if self._source.n_rows is None or self._order.validation:
            return None
        held_out = map(self._held_out.row, range(self._held_out.count(self._source.n_rows)))
        to_come = sum((self._permutation.index(row) if self._permutation else row) >= self._offset for row in held_out)
        return max(0, self._source.n_rows - self._offset) - to_come

    def next_epoch(self) -> None:
        """See :class:`Reader`."""
        if self._offset and not self.endless:
            self.restore({"epoch": self._epoch + 1, "offset": 0})

    def state(self) -> dict[str, Any]:
        """See :class:`Reader`."""
        return {"epoch": self._epoch, "offset": self._offset}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`Reader`."""
        self._epoch, self._offset = state["epoch"], state["offset"]
        self._start_epoch()

    def _start_epoch(self) -> None:
        """Make the order of the epoch; endless and validation rows come as they are."""
        n = self._source.n_rows
        shuffled = self._order.shuffle and not self._order.validation and n
        self._permutation = Permutation(n, self._order.seed, self._epoch) if shuffled and n else \
            Permutation(self._spread, self._order.held_out_seed) if self._spread else None


class StreamedReader:
    """Reads a stream in blocks of `buffer` rows, each permuted by (seed, epoch, block).

    The position is the stream's own state at the start of the block and an offset in it, so that a resume reads one block again and no more.
    """

    def __init__(self, source: StreamedSource, order: Order):
        self.endless = False
        self._source = source
        self._order = order
        # Rows held out far apart would cost a validation all rows between them, so they are among the first ones.
        self._held_out = _choose_held_out(source.n_rows, order, order.most_held_out, None)
        self.rows_per_epoch = _count_rows(source.n_rows, self._held_out, order)
        self._begin(epoch=0)

    def next(self) -> tuple[int, dict[str, Any]] | None:
        """See :class:`Reader`."""
        while self._offset == len(self._rows):
            if self._ended:
                self._begin(self._epoch + 1)
                return None
            self._read_block()
        index, row = self._rows[self._offset]
        self._offset += 1
        if isinstance(row, BadRow):
            row.row = index
            raise row
        return index, row

    def rows_left(self) -> int | None:
        """See :class:`Reader`."""
        if self.rows_per_epoch is None or self._order.validation:
            return None
        return max(0, self.rows_per_epoch - (self._ordinal - self._held_out.count(self._ordinal)) - self._offset)

    def next_epoch(self) -> None:
        """See :class:`Reader`."""
        if self._offset or self._ordinal:
            self._begin(self._epoch + 1)

    def state(self) -> dict[str, Any]:
        """See :class:`Reader`."""
        return {"epoch": self._epoch, "ordinal": self._ordinal, "block": self._block, "offset": self._offset}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`Reader`."""
        self._epoch, self._ordinal, self._block = state["epoch"], state["ordinal"], state["block"]
        self._stream = self._source.open(self._block)
        self._rows: list[tuple[int, dict[str, Any] | BadRow]] = []
        self._read = 0  # rows of the stream in this block, held-out ones too
        self._ended = False
        self._offset = 0
        if state["offset"]:
            self._read_block()
            if state["offset"] > len(self._rows):
                raise ValueError("beyond the end of a block")
            self._offset = state["offset"]

    def _begin(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.restore({"epoch": epoch, "ordinal": 0, "block": None, "offset": 0})

    def _take(self) -> dict[str, Any] | BadRow | None:
        """Take a row from the stream, or what is wrong with it; None at the end."""
        try:
            return next(self._stream, None)
        except BadRow as bad:
            return bad

    def _read_block(self) -> None:
        """Read the next block, keep what this reader gives, and permute it."""
        self._ordinal += self._read
        self._block = self._stream.state()
        block = list(islice(iter(self._take, None), self._order.buffer))
        self._read = len(block)
        past_held_out = self._held_out.end is not None and self._ordinal + self._read >= self._held_out.end
        self._ended = self._read < self._order.buffer or (self._order.validation and past_held_out)
        rows = [(index, row) for index, row in enumerate(block, self._ordinal) if (index in self._held_out) == self._order.validation]
        self._offset = 0
        if self._order.shuffle and not self._order.validation and rows:
            order = Permutation(len(rows), self._order.seed, self._epoch, self._ordinal)
            rows = [rows[order[i]] for i in range(len(rows))]
        self._rows = rows


def _choose_held_out(n_rows: int | None, order: Order, most: int | None, spread_over: int | None) -> HeldOut:
    """Make the rule for validation rows; a source with too few rows to hold one out of keeps all for training."""
    too_few = n_rows is not None and n_rows * order.held_out < 1
    return HeldOut(0.0 if too_few else order.held_out, order.held_out_seed, most, spread_over)


def _count_rows(n_rows: int | None, held_out: HeldOut, order: Order) -> int | None:
    """Count the rows that a reader gives in an epoch."""
    if n_rows is None:
        return None
    return held_out.count(n_rows) if order.validation else n_rows - held_out.count(n_rows)
