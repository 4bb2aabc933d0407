"""The shape of a plan: its keys, their ranges, and the JSON Schema made from them.

The description of a field says what is allowed in plain words: editors show it (through the JSON Schema), and so does the fault line of a wrong value.
"""
from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ..cadence import AUTO, check_interval
from ..words import number
from .catalog import CATALOG, expand, is_endless, kind_of
from .names import (
    ADAPTER_TARGETS,
    ADAPTERS,
    CODE,
    OBJECTIVE_SETTINGS,
    OBJECTIVES,
    OPTIMIZER_SETTINGS,
    OPTIMIZERS,
    PLATEAU,
    REWARD_SETTINGS,
    REWARDS,
    SCHEDULE_SETTINGS,
    SCHEDULES,
    VALUE_SCHEDULES,
    in_words,
    objectives,
)
from .options import CHANGING, FLAGS, MOST, Number
from .over_plan import ChainOverPlan, chain_over_plan, shares_of_plan
from .schedules import REST, UNITS, Chain, ScheduleFault, chain_of

STAGE_NAME = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$"
# Names that are not for sets of `evaluate`: the statistics have samples of a stage's own under them (lmplay.stats.totals).
KEPT_SETS = ("validation", "held_out")
LENGTHS = ("epochs", "samples", "tokens", "steps")
_SHARE = r"[0-9]+(\.[0-9]+)?%"
_PART_LENGTH = f'a whole number, 1 or more, a share of the stage such as "5%", or "{REST}"'
_SHORT_NUMBER = r"[0-9][0-9_]*(\.[0-9]+)?[kMB]"
# A source with less than this part of a mix would have hardly a row, and the others come many times before it has been read once.
_MOST_UNEQUAL = 10_000
ROLES = ("text", "title", "prompt", "truth", "instruction", "input", "output", "messages", "system", "chosen", "rejected")
COLUMN_SETS = ({"text"}, {"text", "title"}, {"prompt", "truth"}, {"instruction", "output"}, {"instruction", "input", "output"}, {"messages"},
               {"chosen", "rejected"}, {"prompt", "chosen", "rejected"}, {"system", "prompt", "chosen", "rejected"})
_COLUMN_SETS_IN_WORDS = ("text, text and title, prompt and truth, instruction (and input) and output, messages, "
                         "or (system and) prompt (or neither), chosen and rejected")
_FLAGS = {flag.name: flag for flag in FLAGS}


def option(title: str, allowed: str, **limits: Any) -> Any:
    """Make a field that may be left out (None), with a title for what the key is for, what it may hold in plain words, and limits of :func:`pydantic.Field`."""
    return Field(default=None, title=title, description=allowed, **limits)


def flag_key(name: str, level: str, allowed: str = "", **more: Any) -> Any:
    """Make a field for a key that is a flag too: title and limits are those of the table of flags.

    :param level: where the key is, see :class:`lmplay.plan.options.Flag`.
    :param allowed: what it may hold, in plain words, where that is not just a number.
    :param more: other arguments of :func:`pydantic.Field`.
    """
    title, check = _FLAGS[name].keys[level], _FLAGS[name].check
    return option(title, check.allowed_in_plan, **check.limits, **more) if isinstance(check, Number) and not allowed else option(title, allowed, **more)


def _one_of(names: Callable[[], Iterable[str]], other: re.Pattern[str] | None = None) -> AfterValidator:
    """Make a check that accepts the names that a table has when it runs, and what matches the `other` pattern."""
    def check(value: str) -> str:
        allowed = list(names())
        if value not in allowed and not (other and other.fullmatch(value)):
            raise PydanticCustomError("unknown_name", "one of {expected}", {"expected": ", ".join(map(repr, allowed))})
        return value

    return AfterValidator(check)


def _steps_or_fraction(value: float) -> float:
    """Take a whole number of steps, or a fraction below 1."""
    if not 0 <= value <= MOST or (value >= 1 and value != int(value)):
        raise PydanticCustomError("warmup", "a whole number, or a fraction below 1")
    return value


def _part_length(value: int | str) -> int | str:
    """Take a number, a share of the stage such as "5%", or the rest."""
    if value == REST or (isinstance(value, int) and 1 <= value <= MOST):
        return value
    if isinstance(value, str) and re.fullmatch(_SHARE, value) and 0 < float(value[:-1]) <= 100:
        return value
    raise PydanticCustomError("part_length", "a length")


def _evaluation_interval(value: int | str) -> int | str:
    """Take an interval, see :func:`lmplay.cadence.check_interval`."""
    try:
        if value != AUTO:
            return check_interval(value)
    except ValueError:
        pass
    raise PydanticCustomError("interval", "an interval")


def _listed(value: Any) -> Any:
    """Wrap a single source in a list."""
    return [value] if isinstance(value, (str, dict, BaseModel)) else value


def _types(annotation: Any) -> set[Any]:
    """List the plain types of an annotation such as `int | None`."""
    inner = get_args(annotation)
    return {annotation} if not inner else set().union(*map(_types, inner[:1] if hasattr(annotation, "__metadata__") else inner))


