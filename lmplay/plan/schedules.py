"""Schedules: parts in a row, each with a shape, over a share of a stage or over a number of steps, samples or tokens.  Plan floor, no torch.

Where a schedule is follows from how far the stage is, but for two things: how far it was when a part in another unit than the stage's length ended, and
what validations have made of a plateau. These are in :class:`Place`, which a checkpoint keeps.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import harmonic_mean
from typing import Any

from ..errors import UserError
from .names import PLATEAU, SCHEDULES

UNITS = ("steps", "samples", "tokens")
REST = "rest"
_SHARE = "share"
# Shares are sums of decimal fractions.
_ROUNDING = 1e-9
# Places of a stage that the mean of a schedule is taken over.
_MEAN_OF = 256


class ScheduleFault(ValueError):
    """What is wrong with a schedule: the part and key, such as "[2].samples" (empty = the whole), and the rest of a fault line."""

    def __init__(self, key: str, fault: str):
        super().__init__(fault)
        self.key, self.fault = key, fault


@dataclass(frozen=True)
class SchedulePart:
    """A part of a schedule: a shape of :data:`SCHEDULES`, its settings, and its length.

    `start` is the value it starts at (None = the one that the part before has reached), `end` the one it ends at; `unit` is that of the `length`:
    steps, samples or tokens, "share" for a share of the stage, or "rest".
    """

    name: str
    start: float | None
    end: float | None
    unit: str
    length: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    def value(self, start: float, progress: float) -> float:
        """Give the value where the part is.

        :param start: the value it started at.
        :param progress: share of the part, 0 to 1 (more counts as 1).
        """
        row, end = SCHEDULES[self.name], start if self.end is None else self.end
        if row.curve is None:
            return start
        progress = min(1.0, max(0.0, progress))
        if row.by_ratio:
            return start * row.curve(progress, end / start, **self.settings)
        return end + (start - end) * row.curve(progress, **self.settings)

    def in_words(self) -> str:
        """Describe the part."""
        ends = [f"{word} {value:g}" for word, value in (("from", self.start), ("to", None if self.name == "constant" else self.end)) if value is not None]
        settings = [f"{name} {', '.join(map(str, value)) if isinstance(value, (list, tuple)) else value}" for name, value in self.settings.items()]
        length = REST if self.unit == REST else f"{self.length * 100:.4g}%" if self.unit == _SHARE else f"{self.length:,g} {self.unit}"
        return " ".join([self.name, *ends, *settings, f"({length})"])


@dataclass(frozen=True)
class Place:
    """Where a schedule is.

    `part` is the number of its part, `start` the value that this started at, and `progress`, `steps`, `samples` and `tokens` where it began. A plateau's
    value has been multiplied by `factor`; `best` is its lowest validation loss, and `stale` counts the validations since then.
    """

    part: int = 0
    start: float = 1.0
    progress: float = 0.0
    steps: float = 0
    samples: float = 0
    tokens: float = 0
    factor: float = 1.0
    best: float | None = None
    stale: int = 0


@dataclass(frozen=True)
class Chain:
    """The parts of a schedule, in order."""

    parts: tuple[SchedulePart, ...]

    @property
    def begin(self) -> Place:
        """The start of the first part."""
        start = self.parts[0].start
        return Place(start=1.0 if start is None else start)

    @property
    def needs_length(self) -> bool:
        """Whether it must be known how long the stage is."""
        return self._n_leading < len(self.parts) - 1 or any(part.unit == _SHARE or (part.unit == REST and SCHEDULES[part.name].curve is not None)
                                                          for part in self.parts)

    @property
    def has_plateau(self) -> bool:
        """Whether validations change its value."""
        return any(part.name == PLATEAU for part in self.parts)

    @property
    def values(self) -> list[float]:
        """The values at the ends of its parts, between which all others are; those that a plateau's drops lead to are not known."""
        found = [self.begin.start]
        for part in self.parts:
            found += [found[-1] if part.start is None else part.start] + ([] if part.end is None else [part.end])
        return found

    def move(self, place: Place, now: Mapping[str, float | None]) -> Place:
        """Go on to the part that comes now.

        :param place: where the schedule was.
        :param now: `progress` of the stage (None = unknown), and its `steps`, `samples` and `tokens` so far.
        :raises UserError: when the place is none of this schedule, as in a damaged file.
        """
        if place.part >= len(self.parts):
            raise UserError(f"lr_schedulers: the file is at part {place.part + 1} of a schedule of {len(self.parts)}; it is damaged, or of another plan.")
        while (found := self._next(place, now)) is not None:
            number, ended = found
            start = self.parts[number].start
            began = {**{name: value for name, value in now.items() if value is not None}, **ended}
            place = replace(Place(number, self.value(place, now) if start is None else start), **began)  # type: ignore[arg-type]
        return place

    def value(self, place: Place, now: Mapping[str, float | None]) -> float:
        """Give the value at a place that :meth:`move` gave for `now`."""
        part = self.parts[place.part]
        if part.name == PLATEAU:
            return min(place.start, max(place.start * place.factor, part.end or 0.0))
        return part.value(place.start, self._done(place, now))

    def at(self, progress: float) -> float:
        """Give the value at a share of the stage, of a schedule that depends on that alone."""
        now = {"progress": min(1.0, max(0.0, progress))}
        return self.value(self.move(self.begin, now), now)

    def mean(self, harmonic: bool = False) -> float:
        """Give the mean of its values over the stage, for a schedule that depends on the progress alone; `harmonic` = of those above 0 their harmonic mean."""
        values = [self.at((number + 0.5) / _MEAN_OF) for number in range(_MEAN_OF)]
        return harmonic_mean(values) if harmonic else math.fsum(values) / len(values)

    def cut_short(self, totals: Mapping[str, float | None]) -> list[str]:
        """Describe the parts before the rest that end before they have reached their length, or never begin.

        :param totals: the `steps`, `samples` and `tokens` of the whole stage; None = unknown.
        """
        found, end = [], 0.0
        for part in self.parts[:self._n_leading]:
            total = 1.0 if part.unit == _SHARE else totals[part.unit]
            if total is None:
                break
            end += part.length / total
            if end > self._ends[0] + _ROUNDING:
                found.append(part.in_words())
        return found

    def judged(self, place: Place, loss: float) -> Place:
        """Take note of a validation.

        :param place: where the schedule is.
        :param loss: in nats per token.
        """
        part = self.parts[place.part]
        if part.name != PLATEAU:
            return place
        if place.best is None or loss < place.best:
            return replace(place, best=loss, stale=0)
        over = place.stale + 1 >= part.settings["patience"]
        return replace(place, stale=0 if over else place.stale + 1, factor=place.factor * part.settings["factor"] if over else place.factor)

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self) -> str:
        """Describe the schedule; one of a single shape by the name of that, and its settings."""
        if len(self.parts) > 1 or self.parts[0].start is not None:
            return ", then ".join(part.in_words() for part in self.parts)
        return replace(self.parts[0], end=None).in_words().removesuffix(f" ({REST})")

    @cached_property
    def _n_leading(self) -> int:
        """The number of the part that takes the rest; of the last, where there is none."""
        return next((number for number, part in enumerate(self.parts) if part.unit == REST), len(self.parts) - 1)

    @cached_property
    def _ends(self) -> list[float]:
        """The share of the stage at which the part that takes the rest, and each behind it, ends."""
        behind = [part.length for part in self.parts[self._n_leading + 1:]]
        return [1.0 - math.fsum(behind[number:]) for number in range(len(behind) + 1)]

    def _next(self, place: Place, now: Mapping[str, float | None]) -> tuple[int, dict[str, float]] | None:
        """Give the number of the part that comes next, and where it begins as far as that is exactly known; None where the current one goes on."""
        part, progress = self.parts[place.part], now["progress"]
        if place.part == len(self.parts) - 1:
            return None
        key = part.unit if part.unit in UNITS else "progress"
        end = self._ends[place.part - self._n_leading] if place.part >= self._n_leading else getattr(place, key) + part.length
        reached = now[key]
        if reached is not None and reached >= end:
            return place.part + 1, {key: end}
        first_behind = self._n_leading + 1
        if place.part < first_behind < len(self.parts) and progress is not None and progress >= self._ends[0]:  # cut short
            return first_behind, {"progress": self._ends[0]}
        return None

    def _done(self, place: Place, now: Mapping[str, float | None]) -> float:
        """Give the share of the current part that is done."""
        part = self.parts[place.part]
        if part.unit in UNITS:
            return ((now[part.unit] or 0) - getattr(place, part.unit)) / part.length
        length = part.length if place.part < self._n_leading else self._ends[place.part - self._n_leading] - place.progress
        return ((now["progress"] or 0.0) - place.progress) / length if length > 0 else 1.0


