"""Histories of bounded size: rows of raw values, and the columns computed from them.  Stats floor, no torch."""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .figures import BY_NAME, FIGURES, NEWEST, SUMS, Figure, SourceLoss, Values

# At this many rows neighbours are merged two by two, and from then on a row holds twice as many steps.
MOST_ROWS = 10_000
# The last share of a stage: its mean loss is the loss at the stage's end.
_END = 0.1
NO_SOURCES: Mapping[str, SourceLoss] = MappingProxyType({})


class History:
    """Rows of raw values, merged evenly when there are too many; sums stay exact."""

    def __init__(self, most_rows: int = MOST_ROWS, figures: Iterable[Figure] = ()):
        """
        :param most_rows: an even number.
        :param figures: declared ones, see :meth:`declare`.
        """
        self._most_rows = most_rows
        self._stride = 1
        self._open = 0  # steps in the newest row, 0 = it is full
        self.rows: dict[str, list[Any]] = {name: [] for name in NEWEST + SUMS}
        self.sources: dict[str, dict[str, list[float]]] = {}  # for each source its own columns of the same length, 0 where it had no part
        self.declared: dict[str, Figure] = {}
        self._own: dict[str, dict[str, str]] = {}  # of each declared figure: its columns by raw value
        self._unmeasured: dict[str, int | None] = dict.fromkeys(self.rows, 0)  # what a new row holds; None = the newest value of a declared figure
        self._known = {*self.rows}  # raw values that may be added
        self.declare(figures)

    def __len__(self) -> int:
        return len(self.rows["step"])

    def declare(self, figures: Iterable[Figure]) -> None:
        """Keep the raw values of more figures from here on; in the rows before they are not measured.

        Each figure has its own columns, even for raw values that other figures use: it may be measured in some stages only.

        :raises ValueError: for a name whose figure is computed from other raw values.
        """
        for figure in figures:
            before = self.declared.get(figure.name, figure)
            if figure.name in BY_NAME or (before.kind, before.raw) != (figure.kind, figure.raw):
                raise ValueError(f"figure {figure.name}: the {figure.kind} of {' / '.join(figure.raw)}, but there is another figure of that name")
            self.declared[figure.name] = figure
            self._known.update(figure.raw)
            self._own[figure.name] = {name: f"{figure.name}/{name}" for name in figure.raw}
            for own in self._own[figure.name].values():
                self._unmeasured[own] = None if figure.kind == "newest" else 0
                self.rows.setdefault(own, [self._unmeasured[own]] * len(self))

    def add(self, sources: Mapping[str, SourceLoss] = NO_SOURCES, /, **raw: float) -> None:
        """Add the raw values of a step; those left out count as 0. Two additions at one step (as at the end of a stage) share a row.

        :param sources: loss sum and tokens by source, if there are several.
        :param raw: by the names in `NEWEST` and `SUMS`, and those of declared figures.
        :raises ValueError: for an unknown name, and for a mean of which only one value is given.
        """
        if unknown := raw.keys() - self._known:
            raise ValueError(f"unknown figure {', '.join(sorted(unknown))}: known are {', '.join(sorted(self._known))}; others must be declared")
        measured = [figure for figure in self.declared.values() if raw.keys() >= {*figure.raw}]
        if lonely := raw.keys() - {*NEWEST, *SUMS}.union(*(figure.raw for figure in measured)):
            raise ValueError(f"figure {', '.join(sorted(lonely))}: given without the other raw value of the mean")
        if len(self) and self.rows["step"][-1] == raw["step"]:
            self._open = (self._open - 1) % self._stride
        elif not self._open:
            if len(self) >= self._most_rows:
                self._merge()
            for name, values in self.rows.items():
                values.append(self._unmeasured[name])
            for columns in self.sources.values():
                for values in columns.values():
                    values.append(0)
        for name in NEWEST:
            self.rows[name][-1] = raw.get(name, 0)
        for name in SUMS:
            self.rows[name][-1] += raw.get(name, 0)
        for figure in measured:
            if all(math.isfinite(raw[name]) for name in figure.raw):
                for name, own in self._own[figure.name].items():
                    self.rows[own][-1] = raw[name] if figure.kind == "newest" else self.rows[own][-1] + raw[name]
        for source, sums in sources.items():
            if source not in self.sources:
                self.sources[source] = {name: [0] * len(self) for name in SourceLoss._fields}
            for name, value in zip(SourceLoss._fields, sums, strict=True):
                self.sources[source][name][-1] += value
        self._open = (self._open + 1) % self._stride

    def columns(self) -> dict[str, Values]:
        """Compute the columns that people read."""
        declared = {name: figure.column({raw: self.rows[own] for raw, own in self._own[name].items()}) for name, figure in self.declared.items()}
        return {figure.name: figure.column(self.rows) for figure in FIGURES} | declared

    def source_losses(self, source: str) -> Values:
        """Compute the column of a source's losses; None in rows where it had no part."""
        return BY_NAME["loss"].column(self.sources[source]) if source in self.sources else [None] * len(self)

    def loss_at_end(self, source: str) -> float | None:
        """Return a source's mean loss over the newest tenth of the rows; None where it had no part in them."""
        newest = slice(-max(1, math.ceil(_END * len(self))), None)
        loss_sum, n_tokens = (sum(self.sources.get(source, {}).get(name, [])[newest]) for name in SourceLoss._fields)
        return loss_sum / n_tokens if n_tokens else None

    def state(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"stride": self._stride, "open": self._open, "rows": _copy(self.rows),
                "sources": {source: _copy(columns) for source, columns in self.sources.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a `state`; figures must have been declared before."""
        self._stride, self._open = state["stride"], state["open"]
        rows = len(state["rows"]["step"])
        self.rows = {name: list(state["rows"].get(name, [fill] * rows)) for name, fill in self._unmeasured.items()}  # older files lack some columns
        self.sources = {source: _copy(columns) for source, columns in state.get("sources", {}).items()}

    def _merge(self) -> None:
        """Merge rows two by two."""
        for name, values in self.rows.items():
            if self._unmeasured[name] is None:
                self.rows[name] = [a if b is None else b for a, b in zip(values[::2], values[1::2], strict=True)]
            else:
                self.rows[name] = values[1::2] if name in NEWEST else _add_pairs(values)
        for columns in self.sources.values():
            for name, values in columns.items():
                columns[name] = _add_pairs(values)
        self._stride *= 2


def _copy(columns: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Copy columns."""
    return {name: list(values) for name, values in columns.items()}


def _add_pairs(values: Sequence[float]) -> list[float]:
    """Add values two by two."""
    return [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