def _get(part: Any, key: str) -> Any:
    """Read a key of a part, parsed or not yet; None when not given."""
    return part.get(key) if isinstance(part, dict) else getattr(part, key, None)


Count = Annotated[int, Field(ge=1, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(min_length=1)]
ScheduleName = Annotated[str, _one_of(lambda: SCHEDULES), WithJsonSchema({"type": "string", "enum": [*SCHEDULES]})]
ValueScheduleName = Annotated[str, _one_of(lambda: VALUE_SCHEDULES), WithJsonSchema({"type": "string", "enum": [*VALUE_SCHEDULES]})]
OptimizerName = Annotated[str, _one_of(lambda: OPTIMIZERS, CODE), WithJsonSchema(
    {"anyOf": [{"type": "string", "enum": [*OPTIMIZERS]}, {"type": "string", "pattern": f"^{CODE.pattern}$"}]})]
Beta = Annotated[float, Field(ge=0, lt=1)]
Warmup = Annotated[int | float, AfterValidator(_steps_or_fraction), WithJsonSchema(
    {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
               {"type": "string", "pattern": f"^{_SHORT_NUMBER}$"}]})]
Interval = Annotated[int | str, AfterValidator(_evaluation_interval), WithJsonSchema(
    {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MOST}, {"type": "string", "pattern": "^[0-9]"}]})]
PartLength = Annotated[int | str, AfterValidator(_part_length), WithJsonSchema(
    {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST}, {"type": "string", "pattern": f"^({_SHARE}|{REST})$"}]})]
ObjectiveName = Annotated[str, _one_of(objectives), WithJsonSchema({"type": "string", "examples": [*OBJECTIVES]})]
AdapterKind = Annotated[str, _one_of(lambda: ADAPTERS), WithJsonSchema({"type": "string", "enum": [*ADAPTERS]})]
AdapterTargets = Annotated[
    Annotated[str, _one_of(lambda: ADAPTER_TARGETS), WithJsonSchema({"type": "string", "enum": [*ADAPTER_TARGETS]}), Tag("[one]")]
    | Annotated[list[Text], Field(min_length=1), Tag("[several]")], Discriminator(lambda value: "[several]" if isinstance(value, list) else "[one]")]
RewardName = Annotated[str, _one_of(lambda: REWARDS, CODE), WithJsonSchema(
    {"anyOf": [{"type": "string", "enum": [*REWARDS]}, {"type": "string", "pattern": f"^{CODE.pattern}$"}]})]
Role = Annotated[str, Field(pattern=f"^({'|'.join(ROLES)})$")]
Columns = Annotated[dict[Role, Text], WithJsonSchema(
    {"type": "object", "properties": {role: {"type": "string", "minLength": 1} for role in ROLES}, "additionalProperties": False})]


class Part(BaseModel):
    """A strict, frozen object: unknown keys are faults, and no value is converted to another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)
    short_forms: ClassVar[dict[type, str]] = {}

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Find keys that contradict each other: pairs of a key and its fault.

        :param given: the keys that are not None, parsed or as written (their own faults are reported elsewhere).
        """
        return iter(())

    @classmethod
    def written_out(cls, value: Any) -> Any:
        """Write out a short form: a plain value stands for an object with one key."""
        key = cls.short_forms.get(type(value))
        return value if key is None else {key: value}

    @model_validator(mode="before")
    @classmethod
    def _write_out(cls, value: Any) -> Any:
        return cls.written_out(value)

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: Any, info: ValidationInfo) -> Any:
        """Convert a float such as 1e6 to the whole number it is, as JSON Schema does, and a text such as "10k" where a whole number belongs."""
        if isinstance(value, str) and re.fullmatch(_SHORT_NUMBER, value) and int in _types(cls.model_fields[str(info.field_name)].annotation):
            value = number(value)
        return int(value) if isinstance(value, float) and value.is_integer() else value

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Part:
        for key, fault in self.conflicts({key: value for key, value in self if value is not None}):
            raise ValueError(f"{key}: {fault}")
        return self


