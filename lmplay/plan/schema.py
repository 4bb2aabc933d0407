"""The shape of a plan: its keys, their ranges, and the JSON Schema made from them.

The description of a field says what is allowed in plain words: editors show it (through the JSON Schema), and so does the fault line of a wrong value.
"""
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from ..cadence import AUTO, check_interval
from .catalog import CATALOG, expand, is_endless, kind_of
from .names import ADAPTERS, OBJECTIVES, OPTIMIZERS, PLATEAU, in_words
from .options import CHANGING, MOST
from .part import SHORT_NUMBER, Count, Part, Seed, Text, flag_key, key_of, listed, option
from .schedule_keys import (
    IN_PARTS,
    LENGTHS,
    LR_SCHEDULE,
    BatchSize,
    ContextLen,
    LrSchedule,
    OneScheduleOrParts,
    ShareOfPlan,
    ValuePart,
    WeightDecay,
    fault_of_schedule,
    only_in_a_list,
    parts_of,
    plain_parts,
)
from .schedules import Chain, chain_of
from .training_keys import Adapter, Objective, Optimizer, OptimizerRule, Reward

STAGE_NAME = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$"
# Names that are not for sets of `evaluate`: the statistics have samples of a stage's own under them (lmplay.stats.totals).
KEPT_SETS = ("validation", "held_out")
# A source with less than this part of a mix would have hardly a row, and the others come many times before it has been read once.
_MOST_UNEQUAL = 10_000
ROLES = ("text", "title", "prompt", "truth", "instruction", "input", "output", "messages", "system", "chosen", "rejected")
COLUMN_SETS = ({"text"}, {"text", "title"}, {"prompt", "truth"}, {"instruction", "output"}, {"instruction", "input", "output"}, {"messages"},
               {"chosen", "rejected"}, {"prompt", "chosen", "rejected"}, {"system", "prompt", "chosen", "rejected"})
_COLUMN_SETS_IN_WORDS = ("text, text and title, prompt and truth, instruction (and input) and output, messages, "
                         "or (system and) prompt (or neither), chosen and rejected")


def _steps_or_fraction(value: float) -> float:
    """Take a whole number of steps, or a fraction below 1."""
    if not 0 <= value <= MOST or (value >= 1 and value != int(value)):
        raise PydanticCustomError("warmup", "a whole number, or a fraction below 1")
    return value


def _evaluation_interval(value: int | str) -> int | str:
    """Take an interval, see :func:`lmplay.cadence.check_interval`."""
    try:
        if value != AUTO:
            return check_interval(value)
    except ValueError:
        pass
    raise PydanticCustomError("interval", "an interval")


Warmup = Annotated[int | float, AfterValidator(_steps_or_fraction), WithJsonSchema(
    {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
               {"type": "string", "pattern": f"^{SHORT_NUMBER}$"}]})]
Interval = Annotated[int | str, AfterValidator(_evaluation_interval), WithJsonSchema(
    {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MOST}, {"type": "string", "pattern": "^[0-9]"}]})]
Role = Annotated[str, Field(pattern=f"^({'|'.join(ROLES)})$")]
Columns = Annotated[dict[Role, Text], WithJsonSchema(
    {"type": "object", "properties": {role: {"type": "string", "minLength": 1} for role in ROLES}, "additionalProperties": False})]


class SourceSpec(Part):
    """Where rows come from."""

    short_forms: ClassVar[dict[type, str]] = {str: "path"}

    path: Text = Field(title="Data set", description='a short name, a hub path "owner/name", a file, folder or glob, also of a store ("s3://...", "gs://...", '
                                                      '"hf://...", "https://..."), or "builtin:tales"')
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
        if key_of(given.get("dataset"), "weight") is not None:
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
        path = dataset if isinstance(dataset, str) else key_of(dataset, "path")
        if isinstance(path, str) and is_endless(path):
            yield "dataset", f"found {path}, which never ends, allowed: a data set that ends"
        if key_of(dataset, "weight") is not None:
            yield "dataset.weight", "found a weight on a source that is not mixed, allowed: none"