def chain_of(parts: Sequence[Mapping[str, Any]], unit: str, length: float, values: bool = False) -> Chain:
    """Make a schedule of the parts that a plan has.

    :param parts: as in a plan, each a dictionary.
    :param unit: that of the stage's length.
    :param length: of the stage.
    :param values: they give values, not factors: their start and end must be given, and lengths in other units than that of the stage have no meaning.
    :raises ScheduleFault: when they do not add up.
    """
    found, before = list[SchedulePart](), None if values else 1.0
    for number, part in enumerate(parts):
        row, key = SCHEDULES[part["name"]], f"[{number}]" if len(parts) > 1 else ""
        start = part.get("from", before)
        end = part.get("to", part.get("min_fraction"))
        if start is None and (values or row.by_ratio):
            raise ScheduleFault(f"{key}.from", f"found nothing, allowed: the value that it starts at{'' if values else ', as it comes after a plateau'}")
        if end is None and values and row.curve is not None:
            raise ScheduleFault(f"{key}.to", "found nothing, allowed: the value that it ends at")
        if end is None:
            end = 1.0 if row.curve is not None and part.get("from", 1.0) < 1 else row.min_fraction
        end = end if row.curve is not None or row.name == PLATEAU else start
        if row.by_ratio and not (start and end):
            raise ScheduleFault(f"{key}", f"found {row.name} from {start:g} to {end:g}, allowed: numbers above 0")
        settings = {name: part.get(name, default) for name, default in row.takes.items()}
        found.append(SchedulePart(row.name, part.get("from"), end, *_length_of(part, key, len(parts), unit, length), settings))
        before = None if row.name == PLATEAU else end
    _check_lengths(found, unit, values)
    return Chain(tuple(found))