class SourceSpec(Part):
    """Where rows come from."""

    short_forms: ClassVar[dict[type, str]] = {str: "path"}

    path: Text = Field(title="Data set", description='a short name, a hub path "owner/name", a file, folder or glob, or "builtin:tales"')
    config: Text | None = option("Configuration of a hub data set", "a text")
    split: Text | None = option("Split to read", "a text")
    revision: Text | None = option("Revision of a hub data set", "a text: branch, tag or commit")
    streaming: bool | None = option("Read while training instead of downloading first", "true or false")
    columns: Columns | None = option("Which field of a row is what", f"an object of {_COLUMN_SETS_IN_WORDS} to field names")
    weight: float | None = option("Share of this source in the mix", "a number above 0", gt=0)
    encoding_errors: Literal["replace", "refuse"] | None = option("What is done with bytes that are not UTF-8", "replace (and count) or refuse")
    on_bad_row: Literal["skip", "stop"] | None = option("What is done with a row that cannot be read", "skip (and count) or stop")
    row_bytes: int | None = option("Longest row of a text file, in bytes", "a whole number, 64 or more", ge=64)
    rows: Literal["lines", "articles"] | None = option("How rows become texts", "lines (each row is one) or articles (rows are joined at their headings)")
    chat: Literal["plain", "tokenizer"] | None = option("How chats are written out", "plain or tokenizer (its chat template)")

    @classmethod
    def written_out(cls, value: Any) -> Any:
        value = super().written_out(value)
        return expand(value) if isinstance(value, dict) else value

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        columns = given.get("columns")
        if isinstance(columns, dict) and set(columns) <= set(ROLES) and set(columns) not in COLUMN_SETS:
            yield "columns", f"found {' and '.join(columns) or 'none'}, allowed: {_COLUMN_SETS_IN_WORDS}"
        kind = kind_of(str(given.get("path")))
        if kind is not None:
            yield from ((key, f"found it on {kind.description}, allowed: only on other data sets") for key in kind.without if key in given)


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
_LR_SCHEDULE = f'{", ".join(SCHEDULES)}, {{"name": ..., "to": ...}}, or a list of such parts'


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
        return ChainOverPlan(chain_over_plan(_plain_parts(LrSchedule, self.schedule), self.unit, self.length).parts, self.begin, self.end)


class ValuePart(PartOfSchedule):
    """A part of a schedule of values."""

    name: ValueScheduleName = Field(title="Shape", description=in_words([*VALUE_SCHEDULES]))


_IN_PARTS = 'a list of parts such as {"name": ..., "from": ..., "to": ..., "steps": ...}'
_ONE_OR_PARTS = Discriminator(lambda value: "[parts]" if isinstance(value, list) else "[one]")
ValueParts = Annotated[list[ValuePart], Field(min_length=1), Tag("[parts]")]
BatchSize = Annotated[Annotated[int, Field(ge=CHANGING["batch_size"], le=MOST), Tag("[one]")] | ValueParts, _ONE_OR_PARTS]
ContextLen = Annotated[Annotated[int, Field(ge=CHANGING["context_len"], le=MOST), Tag("[one]")] | ValueParts, _ONE_OR_PARTS]
WeightDecay = Annotated[Annotated[float, Field(ge=CHANGING["weight_decay"]), Tag("[one]")] | ValueParts, _ONE_OR_PARTS]


class Optimizer(Part):
    """What updates the weights, and its settings where they differ from its defaults."""

    short_forms: ClassVar[dict[type, str]] = {str: "name"}

    name: OptimizerName = Field(title="Name", description=in_words([*OPTIMIZERS, "module:Class"]))
    betas: Annotated[list[Beta], Field(min_length=2, max_length=2)] | None = option(
        "Decay of the running means of the gradient and of its square", "two numbers from 0 to below 1")
    eps: float | None = option("What is added to the divisor of a step", "a number above 0", gt=0)
    momentum: float | None = option("Share of the step before in each step", "a number from 0 to below 1", ge=0, lt=1)
    settings: dict[str, Any] | None = option("Other arguments of its class", "an object")

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        name = given.get("name")
        if isinstance(name, str) and name in OPTIMIZERS:
            takes = OPTIMIZERS[name].takes
            yield from ((key, f"found it with {name}, allowed: {', '.join(takes) or 'settings'}")
                        for key in OPTIMIZER_SETTINGS if key in given and key not in takes)


class OptimizerRule(Part):
    """What holds for the parameters whose names match a pattern; a parameter follows one rule at most."""

    match: Annotated[str | list[Text], Field(min_length=1)] = Field(
        title="Which parameters", description='a pattern over parameter names, such as "head.*", or a list of patterns')
    lr: float = Field(default=1.0, gt=0, title="Factor of the learning rate", description="a number above 0")
    weight_decay: float | None = option("Weight decay of those of them that decay", "a number, 0 or more", ge=0)
    kind: OptimizerName | None = option("Optimizer, where it is not the stage's", in_words([*OPTIMIZERS, "module:Class"]))

    @property
    def patterns(self) -> list[str]:
        """The patterns."""
        return [self.match] if isinstance(self.match, str) else self.match

    @property
    def name(self) -> str:
        """The patterns as one text."""
        return ", ".join(self.patterns)


