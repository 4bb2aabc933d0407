"""A learning rate schedule over the whole plan (`$lr_schedule`): each stage follows its share of it.  Plan floor, no torch."""
from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .schedules import UNITS, Chain, Place, ScheduleFault, chain_of


@dataclass(frozen=True)
class ChainOverPlan(Chain):
    """A stage's share of a schedule over the plan, from `begin_at` to `end_at`. It is a function of the stage's progress alone."""

    begin_at: float
    end_at: float

    @property
    def needs_length(self) -> bool:
        """See :class:`Chain`."""
        return True

    def move(self, place: Place, now: Mapping[str, float | None]) -> Place:
        """See :class:`Chain`. The place follows from the progress: the plan may have become longer since it was noted."""
        return self._whole.move(self.begin, self._over_plan(now))

    def value(self, place: Place, now: Mapping[str, float | None]) -> float:
        """See :class:`Chain`."""
        return self._whole.value(place, self._over_plan(now))

    def in_words(self) -> str:
        """Describe the schedule and the share."""
        return f"{super().in_words()}, over the plan ({self.begin_at:.4g} to {self.end_at:.4g} of it)"

    @cached_property
    def _whole(self) -> Chain:
        """The schedule of the plan."""
        return Chain(self.parts)

    def _over_plan(self, now: Mapping[str, float | None]) -> dict[str, float | None]:
        """Turn the progress of the stage into that of the plan."""
        return {"progress": self.begin_at + (self.end_at - self.begin_at) * (now["progress"] or 0.0)}


def chain_over_plan(parts: Sequence[Mapping[str, Any]], unit: str, length: float) -> Chain:
    """Make a schedule over a plan.

    :param parts: as in a plan, each a dictionary.
    :param unit: that of the lengths of all stages.
    :param length: all of them together.
    :raises ScheduleFault: when they do not add up, or depend on more than the progress.
    """
    try:
        chain = chain_of(parts, unit, length)
    except ScheduleFault as fault:
        raise ScheduleFault(fault.key, fault.fault.replace("a stage whose length", "a plan whose length").replace("of the stage", "of the plan")) from None
    if chain.has_plateau:
        raise ScheduleFault("", "found plateau, allowed: any other shape, as validations of different stages cannot be compared")
    for number, part in enumerate(chain.parts):
        if part.unit in UNITS:
            raise ScheduleFault(f"[{number}].{part.unit}", f'found {part.length:,g}, in a plan whose lengths are in {unit}, allowed: a share such as "5%"'
                                + f" or {unit}" * (unit in UNITS))
    return chain


def shares_of_plan(parts: Sequence[Mapping[str, Any]], lengths: Sequence[tuple[str, str, float]]) -> list[dict[str, Any]]:
    """Divide a schedule among the stages of a plan, by their lengths.

    :param parts: as in a plan, each a dictionary.
    :param lengths: of each stage its name, the unit of its length, and how long it is.
    :return: for each stage the `unit` and `length` of the plan, and where in it the stage begins and ends (0 to 1).
    :raises ScheduleFault: when the lengths cannot be compared, or the parts do not add up.
    """
    unit = lengths[0][1]
    for name, other, _ in lengths:
        if len(lengths) > 1 and (other != unit or unit not in UNITS):
            raise ScheduleFault("", f"found stage '{name}' with a length in {other}, allowed: lengths of all stages in one of {', '.join(UNITS)}")
    total = math.fsum(length for *_, length in lengths)
    chain_over_plan(parts, unit, total)
    ends = [math.fsum(length for *_, length in lengths[:number]) / total for number in range(len(lengths) + 1)]
    return [{"unit": unit, "length": total, "begin": begin, "end": end} for begin, end in itertools.pairwise(ends)]
