"""`--params` and `--train-for`: the size of a new model, chosen before the run is opened, and written into its plan."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..data.batcher import Batch
from ..device.model import DeviceModel
from ..device.runtime import Runtime
from ..engine.batches import Grouping, TrainBatch, pieces_to_time, whole_units
from ..engine.model_spec import ModelSpec, choose_model, tokenizer_name
from ..engine.opening import start_device
from ..errors import UserError
from ..files import is_state
from ..objectives import load_objective
from ..optim.optimizers import optimizers_of
from ..plan.follow import with_sizes
from ..plan.schema import Plan
from ..plan.settings import Settings, resolve_stage
from ..tokenizer import load_tokenizer, trained_size
from ..words import compact, duration, seconds_of
from .check_plan import Timer

# Tokens to train on for each parameter: Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models" (Chinchilla).
TOKENS_PER_PARAMETER = 20.0
# A block is about this wide for each block there is, as in nanochat (Karpathy 2025), from the first to the last of these.
_WIDTH_PER_BLOCK, _NARROWEST, _WIDEST = 64, 48, 96
# Widths are multiples of the first number up to the second, then of the third; up to the last.
_WIDTHS = (*range(32, 512, 32), *range(512, 16_384, 64))
# Widths of a head, the best first; up to 128 wide in all the first two change places.
_HEADS = (64, 32, 128, 48, 96, 16)
_SMALL_HEADS_UP_TO = 192
# Sizes that differ by less than this share from what was asked for are equally good, and the shape decides.
_NEAR = 0.03
# A size that is further from what was asked for than this is none.
_FAR = 0.25
# The share of the time of --train-for that is for training: the start, validations, saves and the end take the rest.
_TRAINING_SHARE = 0.9
# The smallest size that is measured, and the factor between two.
_FIRST, _FACTOR = 500_000, 2.0
# Pieces that are timed at once, and how often: one disturbed step shall not decide.
_PIECES, _TIMES = 4, 3


class Size(NamedTuple):
    """A model's size."""

    num_blocks: int
    embed_dim: int
    num_heads: int
    parameters: int


@dataclass(frozen=True)
class _Measured:
    """A size, and the tokens that it is trained on in a second."""

    size: Size
    speed: float

    def tokens(self, seconds: float) -> float:
        return self.speed * seconds * _TRAINING_SHARE

    def ratio(self, seconds: float) -> float:
        """Tokens for each parameter."""
        return self.tokens(seconds) / self.size.parameters