def _length_of(part: Mapping[str, Any], key: str, n_parts: int, unit: str, length: float) -> tuple[str, float]:
    """Read the length of a part: its unit, and how long it is."""
    given = next((name for name in UNITS if part.get(name) is not None), None)
    if given is None:
        if n_parts > 1:
            raise ScheduleFault(key, f'found no length, allowed: {", ".join(UNITS)} with a number, a share of the stage such as "5%", or "{REST}"')
        return REST, 0.0
    value = part[given]
    if value == REST:
        return REST, 0.0
    if isinstance(value, str):
        return _SHARE, float(value.removesuffix("%")) / 100
    return (_SHARE, value / length) if given == unit else (given, value)


def _check_lengths(parts: Sequence[SchedulePart], unit: str, values: bool) -> None:
    """Raise ScheduleFault when the parts do not add up to the stage."""
    rests = [number for number, part in enumerate(parts) if part.unit == REST]
    own = 'a share such as "5%"' + f" or {unit}" * (unit in UNITS)
    if len(rests) > 1:
        raise ScheduleFault(f"[{rests[1]}]", f'found a second part with the length "{REST}", allowed: one')
    if [part.name for part in parts].count(PLATEAU) > 1:
        raise ScheduleFault("", f"found {PLATEAU} twice, allowed: once")
    for number, part in enumerate(parts):
        if part.unit in UNITS and (values or (rests and number > rests[0])):
            where = "" if values else f' behind the "{REST}"'
            raise ScheduleFault(f"[{number}].{part.unit}" if len(parts) > 1 else f".{part.unit}",
                                f"found {part.length:,g}{where}, in a stage whose length is in {unit}, allowed: {own}")
    others = [part for part in parts if part.unit in UNITS]
    shares = math.fsum(part.length for part in parts if part.unit == _SHARE)
    if others and not rests:
        raise ScheduleFault("", f'found {others[0].unit}, in a stage whose length is in {unit}, and no part with the length "{REST}", allowed: one such part')
    if shares > 1 + _ROUNDING or (rests and shares > 1 - _ROUNDING):
        raise ScheduleFault("", f'found parts of {shares * 100:.6g}% of the stage{" and a rest" * bool(rests)}, allowed: '
                            + ("less than 100%" if rests else "100% together"))
    if not rests and shares < 1 - _ROUNDING:
        raise ScheduleFault("", f'found parts of {shares * 100:.6g}% of the stage, allowed: 100% together, or one part with the length "{REST}"')

