"""Mixing sources: which source the next row comes from, and when an epoch over the mix ends.  Data floor, no torch."""
from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

from ..errors import UserError
from .reader import Reader
from .sources import BadRow

# The longest period of weights, in rows, for which the rows of an epoch are counted exactly.
_MOST_PERIOD = 10_000


class Mix:
    """Rows of several readers, in exact shares and an order that follows from the counts alone.

    Without weights the sources take turns; with weights no source is ever a whole row off its share (Tijdeman's rule: R. Tijdeman, "The chairman
    assignment problem", Discrete Mathematics 32, 1980). An epoch over the mix ends

    - with `first_exhausted`, when a source whose turn it is has no row left in its epoch;
    - with `all_exhausted`, when every source has been read to its end once. Without weights a source that has ended sits out, so each row comes
      exactly once; with weights it starts again, because it has to keep its share.

    With the next epoch over the mix every source begins an epoch of its own; an endless one just goes on.
    """

    def __init__(self, readers: Sequence[Reader], weights: Sequence[float] | None = None, stopping: str = "all_exhausted"):
        """
        :param readers: one reader a source, at least one.
        :param weights: one positive number a source, or None for turns.
        :param stopping: "first_exhausted" or "all_exhausted".
        """
        self._readers = readers
        total = sum(weights) if weights else len(readers)
        self._shares = [w / total for w in weights] if weights else [1 / len(readers)] * len(readers)
        self._weighted = weights is not None
        self._all = stopping == "all_exhausted"
        self.epoch = 0
        self.rows_in_epoch = 0
        self._counts = [0] * len(readers)
        self._ended = [False] * len(readers)
        self._rows = [0] * len(readers)  # as the counts, but of all epochs

    @property
    def epochs(self) -> list[float | None]:
        """How many times each source has been read, as its rows given by its rows; None for one whose rows are not known or have no end."""
        return [rows / size if (size := reader.rows_per_epoch) else None for rows, reader in zip(self._rows, self._readers, strict=True)]

    @property
    def endless(self) -> bool:
        """Whether an epoch over the mix never ends."""
        return (any if self._all else all)(reader.endless for reader in self._readers)

    @cached_property
    def rows_per_epoch(self) -> int | None:
        """How many rows an epoch over the mix has (with weights that have no small common unit: to within some rows); None where a source doesn't know."""
        sizes = [reader.rows_per_epoch for reader in self._readers]
        if any(reader.rows_per_epoch is None and (self._all or not reader.endless) for reader in self._readers):
            return None
        if self._all and not self._weighted:
            return sum(size for size in sizes if size is not None)
        lengths = [size / share for size, share in zip(sizes, self._shares, strict=True) if size is not None]
        if not lengths:
            return None
        return self._count_to_end(int(max(lengths) if self._all else min(lengths)), sizes)

    def _count_to_end(self, about: int, sizes: Sequence[int | None]) -> int:
        """Count the rows of an epoch that ends about here: by the order of the sources from where each has last had exactly its share.

        That is so after each period of the shares, as no source is ever a whole row off its own.
        """
        shares = [Fraction(share).limit_denominator(_MOST_PERIOD) for share in self._shares]
        period = math.lcm(*(share.denominator for share in shares))
        if sum(shares) != 1 or period > _MOST_PERIOD:
            return about
        rows = max(0, about // period - 1) * period
        counts = [int(share * rows) for share in shares]
        left = [None if size is None else size - count for count, size in zip(counts, sizes, strict=True)]
        return rows + self._run_out(counts, left, [rest is not None and rest < 0 for rest in left])

    def rows_left(self) -> int | None:
        """Count the rows up to the end of this epoch over the mix, one by one; None where a source doesn't know."""
        if self.rows_per_epoch is None:
            return None
        return self._run_out(list(self._counts), [reader.rows_left() for reader in self._readers], list(self._ended))

    def _run_out(self, counts: list[int], left: Sequence[int | None], ended: list[bool]) -> int:
        """Count the rows up to the end of an epoch over the mix.

        :param counts: rows that each source has given in it.
        :param left: rows that each gives before it ends; None = it does not end.
        :param ended: whether each has ended before.
        :return: the number of rows.
        """
        rows, ends = 0, [None if rest is None or over else count + rest for count, rest, over in zip(counts, left, ended, strict=True)]
        while (source := self._due(counts, [i for i, over in enumerate(ended) if not over or self._restarts()])) is not None:
            if counts[source] == ends[source]:
                ended[source] = True
                if not self._all or all(ended):
                    break
                if not self._restarts():
                    continue
            counts[source] += 1
            rows += 1
        return rows

    def next(self) -> tuple[int, int, dict[str, Any]] | None:
        """Give the next row.

        :return: number of the source, ordinal number of the row in it, the row; None at the end of an epoch, after which the next begins.
        :raises BadRow: when the row cannot be read; it counts as given, and the next call goes on behind it.
        """
        while True:
            source = self._next_source()
            if source is None:
                break
            row = self._read(source)
            if row is None and self._take_end(source):
                break
            if row is None and self._restarts():
                row = self._read(source)
                if row is None:
                    raise UserError(f"source number {source + 1} of the mix gives no row at all; take it out of the stage's dataset list.")
            if row is not None:
                self._count(source)
                return source, *row
        self._start_epoch()
        return None

    def state(self) -> dict[str, Any]:
        """Give the position: a small plain value."""
        return {"epoch": self.epoch, "rows_in_epoch": self.rows_in_epoch, "counts": list(self._counts), "ended": list(self._ended), "rows": list(self._rows),
                "readers": [reader.state() for reader in self._readers]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position; raises ValueError when it is of another number of sources."""
        if {len(state[name]) for name in ("counts", "ended", "rows")} != {len(self._readers)}:
            raise ValueError("of another number of sources")
        self.epoch, self.rows_in_epoch = state["epoch"], state["rows_in_epoch"]
        self._counts, self._ended, self._rows = list(state["counts"]), list(state["ended"]), list(state["rows"])
        for reader, reader_state in zip(self._readers, state["readers"], strict=True):
            reader.restore(reader_state)

    def _read(self, source: int) -> tuple[int, dict[str, Any]] | None:
        """Read on in a source."""
        try:
            return self._readers[source].next()
        except BadRow as bad:
            bad.source = source
            self._count(source)
            raise

    def _count(self, source: int) -> None:
        """Count a row that has been given."""
        self._counts[source] += 1
        self._rows[source] += 1
        self.rows_in_epoch += 1

    def _restarts(self) -> bool:
        """Tell whether a source that has ended is read again within the epoch."""
        return self._all and self._weighted

    def _next_source(self) -> int | None:
        """Choose the next source: the one with the fewest rows so far, or, with weights, the one that would be a whole row behind first."""
        if len(self._counts) == 1:
            return None if self._ended[0] and not self._restarts() else 0
        return self._due(self._counts, [i for i, ended in enumerate(self._ended) if not ended or self._restarts()])

    def _due(self, counts: Sequence[int], candidates: Sequence[int]) -> int | None:
        """Choose the next source by the rows that each has given; None without candidates."""
        if not self._weighted or len(counts) == 1:
            return min(candidates, key=lambda i: (counts[i], i), default=None)
        n = sum(counts) + 1
        slack = 1 / (2 * len(counts) - 2)
        behind = {i: self._shares[i] * n - counts[i] for i in candidates}
        due = [i for i in candidates if behind[i] >= slack - 1e-9] or candidates
        return min(due, key=lambda i: ((1 - slack - behind[i]) / self._shares[i], i), default=None)

    def _take_end(self, source: int) -> bool:
        """Note that a source has ended; tell whether the epoch over the mix has ended with it."""
        self._ended[source] = True
        return not self._all or all(self._ended)

    def _start_epoch(self) -> None:
        """Begin the next epoch over the mix, with new counts."""
        self.epoch += 1
        self.rows_in_epoch = 0
        self._counts = [0] * len(self._counts)
        self._ended = [False] * len(self._ended)
        for reader in self._readers:
            reader.next_epoch()