class Reward(Part):
    """What the answers of grpo are judged by, and how much it counts."""

    short_forms: ClassVar[dict[type, str]] = {str: "name"}

    name: RewardName = Field(title="Name", description=in_words([*REWARDS, "module:function"]))
    weight: float = Field(default=1.0, title="What it counts in the sum of the rewards", description="a number")
    seconds: float = Field(default=10.0, gt=0, le=86_400, title="The longest that it may take for a text", description="a number above 0, at most 86400")
    pattern: Text | None = option("What regex looks for", "a pattern of Python's re")
    least: int | None = option("The fewest words that length wants", "a whole number, 0 or more", ge=0)
    most: Count | None = option("The most words that length wants", "a whole number, 1 or more")

    def to_spec(self) -> dict[str, Any]:
        """Return plain values: name, and what differs from the defaults; the `settings` are apart."""
        given = self.model_dump(exclude_none=True, exclude_defaults=True)
        settings = {key: given.pop(key) for key in REWARD_SETTINGS if key in given}
        return {**given, "settings": settings} if settings else given

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        takes = REWARDS[given["name"]].takes if given.get("name") in REWARDS else {}
        yield from ((key, f"found it with {given.get('name')}, allowed: {', '.join(takes) or 'weight and seconds'}")
                    for key in REWARD_SETTINGS if key in given and key not in takes)
        yield from ((key, f"found no {key} of {given['name']}, allowed: one") for key, default in takes.items() if default is ... and key not in given)
        least, most = given.get("least"), given.get("most")
        if given.get("name") == "length" and least is None and most is None:
            yield "name", "found length without limits, allowed: with least, most or both"
        if isinstance(least, int) and isinstance(most, int) and least > most:
            yield "least", f"found {least} with most {most}, allowed: at most as many"
        try:
            re.compile(given.get("pattern") or "")
        except (re.error, TypeError) as error:
            yield "pattern", f"found one that cannot be read ({error}), allowed: a pattern of Python's re"


class Objective(Part):
    """What is minimised, and its settings where they differ from its defaults."""

    short_forms: ClassVar[dict[type, str]] = {str: "name"}

    name: ObjectiveName = Field(title="Name", description=f"{', '.join(OBJECTIVES)}, or one that an installed package offers")
    per: Literal["token", "sample"] | None = option("What counts alike in the loss of sft", "token or sample")
    loss: Literal["sigmoid", "ipo", "hinge", "grpo", "dr_grpo", "dapo"] | None = option(
        "Kind of the loss of dpo or grpo", "for dpo sigmoid, ipo or hinge; for grpo grpo, dr_grpo or dapo")
    beta: float | None = option("Factor of the rewards; of orpo the weight of the odds ratio", "a number above 0", gt=0)
    gamma: float | None = option("Margin that the rewards of simpo shall have", "a number, 0 or more", ge=0)
    label_smoothing: float | None = option("Share of the pairs that are taken to be the wrong way round", "a number from 0 to below 0.5", ge=0, lt=0.5)
    rewards: Annotated[list[Reward], Field(min_length=1), BeforeValidator(_listed)] | None = option(
        "What the answers of grpo are judged by; the reward is the weighted sum", f"{in_words([*REWARDS, 'module:function'])}, "
        'an object with weight and settings, or a list of these')
    group: int | None = option("Answers of grpo to each prompt", "a whole number, 2 or more", ge=2, le=MOST)
    answer_tokens: Count | None = option("The most tokens of an answer of grpo, by default half of the context", "a whole number, 1 or more")
    temperature: float | None = option("Temperature at which grpo draws answers", "a number above 0", gt=0)
    scale_rewards: bool | None = option("Whether grpo divides by the deviation of a group's rewards, by default unless the loss is dr_grpo", "true or false")
    clip: float | None = option("How far below 1 grpo's ratio of probabilities counts", "a number above 0 and below 1", gt=0, lt=1)
    clip_high: float | None = option("How far above 1 it counts, by default as far as below", "a number above 0", gt=0)
    kl: float | None = option("Weight of the divergence of grpo from the model at the stage's start", "a number, 0 or more", ge=0)
    updates: Count | None = option("Updates of the weights with each batch of answers of grpo", "a whole number, 1 or more")
    settings: dict[str, Any] | None = option("Settings of an installed package's objective", "an object")

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        name = given.get("name")
        if isinstance(name, str) and name in objectives():
            takes = [*OBJECTIVES[name].takes] if name in OBJECTIVES else ["settings"]
            yield from ((key, f"found it with {name}, allowed: {', '.join(takes) or 'no settings'}")
                        for key in (*OBJECTIVE_SETTINGS, "settings") if key in given and key not in takes)
        losses = {"dpo": ("sigmoid", "ipo", "hinge"), "grpo": ("grpo", "dr_grpo", "dapo")}
        if given.get("loss") in {*itertools.chain.from_iterable(losses.values())} - {*losses.get(str(name), (given.get("loss"),))}:
            yield "loss", f"found {given['loss']} with {name}, allowed: {in_words([*losses[str(name)]])}"
        if given.get("loss") in ("ipo", "hinge") and given.get("label_smoothing"):
            yield "label_smoothing", f"found it with the loss {given['loss']}, allowed: with sigmoid"


class Adapter(Part):
    """Small matrices beside linear layers, which alone are trained in a stage, and merged into the weights at its end."""

    short_forms: ClassVar[dict[type, str]] = {str: "kind"}

    kind: AdapterKind = Field(title="Kind", description=in_words([*ADAPTERS]))
    rank: Count | None = option("Rank of what is added to a weight", "a whole number, 1 or more")
    alpha: float | None = option("What is added is scaled by alpha / rank, with rslora by alpha / sqrt(rank)", "a number above 0", gt=0)
    dropout: float | None = option("Share of the adapter's inputs that is dropped in training", "a number from 0 to below 1", ge=0, lt=1)
    targets: AdapterTargets | None = option("Linear layers that have one", f'{in_words([*ADAPTER_TARGETS])}, or a list of patterns over the names of layers, '
                                            'such as ["blocks.*.mlp.*"]')


