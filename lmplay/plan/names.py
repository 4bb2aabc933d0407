"""The optimizers, schedules and objectives, one table each, read by flags, plans, checks and docs; their classes are imported on demand."""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from ..plugins import Plugin, with_offered

# Endings of the names of files that a run keeps beside its model's (`lmplay.checkpoints`): no stage and no model can have one.
RESERVED_ENDING = re.compile(r"(best|(prev|old|damaged)-[0-9]+)", re.IGNORECASE)


class Member(NamedTuple):
    """One torch optimizer of an :class:`OptimizerRow`.

    `target` is its class, ``module:Class``; `settings` are arguments that differ from the class's defaults, besides learning rate and weight decay; `fused_on`
    are the types of device where its fused kernel exists and resumes exactly; `state_copies` is how many times a parameter's bytes it keeps for each
    parameter; `parameters` is a word of `optim.groups` for the parameters it gets, which must differ between the members of a row; `lr_factor` multiplies
    the learning rate; and the best one of matrices falls with this power of their width (`width_power`; None = that is not known).
    """

    target: str
    settings: dict[str, Any]
    fused_on: tuple[str, ...]
    state_copies: float
    parameters: str = "all"
    lr_factor: float = 1.0
    width_power: float | None = None


# The settings of optimizers that flags and plans know.
OPTIMIZER_SETTINGS = ("betas", "eps", "momentum")


class OptimizerRow(NamedTuple):
    """An optimizer that `--optimizer` can name.

    `weight_decay` is the default (None = that of its class); `takes` are the settings that have a flag and a plan key, with their values unless somebody
    changes them; `package` is what has to be installed for it (lmplay's extra `optimizers` brings it); `shards` says that it can update a part of a
    weight as it would the whole (`--shard`); and `averages` that it keeps an average of the weights of its own, so that `--ema` can't.
    """

    name: str
    weight_decay: float | None
    members: tuple[Member, ...]
    takes: Mapping[str, Any] = MappingProxyType({})
    package: str = ""
    shards: bool = True
    averages: bool = False


class Schedule(NamedTuple):
    """The shape of a schedule.

    `curve` falls from 1 to 0 while progress goes from 0 to 1 (None = it does not depend on progress, so that the length of the stage need not be known);
    `min_fraction` is the share of the peak that it ends at by default; `takes` are its settings, which `curve` gets by name, with their defaults. With
    `by_ratio` the curve falls from 1 to the ratio of end and start, which it gets behind the progress: both must be above 0.
    """

    name: str
    description: str
    curve: Callable[..., float] | None
    min_fraction: float
    takes: Mapping[str, Any] = MappingProxyType({})
    by_ratio: bool = False


@dataclass(frozen=True)
class Objective(Plugin):
    """What is minimised on a batch; another package offers one by an entry point of the group ``lmplay.objectives``.

    `takes` are the settings that have a plan key, with their values unless a plan changes them (... = it must be given): arguments of its class. The settings
    of another package's objective are not known, and stand under `settings`.
    """

    kind: ClassVar[str] = "objective"
    chosen_by: ClassVar[str] = "objective"
    takes: Mapping[str, Any] = field(default_factory=dict)


