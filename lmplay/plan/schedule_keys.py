"""The keys of schedules, and what does not add up in them; see :mod:`.schedules`.  Plan floor, no torch."""
from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from ..words import number
from .names import SCHEDULE_SETTINGS, SCHEDULES, VALUE_SCHEDULES, in_words
from .options import CHANGING, MOST
from .over_plan import ChainOverPlan, chain_over_plan, shares_of_plan
from .part import Count, Part, key_of, one_of, option
from .schedules import REST, UNITS, Chain, ScheduleFault, chain_of

LENGTHS = ("epochs", "samples", "tokens", "steps")
_SHARE = r"[0-9]+(\.[0-9]+)?%"
_PART_LENGTH = f'a whole number, 1 or more, a share of the stage such as "5%", or "{REST}"'


def _part_length(value: int | str) -> int | str:
    """Take a number, a share of the stage such as "5%", or the rest."""
    if value == REST or (isinstance(value, int) and 1 <= value <= MOST):
        return value
    if isinstance(value, str) and re.fullmatch(_SHARE, value) and 0 < float(value[:-1]) <= 100:
        return value
    raise PydanticCustomError("part_length", "a length")


ScheduleName = Annotated[str, one_of(lambda: SCHEDULES), WithJsonSchema({"type": "string", "enum": [*SCHEDULES]})]
ValueScheduleName = Annotated[str, one_of(lambda: VALUE_SCHEDULES), WithJsonSchema({"type": "string", "enum": [*VALUE_SCHEDULES]})]
PartLength = Annotated[int | str, AfterValidator(_part_length), WithJsonSchema(
    {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST}, {"type": "string", "pattern": f"^({_SHARE}|{REST})$"}]})]


class PartOfSchedule(Part):
    """A part of a schedule: a shape, and a length."""

    from_: float | None = option("Where a part starts", "a number, 0 or more", ge=0, alias="from")
    to: float | None = option("Where it ends", "a number, 0 or more", ge=0)
    steps: PartLength | None = option("Length of a part in optimizer steps", _PART_LENGTH)
    samples: PartLength | None = option("Length of a part in samples", _PART_LENGTH)
    tokens: PartLength | None = option("Length of a part in tokens", _PART_LENGTH)
    at: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1)] | None = option(
        "Where step drops, as shares of the part", "a list of numbers between 0 and 1")
    power: float | None = option("Exponent of polynomial", "a number above 0", gt=0)

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        lengths = [key for key in UNITS if key in given]
        if len(lengths) > 1:
            yield lengths[1], f"found {' and '.join(lengths)} together, allowed: one of {', '.join(UNITS)}"
        name = given.get("name")
        if isinstance(name, str) and name in SCHEDULES:
            takes = SCHEDULES[name].takes
            yield from ((key, f"found it with {name}, allowed: {', '.join(takes) or 'no settings'}")
                        for key in SCHEDULE_SETTINGS if key in given and key not in takes)
            if "to" in given and name == "constant":
                yield "to", "found it with constant, allowed: from"


class LrSchedule(PartOfSchedule):
    """How the learning rate changes, in factors of lr: the shape of a whole stage, or, in a list, of a part of it."""

    short_forms: ClassVar[dict[type, str]] = {str: "name"}

    name: ScheduleName = Field(title="Shape", description=in_words([*SCHEDULES]))
    min_fraction: float | None = option("Where it ends, for a whole stage", "a number from 0 to 1", ge=0, le=1)
    patience: Count | None = option("Validations without an improvement before plateau drops", "a whole number, 1 or more")
    factor: float | None = option("What plateau drops by", "a number between 0 and 1", gt=0, lt=1)

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        yield from super().conflicts(given)
        if "to" in given and "min_fraction" in given:
            yield "min_fraction", "found it beside to, allowed: one of them"


OneScheduleOrParts = Annotated[
    Annotated[LrSchedule, Tag("[one]")] | Annotated[list[LrSchedule], Field(min_length=1), Tag("[parts]")],
    Discriminator(lambda value: "[parts]" if isinstance(value, list) else "[one]")]
LR_SCHEDULE = f'{", ".join(SCHEDULES)}, {{"name": ..., "to": ...}}, or a list of such parts'


class ShareOfPlan(Part):
    """A stage's share of the plan's `$lr_schedule`; see :func:`lmplay.plan.over_plan.shares_of_plan`. Its optimizer may go on from the stage before."""

    schedule: OneScheduleOrParts
    unit: str
    length: float
    begin: float
    end: float
    optimizer_is_fresh: bool = True

    @property
    def chain(self) -> Chain:
        """The schedule of the stage."""
        return ChainOverPlan(chain_over_plan(plain_parts(LrSchedule, self.schedule), self.unit, self.length).parts, self.begin, self.end)