class Sizes:
    """The sizes that a new model of the experiment can have."""

    def __init__(self, spec: ModelSpec, vocab_size: int, flag: str):
        """
        :param flag: what asks for a size, for messages.
        """
        self._spec, self._vocab_size, self._flag = spec, vocab_size, flag
        if missing := [name for name in ("num_blocks", "embed_dim", "num_heads") if name not in spec.args]:
            raise UserError(f"{flag}: the experiment {spec.experiment} has no {missing[0]}, so its size is not chosen here; leave it out.")
        self._of_width = cache(self._count)

    def nearest(self, parameters: float) -> Size:
        """Choose the size nearest to a number of parameters.

        Of those that are within 3% of each other the one is chosen whose width is nearest to 64 times its blocks.

        :raises UserError: when none is near.
        """
        def key(size: Size) -> tuple[int, float]:
            return round(abs(math.log(size.parameters / parameters)) / _NEAR), abs(math.log(size.embed_dim / size.num_blocks / _WIDTH_PER_BLOCK))

        best = min(self._around(parameters), key=key)
        if abs(math.log(best.parameters / parameters)) > _FAR:
            raise UserError(f"{self._flag}: the nearest {self._spec.experiment} with a vocabulary of {self._vocab_size:,} has {best.parameters:,} parameters; "
                            "ask for that, or take another --tokenizer, such as train:4096.")
        return best

    def spec_of(self, size: Size) -> ModelSpec:
        """Give the model of a size."""
        return replace(self._spec, args={**self._spec.args, "num_blocks": size.num_blocks, "embed_dim": size.embed_dim, "num_heads": size.num_heads})

    def _around(self, parameters: float) -> Iterator[Size]:
        """Give the sizes up to those that are much larger than a number of parameters, but at least one."""
        given = False
        for width in _WIDTHS:
            if (found := self._of_width(width)) is None:
                continue
            heads, rest, block = found
            for blocks in range(max(1, math.ceil(width / _WIDEST)), max(1, width // _NARROWEST) + 1):
                given = True
                yield Size(blocks, width, heads, rest + blocks * block)
            if rest + block * max(1, math.ceil(width / _WIDEST)) > 2 * parameters:
                return
        if not given:
            self._spec.build(self._vocab_size, meta=True)  # which says why
            raise UserError(f"{self._flag}: the settings of {self._spec.experiment} fit no size; leave it out.")

    def _count(self, width: int) -> tuple[int, int, int] | None:
        """Give the heads of a width, the parameters outside of the blocks, and those of a block; None where no heads fit."""
        small = width <= _SMALL_HEADS_UP_TO
        for head in sorted(_HEADS, key=lambda head: (head == 64) if small else False):
            if width % head:
                continue
            try:
                two, four = (sum(parameter.numel() for parameter in self.spec_of(Size(blocks, width, width // head, 0)).build(self._vocab_size, meta=True)
                                 .parameters()) for blocks in (2, 4))
            except UserError:
                continue
            return width // head, 2 * two - four, (four - two) // 2
        return None


def choose_sizes(settings: Settings, plan: Plan, say: Callable[[str], None]) -> Plan:
    """Choose the size of a new model, and with `--train-for` the tokens that it is trained on, and write them into the plan.

    :param say: is told the choice.
    :return: the plan with it; as it is where there is a model to go on with, which keeps what was chosen for it.
    :raises UserError: when there is no such size, or the plan has several stages.
    """
    path = settings.model_file(plan)
    if (is_state(path) and not settings.reset_history) or settings.resume != "latest":
        return plan
    flag = f"--params {compact(settings.params)}" if settings.params is not None else f"--train-for {settings.train_for}"
    if settings.train_for is not None and len(plan.stages) > 1:
        raise UserError(f"{flag}: the plan has {len(plan.stages)} stages, and it is for plans of one; give the lengths in the plan, and --params for a size.")
    if ":" in settings.experiment(plan):
        raise UserError(f"{flag}: {settings.experiment(plan)} has the size of its config; leave it out.")
    spec = choose_model(settings, plan, Path(path), None)
    name = tokenizer_name(settings, plan)
    sizes = Sizes(spec, trained_size(name) or load_tokenizer(name).vocab_size, flag)
    if settings.params is not None:
        size = sizes.nearest(settings.params)
        say(f"{flag}: {_in_words(size)}, {size.parameters:,} parameters")
        return _written(plan, size)
    assert settings.train_for is not None
    seconds, timer = seconds_of(settings.train_for), _Stopwatch(settings, plan, sizes)
    size, tokens, table = for_time(sizes, timer.measure, seconds)
    say("\n".join(table))
    return _written(plan, size, tokens)


def for_time(sizes: Sizes, measure: Callable[[Size], float], seconds: float) -> tuple[Size, int, list[str]]:
    """Choose the size that can be trained on 20 tokens for each of its parameters in a time.

    :param measure: gives the tokens that a size is trained on in a second.
    :return: the size, the tokens, and a table in lines.
    """
    found: list[_Measured] = []
    wanted, refused = float(_FIRST), 0
    while not found or found[-1].ratio(seconds) > TOKENS_PER_PARAMETER:
        try:
            size = sizes.nearest(wanted)
        except UserError:  # none is so small
            refused += 1
            if refused > 30:
                raise
        else:
            if size not in [one.size for one in found]:
                found.append(_Measured(size, measure(size)))
        wanted *= _FACTOR
    chosen = found[-1]
    if len(found) > 1:
        ratios, counts = ([math.log(value) for value in values] for values in
                          zip(*((one.ratio(seconds), one.size.parameters) for one in found[:-3:-1]), strict=True))
        between = float(np.interp(math.log(TOKENS_PER_PARAMETER), ratios, counts))
        size = sizes.nearest(math.exp(between))
        if size in [one.size for one in found]:
            chosen = next(one for one in found if one.size == size)
        else:
            chosen = _Measured(size, measure(size))
            found = sorted([*found, chosen], key=lambda one: one.size.parameters)
    lines = [f"{duration(seconds)}, of which {_TRAINING_SHARE:.0%} are for training; best are {TOKENS_PER_PARAMETER:g} tokens for each parameter "
             "(Hoffmann et al. 2022)",
             f"{'parameters':>12} {'blocks':>7} {'width':>6} {'heads':>6} {'tokens/s':>10} {'tokens':>10} {'a parameter':>12}"]
    lines += [f"{one.size.parameters:>12,} {one.size.num_blocks:>7} {one.size.embed_dim:>6} {one.size.num_heads:>6} {one.speed:>10,.0f} "
              f"{compact(one.tokens(seconds)):>10} {one.ratio(seconds):>12.1f}{'  chosen' if one is chosen else ''}" for one in found]
    if chosen.ratio(seconds) < TOKENS_PER_PARAMETER / 2:
        lines.append("WARNING: this is the smallest size that is measured, and the time is too short for it; more time, or a smaller vocabulary, would help.")
    return chosen.size, max(1, round(chosen.tokens(seconds))), lines


class _Stopwatch:
    """Measures how fast sizes are trained here."""

    def __init__(self, settings: Settings, plan: Plan, sizes: Sizes):
        self._settings, self._stage, self._sizes = settings, plan.stages[0], sizes
        self._runtime: Runtime = start_device(settings)

    def measure(self, size: Size) -> float:
        """Give the tokens a second of full pieces in steps of the stage's batch size."""
        settings, spec = self._settings, self._sizes.spec_of(size)
        stage = resolve_stage(settings, self._stage, spec.args["context_len"]).at_mean(in_steps=False)
        module = spec.build(self._sizes._vocab_size).to(self._runtime.device)
        model = DeviceModel(module, self._runtime.wrap(module, spec.args["context_len"], lambda said: None), self._runtime)
        timer = Timer(model, optimizers_of(stage, module), _TIMES)
        objective = load_objective(stage.objective, stage.objective_settings)
        count = whole_units(min(_PIECES, stage.batch_size), objective)
        tokens = np.random.default_rng(0).integers(0, self._sizes._vocab_size, (count, stage.context_len))
        pieces = pieces_to_time(tokens, objective)
        grouping = Grouping(count, self._runtime.length_multiple, stage.context_len, self._runtime.packs(module))
        mini_batches = grouping.mini_batches(pieces, count * stage.context_len)
        timer.time(objective, TrainBatch(Batch(pieces, {}), mini_batches, 0, [], range(0)))
        of_step = stage.batch_size * stage.context_len
        return of_step / (of_step * timer.seconds_per_slot + timer.seconds_per_update)


def _in_words(size: Size) -> str:
    """Say what a size is."""
    return f"{size.num_blocks} blocks, {size.embed_dim} wide, {size.num_heads} heads"


def _written(plan: Plan, size: Size, tokens: int | None = None) -> Plan:
    """Write a size, and perhaps the length of the only stage, into a plan."""
    chosen: dict[str, Any] = {"num_blocks": size.num_blocks, "embed_dim": size.embed_dim, "num_heads": size.num_heads}
    return with_sizes(plan, chosen, tokens)