# Weight decay is added to the gradient in adam, adagrad, sgd and rmsprop, and decoupled in the others.
# Fused on a CPU: 1.0 instead of 4.4 ms a step for adamw on 2 million parameters and 2 threads (adam alike, adagrad 0.9 for 2.8, sgd 0.6 for 1.4).
# muon: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; its steps are scaled to the size of AdamW's, so that one learning rate
# and one weight decay serve both: Liu et al. 2025, "Muon is Scalable for LLM Training", which has the weight decay of 0.1 and the betas, too.
# width_power: Yang et al. 2022, "Tensor Programs V" (muP): a step of a matrix shall change what it computes as much at any width. What a step of Adam's kind
# changes grows with the width, and with its root for muon, whose steps have the size of AdamW's.
# lion: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms".  schedulefree: Defazio et al. 2024, "The Road Less Scheduled".
OPTIMIZERS = {row.name: row for row in (
    OptimizerRow("adamw", 0.01, (Member("torch.optim:AdamW", {}, ("cpu", "cuda"), 2, width_power=1.0),), {"betas": (0.9, 0.999), "eps": 1e-8}),
    OptimizerRow("adam", 0.0, (Member("torch.optim:Adam", {}, ("cpu", "cuda"), 2, width_power=1.0),), {"betas": (0.9, 0.999), "eps": 1e-8}),
    OptimizerRow("adagrad", 0.0, (Member("torch.optim:Adagrad", {}, ("cpu",), 1),), {"eps": 1e-10}),
    OptimizerRow("sgd", 0.0, (Member("torch.optim:SGD", {"momentum": 0.9}, ("cpu", "cuda"), 1),), {"momentum": 0.9}),
    OptimizerRow("rmsprop", 0.0, (Member("torch.optim:RMSprop", {}, (), 1, width_power=1.0),), {"eps": 1e-8}),
    OptimizerRow("muon", 0.1, (
        Member("torch.optim:Muon", {"adjust_lr_fn": "match_rms_adamw"}, (), 1, "matrices", width_power=0.5),
        Member("torch.optim:AdamW", {"betas": (0.9, 0.95)}, ("cpu", "cuda"), 2, "others", width_power=1.0)), {"momentum": 0.95, "betas": (0.9, 0.95)}),
    OptimizerRow("adafactor", 0.0, (Member("torch.optim:Adafactor", {}, (), 0),), shards=False),
    OptimizerRow("lion", 0.1, (Member("pytorch_optimizer:Lion", {}, (), 1, width_power=1.0),), {"betas": (0.9, 0.99)}, "pytorch-optimizer"),
    OptimizerRow("schedulefree", 0.0, (Member("schedulefree:AdamWScheduleFree", {}, (), 2, width_power=1.0),),
                 {"betas": (0.9, 0.999), "eps": 1e-8}, "schedulefree", averages=True),
    OptimizerRow("adamw8bit", 0.01, (Member("bitsandbytes.optim:AdamW8bit", {}, (), 0.5, width_power=1.0),),
                 {"betas": (0.9, 0.999), "eps": 1e-8}, "bitsandbytes", shards=False))}

# The class of an optimizer that is not in the table.
CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def optimizer_row(name: str) -> OptimizerRow:
    """Give the row of an optimizer; for ``module:Class`` one that has what the class says. Raises KeyError when there is none."""
    return OptimizerRow(name, None, (Member(name, {}, (), 2),), shards=False) if CODE.fullmatch(name) else OPTIMIZERS[name]


def sharding_optimizers() -> list[str]:
    """List the optimizers that a sharded model can have."""
    return [row.name for row in OPTIMIZERS.values() if row.shards]


# The share of a stage over which `wsd` decays: Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations".
DECAY_SHARE = 0.2
# cosine: Loshchilov and Hutter 2017, "SGDR"; down to a tenth as in Brown et al. 2020, "Language Models are Few-Shot Learners".
# linear: to zero, Bergsma et al. 2025, "Straight to Zero".  wsd (warm-up, stable, decay): Hu et al. 2024, "MiniCPM".
# inverse_sqrt: Vaswani et al. 2017, "Attention Is All You Need".  step: the places of He et al. 2016, "Deep Residual Learning", a tenth at each.
PLATEAU = "plateau"
SCHEDULES = {row.name: row for row in (
    Schedule("constant", "stays at the peak", None, 1.0),
    Schedule("linear", "a straight line", lambda progress: 1 - progress, 0.0),
    Schedule("cosine", "half a wave of the cosine", lambda progress: (1 + math.cos(math.pi * progress)) / 2, 0.1),
    Schedule("wsd", f"stays at the peak, then a line down over the last {DECAY_SHARE:.0%}", lambda progress: min(1.0, (1 - progress) / DECAY_SHARE), 0.0),
    Schedule("inverse_sqrt", "one by the square root of the steps", lambda progress, ratio: (1 + (ratio ** -2 - 1) * progress) ** -0.5, 0.1, by_ratio=True),
    Schedule("step", "drops by the same factor at each place of `at`", lambda progress, ratio, at: ratio ** (sum(progress >= place for place in at) / len(at)),
             0.01, {"at": (0.5, 0.75)}, by_ratio=True),
    Schedule("polynomial", "a power of what is left", lambda progress, power: (1 - progress) ** power, 0.0, {"power": 2.0}),
    Schedule(PLATEAU, "drops by `factor` after `patience` validations without an improvement", None, 0.0, {"patience": 3, "factor": 0.5}))}
# What a schedule of weight decay, batch size or context length can be: it depends on the progress alone.
VALUE_SCHEDULES = tuple(name for name in SCHEDULES if name != PLATEAU)
SCHEDULE_SETTINGS = tuple(dict.fromkeys(setting for row in SCHEDULES.values() for setting in row.takes))