class Shuffle(Part):
    """How rows are shuffled."""

    seed: Seed | None = option("Seed of the order", "a whole number, 0 or more")
    buffer: Count | None = option("Rows of a stream that are shuffled together", "a whole number, 1 or more")

    @classmethod
    def written_out(cls, value: Any) -> Any:
        return {} if value is True else value


class Validation(Part):
    """Which rows are held out, and how many samples of them a validation takes."""

    short_forms: ClassVar[dict[type, str]] = {int: "fraction", float: "fraction", str: "split"}

    fraction: float | None = option("Part of the rows that is held out", "a number from 0 (no validation) to 0.5", ge=0, le=0.5)
    split: Text | None = option("Split of the same data set", "a text")
    dataset: SourceSpec | None = option("A data set of its own", "a data set name or path, or a source object")
    samples: Count | Literal["all"] | None = option("Samples of a validation, the same each time", "a whole number, 1 or more, or all")

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        origins = [key for key in ("fraction", "split", "dataset") if key in given]
        if len(origins) > 1:
            yield origins[1], f"found {' and '.join(origins)} together, allowed: one of fraction, split, dataset"
        if _get(given.get("dataset"), "weight") is not None:
            yield "dataset.weight", "found a weight on a source that is not mixed, allowed: none"


class EarlyStopping(Part):
    """When a stage ends early because the validation loss does not improve."""

    patience: Count = Field(title="Validations without improvement", description="a whole number, 1 or more")
    min_delta: float = Field(default=0.0, ge=0, title="Smallest drop of the validation loss that counts", description="a number, 0 or more")


class EvaluatedSet(Part):
    """A named set: a data set that the model is judged by as a whole, at the end of a stage and perhaps at an interval."""

    short_forms: ClassVar[dict[type, str]] = {str: "dataset"}

    dataset: SourceSpec = Field(title="What is read, from its first row to its last", description="a data set name or path, or a source object")
    interval: Interval | None = option("How often before the end of the stage", 'a number of samples, or a text such as "500steps", "1Mtokens", "10m"; '
                                       "0 = only at the end of the stage")

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        dataset = given.get("dataset")
        path = dataset if isinstance(dataset, str) else _get(dataset, "path")
        if isinstance(path, str) and is_endless(path):
            yield "dataset", f"found {path}, which never ends, allowed: a data set that ends"
        if _get(dataset, "weight") is not None:
            yield "dataset.weight", "found a weight on a source that is not mixed, allowed: none"