class ValuePart(PartOfSchedule):
    """A part of a schedule of values."""

    name: ValueScheduleName = Field(title="Shape", description=in_words([*VALUE_SCHEDULES]))


IN_PARTS = 'a list of parts such as {"name": ..., "from": ..., "to": ..., "steps": ...}'
_ONE_OR_PARTS = Discriminator(lambda value: "[parts]" if isinstance(value, list) else "[one]")
ValueParts = Annotated[list[ValuePart], Field(min_length=1), Tag("[parts]")]
BatchSize = Annotated[Annotated[int, Field(ge=CHANGING["batch_size"], le=MOST), Tag("[one]")] | ValueParts, _ONE_OR_PARTS]
ContextLen = Annotated[Annotated[int, Field(ge=CHANGING["context_len"], le=MOST), Tag("[one]")] | ValueParts, _ONE_OR_PARTS]
WeightDecay = Annotated[Annotated[float, Field(ge=CHANGING["weight_decay"]), Tag("[one]")] | ValueParts, _ONE_OR_PARTS]


def parts_of(schedule: Any) -> list[Any]:
    """List the parts of a schedule, parsed or not yet."""
    return schedule if isinstance(schedule, list) else [] if schedule is None else [schedule]


def only_in_a_list(schedule: Any, where: str) -> Iterator[tuple[str, str]]:
    """Find keys of a schedule of one shape, parsed or not yet, that only parts have."""
    if not isinstance(schedule, list):
        yield from ((f"{where}.{key}", "found it outside a list of parts, allowed: in a list") for key in ("from", *UNITS)
                    if key_of(schedule, key if isinstance(schedule, dict) else "from_" if key == "from" else key) is not None)


def plain_parts(kind: type[PartOfSchedule], schedule: Any) -> list[dict[str, Any]]:
    """Write out the parts of a schedule, parsed or not yet; raises ValidationError."""
    parts = [part if isinstance(part, kind) else kind.model_validate(part) for part in parts_of(schedule)]
    return [part.model_dump(by_alias=True, exclude_none=True) for part in parts]


def divide_over_plan(schedule: Any, stages: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Give each stage its share of the plan's `$lr_schedule`, as :class:`ShareOfPlan` reads it.

    :param schedule: as in a plan.
    :param stages: by name, as written, with `$defaults` in them.
    :raises ScheduleFault: when the lengths cannot be compared, the parts do not add up, or a stage has a schedule of its own.
    :raises ValueError: when something in it has a fault of its own.
    """
    if (own := next((name for name, stage in stages.items() if stage.get("lr_schedule") is not None), None)) is not None:
        raise ScheduleFault("", f"found stage '{own}' with an lr_schedule of its own (or that of $defaults), allowed: one of them")
    lengths = [(name, *_length_as_written(stage)) for name, stage in stages.items()]
    shares = shares_of_plan(plain_parts(LrSchedule, schedule), lengths)
    updated_by = [(stage.get("optimizer"), stage.get("adapter")) for stage in stages.values()]
    goes_on = [False, *(one == other and one[1] is None for one, other in itertools.pairwise(updated_by))]
    return [{"schedule": schedule, **share, "optimizer_is_fresh": not same} for share, same in zip(shares, goes_on, strict=True)]


def _length_as_written(stage: dict[str, Any]) -> tuple[str, float]:
    """Read the unit and the length of a stage that may not have been parsed yet; raises ValueError for one that is none."""
    unit = next((unit for unit in LENGTHS if stage.get(unit) is not None), "epochs")
    length = stage.get(unit, 1.0)
    length = number(length) if isinstance(length, str) else length
    if not isinstance(length, (int, float)) or length <= 0:
        raise ValueError(f"{length} is no length")
    return unit, length


def fault_of_schedule(kind: type[PartOfSchedule], schedule: Any, stage: dict[str, Any]) -> ScheduleFault | None:
    """Find what does not add up in the schedule of a stage, parsed or not yet; faults in its parts are found elsewhere."""
    try:
        parts = plain_parts(kind, schedule)
        if parts:
            chain_of(parts, *_length_as_written(stage), values=kind is ValuePart)
    except ScheduleFault as fault:
        return fault
    except ValueError:
        return None
    return None