DEFAULT_OBJECTIVE = "next_token"
OBJECTIVES = {row.name: row for row in (
    Objective(DEFAULT_OBJECTIVE, "the cross entropy of the next token, over the truth", "lmplay.objectives.next_token:NextToken"),
    Objective("sft", "the same, each token or each sample counting alike", "lmplay.objectives.sft:Sft", {"per": "token"}),
    Objective("dpo", "of two answers, to make the chosen one likelier than the model at the stage's start has it, and the rejected one less",
              "lmplay.objectives.dpo:Dpo", {"loss": "sigmoid", "beta": 0.1, "label_smoothing": 0.0}),
    Objective("simpo", "of two answers, to make a token of the chosen one likelier than one of the rejected one, without a reference",
              "lmplay.objectives.simpo:SimPo", {"beta": 2.0, "gamma": 1.0, "label_smoothing": 0.0}),
    Objective("orpo", "the cross-entropy of chosen answers, and their odds against the rejected ones, without a reference",
              "lmplay.objectives.orpo:Orpo", {"beta": 0.1}),
    Objective("distill", "the next token, mixed with what another model, the teacher, thinks of it", "lmplay.objectives.distill:Distill",
              {"teacher": ..., "top_k": 32, "temperature": 1.0, "weight": 0.5}),
    Objective("grpo", "the model writes a group of answers to each prompt, and those that are rewarded more than the others become likelier",
              "lmplay.objectives.grpo:Grpo",
              {"rewards": [{"name": "exact"}], "group": 8, "answer_tokens": None, "temperature": 1.0, "loss": "grpo", "scale_rewards": None, "clip": 0.2,
               "clip_high": None, "kl": 0.0, "updates": 1}),
    Objective("rlp", "the model writes a group of thoughts before a prediction of plain text, and those that make what follows more probable than the others "
              "become likelier", "lmplay.objectives.rlp:Rlp",
              {"group": 8, "thought_tokens": None, "temperature": 1.0, "horizon": 1, "teacher_decay": 0.999, "thought_start": "<think>",
               "thought_end": "</think>", "text_weight": 0.0, "clip": 0.2, "clip_high": None, "updates": 1}))}
OBJECTIVE_SETTINGS = tuple(dict.fromkeys(setting for row in OBJECTIVES.values() for setting in row.takes))


# Kinds of adapters, and what the library peft calls them. lora: Hu et al. 2021, "LoRA"; its update is scaled by alpha / rank.  dora: Liu et al. 2024, "DoRA",
# learns the length of each row of the weight apart from its direction.  rslora: Kalajdzievski 2023, "A Rank Stabilization Scaling Factor for Fine-Tuning with
# LoRA", scales by alpha / sqrt(rank).
ADAPTERS: dict[str, dict[str, bool]] = {"lora": {}, "dora": {"use_dora": True}, "rslora": {"use_rslora": True}}
ADAPTER_TARGETS = ("attention", "all")
# In how many bits the weights below an adapter are kept: 8, with a scale for each row; 4, as quantiles of a normal distribution, with a scale for each 64
# (Dettmers et al. 2023, "QLoRA", section 3).
QUANTIZED = ("int8", "nf4")


class Reward(NamedTuple):
    """What a text that the model has written can be judged by; `takes` are the settings with a plan key, with their defaults (... = it must be given)."""

    name: str
    description: str
    takes: Mapping[str, Any] = MappingProxyType({})


REWARDS = {row.name: row for row in (
    Reward("exact", "1 where the text is the answer, but for white space around it"),
    Reward("number", "1 where the last number of the text is the last number of the answer"),
    Reward("regex", "1 where a pattern matches anywhere in the text", {"pattern": ...}),
    Reward("json", "1 where the text is JSON, and the same value where the answer is an object or a list"),
    Reward("length", "1 where the text has at least and at most these many words, less in proportion outside", {"least": 0, "most": None}))}
REWARD_SETTINGS = tuple(dict.fromkeys(setting for row in REWARDS.values() for setting in row.takes))


def objectives() -> dict[str, Objective]:
    """List the built-in objectives and those of installed packages by name, see :func:`with_offered`."""
    return with_offered(Objective, OBJECTIVES.values())


def in_words(names: list[str]) -> str:
    """Write names as "a, b or c"."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