class Overrides(Part):
    """What a stage may set for itself, and `$defaults` for all stages; None means the program's default."""

    epochs: float | None = option("Length in passes over the data, fractions allowed", "a number above 0", gt=0, le=MOST)
    samples: Count | None = option("Length in samples", "a whole number, 1 or more")
    tokens: Count | None = option("Length in tokens to be learned", "a whole number, 1 or more")
    steps: Count | None = option("Length in optimizer steps", "a whole number, 1 or more")
    batch_size: BatchSize | None = flag_key("batch_size", "stage", f"a whole number, 1 or more, or {_IN_PARTS}")
    context_len: ContextLen | None = flag_key("context_len", "stage", f"a whole number, {CHANGING['context_len']} or more, or {_IN_PARTS}")
    lr: float | None = flag_key("lr", "stage")
    lr_schedule: OneScheduleOrParts | None = option("Learning rate schedule", _LR_SCHEDULE)
    warmup: Warmup | None = option("Warm-up of the learning rate", "optimizer steps (a whole number), a fraction of the stage below 1, or 0 (off)")
    optimizer: Optimizer | None = flag_key("optimizer", "stage", f'{in_words([*OPTIMIZERS])}, or {{"name": ..., "betas": ..., "eps": ..., "momentum": ..., '
                                          '"settings": {...}}')
    weight_decay: WeightDecay | None = flag_key("weight_decay", "stage", f"a number, 0 or more, or {_IN_PARTS}")
    lr_width: int | None = flag_key("lr_width", "stage")
    grad_clip: float | None = flag_key("grad_clip", "stage")
    shuffle: Annotated[
        Annotated[Literal[False], Tag("[off]")] | Annotated[Shuffle, Tag("[on]")], Discriminator(lambda value: "[off]" if value is False else "[on]")
    ] | None = option("Shuffling", 'true, false, or {"seed": ..., "buffer": ...}')
    pieces: Literal["together", "spread", "shuffled"] | None = option(
        "How the pieces of a long sample are divided among batches", "together, spread (a quarter of a batch at a time) or shuffled (within 16 batches)")
    validation: Validation | None = option(
        "Validation rows", 'a fraction from 0 (none) to 0.5, a split name, or an object with fraction, split or dataset, and samples')
    evaluate: Annotated[dict[str, EvaluatedSet | None], Field(json_schema_extra={"propertyNames": {"pattern": STAGE_NAME}})] | None = option(
        "Sets that the model is judged by as a whole", 'an object of sets by name, each a data set or {"dataset": ..., "interval": ...}')
    stopping: Literal["first_exhausted", "all_exhausted"] | None = option("When an epoch of a mix ends", "first_exhausted or all_exhausted")
    freeze: list[Annotated[str, Field(pattern="^!?[^!]")]] | None = option(
        "Parameters that are not trained", 'a list of patterns over parameter names, such as ["blocks.*", "!blocks.5.*"]')
    early_stopping: EarlyStopping | None = option("End the stage when the validation loss does not improve", '{"patience": ..., "min_delta": ...}')
    objective: Objective | None = option("What is minimised", f"{', '.join(OBJECTIVES)}, or one that an installed package offers, "
                                         'or {"name": ...} with settings')
    adapter: Adapter | None = option("Adapter that is trained instead of the weights", f'{", ".join(ADAPTERS)}, or {{"kind": ..., "rank": ..., "alpha": ..., '
                                     '"targets": ..., "dropout": ...}')

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        lengths = [key for key in LENGTHS if key in given]
        if len(lengths) > 1:
            yield lengths[1], f"found {' and '.join(lengths)} together, allowed: one of {', '.join(LENGTHS)}"
        schedule = given.get("lr_schedule")
        yield from _only_in_a_list(schedule, "lr_schedule")
        for key, lowest in CHANGING.items():
            parts = given.get(key)
            for place, part in enumerate(parts) if isinstance(parts, list) else ():
                ends = {"from": _get(part, "from" if isinstance(part, dict) else "from_"), "to": _get(part, "to")}
                yield from ((f"{key}[{place}].{end}", f"found {value:g}, allowed: a number, {lowest} or more") for end, value in ends.items()
                            if isinstance(value, (int, float)) and 0 <= value < lowest)
        validation = given.get("validation")
        fraction = validation if isinstance(validation, (int, float)) else _get(validation, "fraction")
        plateau = any(part == PLATEAU or _get(part, "name") == PLATEAU for part in _parts_of(schedule))
        for key in [*["early_stopping"] * ("early_stopping" in given), *["lr_schedule"] * plateau]:
            if fraction == 0:
                found = PLATEAU if key == "lr_schedule" else "it"
                yield key, f"found {found} beside a validation fraction of 0, allowed: a fraction above 0, a split or a dataset"
        if "adapter" in given and "freeze" in given:
            yield "freeze", "found it beside adapter, allowed: one of them; with an adapter nothing else is trained"
        evaluate = given.get("evaluate")
        for name in evaluate if isinstance(evaluate, dict) else ():
            if not re.fullmatch(STAGE_NAME, name) or name.lower() in KEPT_SETS:
                yield "evaluate", f"found a set named {json.dumps(name)}, allowed: names as those of stages, but for {' and '.join(KEPT_SETS)}"


class StageBody(Overrides):
    """A stage as a plan file holds it, under its name."""

    dataset: Annotated[list[SourceSpec], Field(min_length=1), BeforeValidator(_listed)] = Field(
        title="What is read", description="a data set name or path, a source object, or a list of these")

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        yield from super().conflicts(given)
        sources = given.get("dataset")
        if isinstance(sources, list):
            weights = sum(_get(source, "weight") is not None for source in sources)
            if 0 < weights < len(sources):
                yield "dataset", f"found a weight on {weights} of {len(sources)} sources, allowed: on all of them or on none"
            known = [weight for source in sources if isinstance(weight := _get(source, "weight"), (int, float)) and weight > 0]
            if known and not max(known) / min(known) <= _MOST_UNEQUAL:
                yield "dataset", f"found weights from {min(known):g} to {max(known):g}, allowed: the largest at most {_MOST_UNEQUAL:,} times the smallest"


