"""What an evaluation found: figures with intervals, and which of two models is better.  No torch.

A figure is the ratio of two sums over the documents of a set. Its interval is that of other documents of the same kind: documents are drawn with
replacement, and of two models compared the same ones (the paired bootstrap: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapters 13
and 16).
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEVEL = 0.95
RESAMPLES = 2000
# More documents are put into this many groups, which are drawn instead.
_MOST_GROUPS = 5000
# Differences up to this one are those of float32 sums in another order.
_ROUNDING = 1e-5
# The unit of a figure that compares across tokenizers, though some cannot write all bytes.
PER_BYTE = "bits per byte"
# Unit -> how a difference in it is written, and by what it is multiplied.
_IN_WORDS = {"nats per token": (1.0, "nats per token"), PER_BYTE: (1.0, "bits per byte"), "share": (100.0, "percentage points")}


@dataclass(frozen=True, eq=False)
class Measure:
    """A figure: the sum of `parts` divided by that of `weights`; both have a value for each document.

    `name` is that of the figure, `unit` "nats per token", "bits per byte", "share" or the empty string. `exponential` names a figure that is exp of this
    one.
    """

    name: str
    parts: Floats
    weights: Floats
    unit: str = "share"
    higher_is_better: bool = True
    exponential: str = ""

    @property
    def value(self) -> float:
        """The figure."""
        return float(self.parts.sum() / self.weights.sum())

    def of(self, chosen: NDArray[np.bool_]) -> Measure:
        """Give the figure of some of the documents.

        :param chosen: which of them.
        """
        return replace(self, parts=self.parts[chosen], weights=self.weights[chosen])

    def figures(self) -> list[Figure]:
        """Give the figure with its interval, and the one that is exp of it."""
        drawn = _drawn(self)
        low, high = self._of_none_or_all() or ((None, None) if drawn is None else _interval(drawn))
        value = self.value if math.isfinite(self.value) else None
        found = [Figure(self.name, value, low, high, self.unit)]
        if self.exponential:
            found.append(Figure(self.exponential, _exp(value), _exp(low), _exp(high), ""))
        return found


    def _of_none_or_all(self) -> tuple[float, float] | None:
        """Give the interval where none or all of several documents are right, of which drawing learns nothing: Clopper and Pearson 1934."""
        alike = {*self.parts.tolist()} in ({0.0}, {1.0}) and len(self.parts) > 1
        if self.unit != "share" or not alike or (self.weights != 1).any():
            return None
        end = ((1 - LEVEL) / 2) ** (1 / len(self.parts))
        return (end, 1.0) if self.parts[0] else (0.0, 1 - end)


@dataclass(frozen=True)
class Figure:
    """A figure of a model on a set with its interval of 95 %; None = unknown."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    unit: str


@dataclass(frozen=True, eq=False)
class Result:
    """What a model reached on a set.

    `kind` is texts, choices, preferences, answers or task; `settings` are those that change the figures; `counts` say how much was judged. The
    first of the `measures` decides which of two models is better. `further` are figures without values for each document. `numbers`
    are those of the documents that were judged, in ascending order, where some may have been left out; empty where all were judged.
    """

    kind: str
    set: str
    model: str
    source: str
    settings: dict[str, Any]
    counts: dict[str, int]
    measures: tuple[Measure, ...]
    further: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = field(default=())
    numbers: tuple[int, ...] = ()

    @property
    def figures(self) -> list[Figure]:
        """All figures."""
        return [*(figure for measure in self.measures for figure in measure.figures()), *self.further]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"kind": self.kind, "set": self.set, "source": self.source, "settings": self.settings, **self.counts,
                "figures": {one.name: {"value": one.value, "low": one.low, "high": one.high, "unit": one.unit} for one in self.figures}}