class Overrides(Part):
    """What a stage may set for itself, and `$defaults` for all stages; None means the program's default."""

    epochs: float | None = option("Length in passes over the data, fractions allowed", "a number above 0", gt=0, le=MOST)
    samples: Count | None = option("Length in samples", "a whole number, 1 or more")
    tokens: Count | None = option("Length in tokens to be learned", "a whole number, 1 or more")
    steps: Count | None = option("Length in optimizer steps", "a whole number, 1 or more")
    batch_size: BatchSize | None = flag_key("batch_size", "stage", f"a whole number, 1 or more, or {IN_PARTS}")
    context_len: ContextLen | None = flag_key("context_len", "stage", f"a whole number, {CHANGING['context_len']} or more, or {IN_PARTS}")
    lr: float | None = flag_key("lr", "stage")
    lr_schedule: OneScheduleOrParts | None = option("Learning rate schedule", LR_SCHEDULE)
    warmup: Warmup | None = option("Warm-up of the learning rate", "optimizer steps (a whole number), a fraction of the stage below 1, or 0 (off)")
    optimizer: Optimizer | None = flag_key("optimizer", "stage", f'{in_words([*OPTIMIZERS])}, or {{"name": ..., "betas": ..., "eps": ..., "momentum": ..., '
                                          '"settings": {...}}')
    weight_decay: WeightDecay | None = flag_key("weight_decay", "stage", f"a number, 0 or more, or {IN_PARTS}")
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
        yield from only_in_a_list(schedule, "lr_schedule")
        for key, lowest in CHANGING.items():
            parts = given.get(key)
            for place, part in enumerate(parts) if isinstance(parts, list) else ():
                ends = {"from": key_of(part, "from" if isinstance(part, dict) else "from_"), "to": key_of(part, "to")}
                yield from ((f"{key}[{place}].{end}", f"found {value:g}, allowed: a number, {lowest} or more") for end, value in ends.items()
                            if isinstance(value, (int, float)) and 0 <= value < lowest)
        validation = given.get("validation")
        fraction = validation if isinstance(validation, (int, float)) else key_of(validation, "fraction")
        plateau = any(part == PLATEAU or key_of(part, "name") == PLATEAU for part in parts_of(schedule))
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

    dataset: Annotated[list[SourceSpec], Field(min_length=1), BeforeValidator(listed)] = Field(
        title="What is read", description="a data set name or path, a source object, or a list of these")

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        yield from super().conflicts(given)
        sources = given.get("dataset")
        if isinstance(sources, list):
            weights = sum(key_of(source, "weight") is not None for source in sources)
            if 0 < weights < len(sources):
                yield "dataset", f"found a weight on {weights} of {len(sources)} sources, allowed: on all of them or on none"
            known = [weight for source in sources if isinstance(weight := key_of(source, "weight"), (int, float)) and weight > 0]
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
        return chain_of(plain_parts(LrSchedule, self.lr_schedule or "constant"), *self.length)

    @property
    def longest_context(self) -> int:
        """The longest context length that it says; 0 where it says none."""
        chain = self.chain_of_values("context_len")
        return round(max(chain.values)) if chain is not None else self.context_len or 0  # type: ignore[return-value]

    def chain_of_values(self, key: str) -> Chain | None:
        """Give the schedule of one of the keys in :data:`CHANGING`; None where it does not change."""
        parts = getattr(self, key)
        return chain_of(plain_parts(ValuePart, parts), *self.length, values=True) if isinstance(parts, list) else None

    @classmethod
    def written_out(cls, value: Any) -> Any:
        return {**value, "epochs": 1.0} if isinstance(value, dict) and all(value.get(key) is None for key in LENGTHS) else value

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        yield from super().conflicts(given)
        schedule = given.get("lr_schedule")
        in_a_list = isinstance(schedule, list) or not any(key.startswith("lr_schedule.") for key, _ in super().conflicts(given))
        if in_a_list and (fault := fault_of_schedule(LrSchedule, schedule, given)):
            yield f"lr_schedule{fault.key}", fault.fault
        for key in CHANGING:
            if isinstance(given.get(key), list) and (fault := fault_of_schedule(ValuePart, given[key], given)):
                yield f"{key}{fault.key}", fault.fault
        sources = listed(given.get("dataset"))
        if not given.keys().isdisjoint({"samples", "tokens", "steps"}) or not isinstance(sources, list):
            return
        paths = [source if isinstance(source, str) else str(key_of(source, "path")) for source in sources]
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
    lr_schedule: OneScheduleOrParts | None = option("Learning rate schedule over all stages", LR_SCHEDULE, alias="$lr_schedule")

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        yield from only_in_a_list(given.get("$lr_schedule", given.get("lr_schedule")), "$lr_schedule")


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
        for name in (str(key_of(stage, "name")) for stage in stages):
            if name.lower() in first:  # some file systems do not tell upper from lower case
                yield "stages", f"found the names '{first[name.lower()]}' and '{name}', allowed: names that differ in more than case, as those of files must"
            first.setdefault(name.lower(), name)
        read: dict[str, tuple[str, Any]] = {}
        sets = ((str(key_of(stage, "name")), name, _dataset_of(one)) for stage in stages for name, one in _sets_of(stage).items())
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


def _sets_of(stage: Any) -> dict[str, Any]:
    """Give the named sets of a stage, parsed or not yet."""
    sets = key_of(stage, "evaluate")
    return {name: one for name, one in sets.items() if one is not None} if isinstance(sets, dict) else {}


def _dataset_of(one: Any) -> Any:
    """Write out the source of a named set, parsed or not yet, so that two can be compared."""
    dataset = one if isinstance(one, str) else key_of(one, "dataset")
    return dataset.model_dump(exclude_none=True) if isinstance(dataset, Part) else SourceSpec.written_out(dataset)


def _with_short_numbers(field: dict[str, Any]) -> dict[str, Any]:
    """Add texts such as "10k" to the schema of a key that takes a whole number."""
    text: dict[str, Any] = {"type": "string", "pattern": f"^{SHORT_NUMBER}$"}
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