class Stage(StageBody):
    """A named part of a plan: one mix of sources, one length (1 epoch where none is given), its own overrides."""

    name: str = Field(pattern=STAGE_NAME, title="Name", description='letters, digits, "_", "-" and ".", not "." first, at most 64 characters')
    optimizer_rules: list[OptimizerRule] | None = option("The plan's $optimizer", "a list of rules")
    share_of_plan: ShareOfPlan | None = option("What it has of the plan's $lr_schedule", "an object")

    @property
    def sets(self) -> dict[str, EvaluatedSet]:
        """The named sets, in order."""
        return {name: one for name, one in (self.evaluate or {}).items() if one is not None}

    @property
    def length(self) -> tuple[str, float]:
        """The unit of its length, and how long it is."""
        return next(((unit, value) for unit in LENGTHS if (value := getattr(self, unit)) is not None), ("epochs", 1.0))

    @property
    def lr_chain(self) -> Chain:
        """The schedule of the learning rate."""
        if self.share_of_plan is not None:
            return self.share_of_plan.chain
        return chain_of(_plain_parts(LrSchedule, self.lr_schedule or "constant"), *self.length)

    @property
    def longest_context(self) -> int:
        """The longest context length that it says; 0 where it says none."""
        chain = self.chain_of_values("context_len")
        return round(max(chain.values)) if chain is not None else self.context_len or 0  # type: ignore[return-value]

    def chain_of_values(self, key: str) -> Chain | None:
        """Give the schedule of one of the keys in :data:`CHANGING`; None where it does not change."""
        parts = getattr(self, key)
        return chain_of(_plain_parts(ValuePart, parts), *self.length, values=True) if isinstance(parts, list) else None

    @classmethod
    def written_out(cls, value: Any) -> Any:
        return {**value, "epochs": 1.0} if isinstance(value, dict) and all(value.get(key) is None for key in LENGTHS) else value

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        yield from super().conflicts(given)
        schedule = given.get("lr_schedule")
        in_a_list = isinstance(schedule, list) or not any(key.startswith("lr_schedule.") for key, _ in super().conflicts(given))
        if in_a_list and (fault := _fault_of_schedule(LrSchedule, schedule, given)):
            yield f"lr_schedule{fault.key}", fault.fault
        for key in CHANGING:
            if isinstance(given.get(key), list) and (fault := _fault_of_schedule(ValuePart, given[key], given)):
                yield f"{key}{fault.key}", fault.fault
        sources = _listed(given.get("dataset"))
        if not given.keys().isdisjoint({"samples", "tokens", "steps"}) or not isinstance(sources, list):
            return
        paths = [source if isinstance(source, str) else str(_get(source, "path")) for source in sources]
        endless = [path for path in paths if is_endless(path)]
        ends = len(endless) < len(paths) and given.get("stopping") == "first_exhausted"
        if endless and not ends:
            yield "dataset", f"found {endless[0]}, which never ends, with a length in epochs, allowed: a length in samples, tokens or steps"


class ModelDefaults(Part):
    """Defaults of a new model; a flag that the user typed wins."""

    exp: Text | None = flag_key("exp", "model", "the name of an experiment, as --exp list shows them")
    num_blocks: int | None = flag_key("num_blocks", "model")
    embed_dim: int | None = flag_key("embed_dim", "model")
    num_heads: int | None = flag_key("num_heads", "model")
    context_len: int | None = flag_key("context_len", "model")
    dropout: float | None = flag_key("dropout", "model")
    tied_head: bool | None = flag_key("tied_head", "model", "true or false")
    settings: dict[str, Any] | None = option("Other settings of the experiment", "an object")


class Header(Part):
    """The keys of a plan file that are not stages."""

    schema_: str | None = Field(default=None, alias="$schema", title="JSON Schema, for editors", description="a text")
    description: str = Field(default="", alias="$description", title="What the plan is for", description="a text")
    defaults: Overrides = Field(default_factory=Overrides, alias="$defaults", title="Overrides of all stages", description="an object of overrides")
    model: ModelDefaults = Field(default_factory=ModelDefaults, alias="$model", title="Defaults of a new model", description="an object of model settings")
    tokenizer: Text | None = flag_key("tokenizer", "top", "a text", alias="$tokenizer")
    prompts: list[Text] | None = option("Prompts that the model continues at each validation, unless --sample-prompts names others",
                                        "a list of texts, each perhaps with a tab and the truth behind it", alias="$prompts")
    optimizer: list[OptimizerRule] | None = option("Rules for parameters, by their names", 'a list of rules, such as {"match": "head.*", "lr": 0.3}',
                                                   alias="$optimizer")
    lr_schedule: OneScheduleOrParts | None = option("Learning rate schedule over all stages", _LR_SCHEDULE, alias="$lr_schedule")

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        yield from _only_in_a_list(given.get("$lr_schedule", given.get("lr_schedule")), "$lr_schedule")


class Plan(Part):
    """Ordered stages, with `$defaults` already in them."""

    description: str = Field(default="", description="a text")
    stages: list[Stage] = Field(description="a list of stages")
    model: ModelDefaults = Field(default_factory=ModelDefaults, description="an object of model settings")
    tokenizer: Text | None = flag_key("tokenizer", "top", "a text")
    prompts: list[Text] | None = option("Prompts that the model continues at each validation", "a list of texts")

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        stages = given.get("stages")
        if not isinstance(stages, list):
            return
        if not stages:
            yield "stages", 'found no stage, allowed: one or more, such as {"pretraining": {"dataset": "wikitext"}}'
        first: dict[str, str] = {}
        for name in (str(_get(stage, "name")) for stage in stages):
            if name.lower() in first:  # some file systems do not tell upper from lower case
                yield "stages", f"found the names '{first[name.lower()]}' and '{name}', allowed: names that differ in more than case, as those of files must"
            first.setdefault(name.lower(), name)
        read: dict[str, tuple[str, Any]] = {}
        sets = ((str(_get(stage, "name")), name, _dataset_of(one)) for stage in stages for name, one in _sets_of(stage).items())
        for where, name, dataset in sets:
            before, same = read.setdefault(name, (where, dataset))
            if same != dataset:
                yield f"evaluate.{name}", f"found other data in stage '{where}' than in '{before}', allowed: the same data under one name"

    def sources(self) -> list[SourceSpec]:
        """List all sources that are read: the data sets of all stages, those that only their validation reads, and those of named sets."""
        specs = []
        for stage in self.stages:
            specs += stage.dataset
            if stage.validation is not None and stage.validation.dataset is not None:
                specs.append(stage.validation.dataset)
            elif stage.validation is not None and stage.validation.split is not None:
                specs += [spec.model_copy(update={"split": stage.validation.split}) for spec in stage.dataset]
            specs += [one.dataset for one in stage.sets.values()]
        return specs

    def to_json(self) -> dict[str, Any]:
        """Return plain values (sources written out, keys that are not given left out) that `plan_from_json` reads back as an equal plan."""
        return self.model_dump(exclude_none=True, by_alias=True)


