"""The keys of optimizers, objectives and adapters.  Plan floor, no torch."""
from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from .names import (
    ADAPTER_TARGETS,
    ADAPTERS,
    CODE,
    OBJECTIVE_SETTINGS,
    OBJECTIVES,
    OPTIMIZER_SETTINGS,
    OPTIMIZERS,
    QUANTIZED,
    REWARD_SETTINGS,
    REWARDS,
    in_words,
    objectives,
)
from .options import MOST
from .part import Count, Part, Text, listed, one_of, option

OptimizerName = Annotated[str, one_of(lambda: OPTIMIZERS, CODE), WithJsonSchema(
    {"anyOf": [{"type": "string", "enum": [*OPTIMIZERS]}, {"type": "string", "pattern": f"^{CODE.pattern}$"}]})]
Beta = Annotated[float, Field(ge=0, lt=1)]
ObjectiveName = Annotated[str, one_of(objectives), WithJsonSchema({"type": "string", "examples": [*OBJECTIVES]})]
AdapterKind = Annotated[str, one_of(lambda: ADAPTERS), WithJsonSchema({"type": "string", "enum": [*ADAPTERS]})]
QuantizedAs = Annotated[str, one_of(lambda: QUANTIZED), WithJsonSchema({"type": "string", "enum": [*QUANTIZED]})]
AdapterTargets = Annotated[
    Annotated[str, one_of(lambda: ADAPTER_TARGETS), WithJsonSchema({"type": "string", "enum": [*ADAPTER_TARGETS]}), Tag("[one]")]
    | Annotated[list[Text], Field(min_length=1), Tag("[several]")], Discriminator(lambda value: "[several]" if isinstance(value, list) else "[one]")]
RewardName = Annotated[str, one_of(lambda: REWARDS, CODE), WithJsonSchema(
    {"anyOf": [{"type": "string", "enum": [*REWARDS]}, {"type": "string", "pattern": f"^{CODE.pattern}$"}]})]


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

    @classmethod
    def keys_beside(cls, given: Any) -> list[str]:
        row = REWARDS.get(str(given.get("name"))) if isinstance(given, dict) else None
        return super().keys_beside(given) if row is None else ["name", "weight", "seconds", *row.takes]

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
    rewards: Annotated[list[Reward], Field(min_length=1), BeforeValidator(listed)] | None = option(
        "What the answers of grpo are judged by; the reward is the weighted sum", f"{in_words([*REWARDS, 'module:function'])}, "
        'an object with weight and settings, or a list of these')
    group: int | None = option("Answers of grpo to each prompt, thoughts of rlp before each prediction", "a whole number, 2 or more", ge=2, le=MOST)
    answer_tokens: Count | None = option("The most tokens of an answer of grpo, by default half of the context", "a whole number, 1 or more")
    temperature: float | None = option("Temperature at which grpo and rlp sample, and distill compares", "a number above 0", gt=0)
    scale_rewards: bool | None = option("Whether grpo divides by the deviation of a group's rewards, by default unless the loss is dr_grpo", "true or false")
    clip: float | None = option("How far below 1 the ratio of probabilities of grpo and rlp counts", "a number above 0 and below 1", gt=0, lt=1)
    clip_high: float | None = option("How far above 1 it counts, by default as far as below", "a number above 0", gt=0)
    kl: float | None = option("Weight of the divergence of grpo from the model at the stage's start", "a number, 0 or more", ge=0)
    updates: Count | None = option("Updates of the weights with each batch of answers of grpo or thoughts of rlp", "a whole number, 1 or more")
    teacher: Text | None = option("Model that distill learns from", "a .lmp, a folder of transformers, or hf:NAME")
    top_k: Count | None = option("Tokens at each position whose probabilities by the teacher are kept", "a whole number, 1 or more")
    thought_tokens: Count | None = option("The most tokens of a thought of rlp, by default a quarter of the context", "a whole number, 1 or more")
    horizon: Count | None = option("Tokens behind a thought of rlp that it is judged by", "a whole number, 1 or more")
    teacher_decay: float | None = option("Decay of the average of the weights that rlp compares with", "a number above 0 and below 1", gt=0, lt=1)
    thought_start: Text | None = option("What the model of rlp reads before a thought", "a text that is not empty")
    thought_end: Text | None = option("What ends a thought of rlp", "a text that is not empty, another than thought_start")
    text_weight: float | None = option("Weight of the cross-entropy of the text behind thoughts in the loss of rlp", "a number, 0 or more", ge=0)
    weight: float | None = option("Share of the teacher in what distill minimises", "a number above 0, at most 1", gt=0, le=1)
    settings: dict[str, Any] | None = option("Settings of an installed package's objective", "an object")

    @classmethod
    def keys_beside(cls, given: Any) -> list[str]:
        row = OBJECTIVES.get(str(given.get("name"))) if isinstance(given, dict) else None
        return super().keys_beside(given) if row is None else ["name", *row.takes]

    @classmethod
    def conflicts(cls, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        name = given.get("name")
        if isinstance(name, str) and name in objectives():
            takes = [*OBJECTIVES[name].takes] if name in OBJECTIVES else ["settings"]
            yield from ((key, f"found it with {name}, allowed: {', '.join(takes) or 'no settings'}")
                        for key in (*OBJECTIVE_SETTINGS, "settings") if key in given and key not in takes)
            needed = [key for key, default in (OBJECTIVES[name].takes if name in OBJECTIVES else {}).items() if default is ... and key not in given]
            yield from ((key, f"found no {key} of {name}, allowed: one") for key in needed)
        losses = {"dpo": ("sigmoid", "ipo", "hinge"), "grpo": ("grpo", "dr_grpo", "dapo")}
        if given.get("loss") in {*itertools.chain.from_iterable(losses.values())} - {*losses.get(str(name), (given.get("loss"),))}:
            yield "loss", f"found {given['loss']} with {name}, allowed: {in_words([*losses[str(name)]])}"
        if name == "rlp" and len({given.get(mark) or OBJECTIVES[name].takes[mark] for mark in ("thought_start", "thought_end")}) == 1:
            yield "thought_end", "found the same as thought_start, allowed: another text"
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
    quantize: QuantizedAs | None = option("Bits in which the weights below it are kept while it is trained", f"{in_words([*QUANTIZED])}; needs bitsandbytes")