@dataclass(frozen=True)
class Difference:
    """A model's figure minus that of another one on the same documents, with its interval of 95 % (None with a single document)."""

    model: str
    other: str
    kind: str
    set: str
    figure: str
    unit: str
    documents: int
    difference: float
    low: float | None
    high: float | None
    higher_is_better: bool

    @property
    def more_than_noise(self) -> bool:
        """Whether zero lies outside the interval, by more than rounding: a model and its export are equal."""
        return self.low is not None and self.high is not None and (self.low > _ROUNDING or self.high < -_ROUNDING)

    @property
    def verdict(self) -> str:
        """Say in a line which is better, and by how much."""
        factor, words = _IN_WORDS.get(self.unit, (1.0, self.unit))
        words = f"{words} of {self.figure}" if self.unit == "share" else words or self.figure
        digits, on = (1 if factor > 1 else 3), f"{self.documents:,} document{'s' * (self.documents != 1)} of {self.set}"
        if self.low is None or self.high is None:
            return f"{self.model} and {self.other} differ by {self.difference * factor:+.{digits}f} {words} on {on}, which says nothing about others"
        half = (self.high - self.low) / 2 * factor
        if not self.more_than_noise:
            return (f"no difference between {self.model} and {self.other} beyond the noise of {on}: {self.difference * factor:+.{digits}f} "
                    f"± {half:.{digits}f} {words}")
        first, second = (self.model, self.other) if (self.difference > 0) == self.higher_is_better else (self.other, self.model)
        return f"{first} is better than {second} by {abs(self.difference) * factor:.{digits}f} ± {half:.{digits}f} {words} (95 % interval, {on})"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**{name: getattr(self, name) for name in ("model", "other", "kind", "set", "figure", "unit", "documents", "difference", "low", "high")},
                "more_than_noise": self.more_than_noise, "verdict": self.verdict}


def differences(results: Sequence[Result]) -> list[Difference]:
    """Compare each pair of models on the documents of each set that both were judged by, by the first figure that compares.

    Losses per token compare only where the tokens are the same.
    """
    found = []
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.kind, result.set), []).append(result)
    for (kind, name), group in groups.items():
        for one, other in itertools.combinations(group, 2):
            pairs = ((mine, theirs) for mine, theirs in itertools.product(_shared(one, other), _shared(other, one))
                     if mine.name == theirs.name and math.isfinite(mine.value) and math.isfinite(theirs.value))
            pair = next((pair for pair in pairs if pair[0].unit == PER_BYTE or np.array_equal(pair[0].weights, pair[1].weights)), None)
            if pair is not None:
                found.append(_difference(one.model, other.model, kind, name, *pair))
    return found


def _shared(one: Result, other: Result) -> Sequence[Measure]:
    """Give the figures of a model on the documents that another one was judged by, too; none where there are no such documents."""
    if one.numbers == other.numbers:
        return one.measures
    chosen = np.isin(one.numbers, other.numbers)
    return [measure.of(chosen) for measure in one.measures if measure.weights[chosen].any()]


def _difference(model: str, other: str, kind: str, name: str, mine: Measure, theirs: Measure) -> Difference:
    """Compare two models by a figure."""
    drawn, others = _drawn(mine), _drawn(theirs)
    low, high = (None, None) if drawn is None or others is None else _interval(drawn - others)
    return Difference(model, other, kind, name, mine.name, mine.unit, len(mine.parts), mine.value - theirs.value, low, high, mine.higher_is_better)


def _drawn(measure: Measure) -> Floats | None:
    """Compute the figure for documents drawn with replacement, again and again, (RESAMPLES,); None with a single document."""
    parts, weights = _grouped(measure.parts), _grouped(measure.weights)
    if len(parts) < 2:
        return None
    chosen = _choices(len(parts))
    sums = weights[chosen].sum(1)
    ratios = np.full(len(sums), np.nan)
    np.divide(parts[chosen].sum(1), sums, out=ratios, where=sums > 0)
    return ratios


def _interval(drawn: Floats) -> tuple[float | None, float | None]:
    """Give the percentiles that `LEVEL` lies between."""
    known = drawn[np.isfinite(drawn)]
    if not len(known):
        return None, None
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return low, high


@lru_cache(maxsize=2)
def _choices(count: int) -> NDArray[np.int32]:
    """Draw the documents, (RESAMPLES, count); the same for all figures of all models."""
    return np.random.default_rng(0).integers(0, count, (RESAMPLES, count), dtype=np.int32)


def _grouped(values: Floats) -> Floats:
    """Add up the values of many documents by groups."""
    if len(values) <= _MOST_GROUPS:
        return values
    groups = np.zeros(_MOST_GROUPS)
    np.add.at(groups, np.arange(len(values)) % _MOST_GROUPS, values)
    return groups


def _exp(value: float | None) -> float | None:
    """Compute exp; None where it is too large for a number."""
    return None if value is None or value > 700 else math.exp(value)