def _parts_of(schedule: Any) -> list[Any]:
    """List the parts of a schedule, parsed or not yet."""
    return schedule if isinstance(schedule, list) else [] if schedule is None else [schedule]


def _only_in_a_list(schedule: Any, where: str) -> Iterator[tuple[str, str]]:
    """Find keys of a schedule of one shape, parsed or not yet, that only parts have."""
    if not isinstance(schedule, list):
        yield from ((f"{where}.{key}", "found it outside a list of parts, allowed: in a list") for key in ("from", *UNITS)
                    if _get(schedule, key if isinstance(schedule, dict) else "from_" if key == "from" else key) is not None)


def _plain_parts(kind: type[PartOfSchedule], schedule: Any) -> list[dict[str, Any]]:
    """Write out the parts of a schedule, parsed or not yet; raises ValidationError."""
    parts = [part if isinstance(part, kind) else kind.model_validate(part) for part in _parts_of(schedule)]
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
    shares = shares_of_plan(_plain_parts(LrSchedule, schedule), lengths)
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


def _fault_of_schedule(kind: type[PartOfSchedule], schedule: Any, stage: dict[str, Any]) -> ScheduleFault | None:
    """Find what does not add up in the schedule of a stage, parsed or not yet; faults in its parts are found elsewhere."""
    try:
        parts = _plain_parts(kind, schedule)
        if parts:
            chain_of(parts, *_length_as_written(stage), values=kind is ValuePart)
    except ScheduleFault as fault:
        return fault
    except ValueError:
        return None
    return None


def _sets_of(stage: Any) -> dict[str, Any]:
    """Give the named sets of a stage, parsed or not yet."""
    sets = _get(stage, "evaluate")
    return {name: one for name, one in sets.items() if one is not None} if isinstance(sets, dict) else {}


def _dataset_of(one: Any) -> Any:
    """Write out the source of a named set, parsed or not yet, so that two can be compared."""
    dataset = one if isinstance(one, str) else _get(one, "dataset")
    return dataset.model_dump(exclude_none=True) if isinstance(dataset, Part) else SourceSpec.written_out(dataset)


def _with_short_numbers(field: dict[str, Any]) -> dict[str, Any]:
    """Add texts such as "10k" to the schema of a key that takes a whole number."""
    text: dict[str, Any] = {"type": "string", "pattern": f"^{_SHORT_NUMBER}$"}
    if field.get("type") == "integer":
        said = {key: field[key] for key in ("title", "description", "default") if key in field}
        return said | {"anyOf": [{key: value for key, value in field.items() if key not in said}, text]}
    kinds = [kind for one in field.get("anyOf", []) for kind in one.get("oneOf", [one])]
    return {**field, "anyOf": [*kinds, text]} if any(kind.get("type") == "integer" for kind in kinds) else field


def plan_schema() -> dict[str, Any]:
    """Make the JSON Schema of plan files (`plans/plan.schema.json`), for editors."""
    from pydantic.json_schema import models_json_schema

    _, schema = models_json_schema([(Header, "validation"), (StageBody, "validation")])
    parts = schema["$defs"]
    header = parts.pop("Header")
    for part in parts.values():
        part["properties"] = {key: _with_short_numbers(field) for key, field in part["properties"].items()}
    parts["SourceSpec"]["properties"]["path"]["examples"] = list(CATALOG)
    rewards = parts["Objective"]["properties"]["rewards"]
    rewards["anyOf"] = [*(kind["items"] for kind in rewards["anyOf"] if "items" in kind), *rewards["anyOf"]]
    for part in (SourceSpec, LrSchedule, Optimizer, Reward, Objective, Adapter, Validation):
        keys = dict.fromkeys(part.short_forms.values())
        parts[part.__name__] = {"anyOf": [*(parts[part.__name__]["properties"][key] for key in keys), parts[part.__name__]]}
    parts["EvaluatedSet"] = {"anyOf": [{"type": "string", "minLength": 1}, parts["EvaluatedSet"]]}
    parts["Shuffle"] = {"anyOf": [{"const": True}, parts["Shuffle"]]}
    dataset = parts["StageBody"]["properties"]["dataset"]
    texts = {key: dataset.pop(key) for key in ("title", "description")}
    parts["StageBody"]["properties"]["dataset"] = {"anyOf": [dataset["items"], dataset], **texts}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **header, "title": "lmplay plan", "patternProperties": {STAGE_NAME: {"$ref": "#/$defs/StageBody"}}, "$defs": parts}
