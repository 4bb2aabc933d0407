"""`--find-lr`: short runs over the same batches with several learning rates, which of them leads furthest down, and a picture.  Nothing of a run is written."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from ..data.continuation import Piece
from ..device.model import DeviceModel
from ..device.random_state import seed_everything
from ..engine.batches import Batches, Grouping, TrainBatch
from ..engine.evaluate import log_probs
from ..engine.opening import check_all, freeze, make_model
from ..engine.reference import Reference, key_of
from ..engine.run import OpenStage
from ..engine.step import train_step
from ..engine.teacher import ask_about, check_fit, find_teacher, open_teacher
from ..errors import Faults, UserError
from ..files import check_folder
from ..modules.adapters import add_adapter, choose_layers
from ..optim.optimizers import optimizers_of
from ..optim.schedules import warmup_factor
from ..plan.curriculum import StageState
from ..plan.names import OPTIMIZER_SETTINGS
from ..plan.schema import Plan
from ..plan.settings import Settings
from ..plotstats.plot import save
from ..plotstats.theme import THEMES
from .show import StageView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Steps of a run, of which the first fifth is a warm-up; over the others the learning rate falls to 0, as at the end of a long run. Fewer are not enough.
_STEPS, _LEAST_STEPS, _WARMUP_SHARE = 48, 12, 0.2
# A run is judged by the mean loss of this share of its steps, the last ones.
_JUDGED_SHARE = 0.25
# Learning rates are this factor apart, and at most this number of factors from the first.
_FACTOR, _MOST_AWAY = 2.0, 8
# A run has diverged when its loss is this much (nats) above that of its first step: a model that knows nothing is not that bad.
_DIVERGED = 1.0
# The search ends in a direction after this many runs that were worse than the best.
_WORSE = 2
_THEME = THEMES["light"]


@dataclass
class ShortRun:
    """A run with a peak learning rate: the loss of each step in nats per token; it ends early where it has diverged."""

    lr: float
    losses: list[float] = field(default_factory=list)
    diverged: bool = False

    @property
    def loss(self) -> float:
        """What it is judged by; infinite where it has diverged."""
        return math.inf if self.diverged else fmean(self.losses[-max(1, round(_JUDGED_SHARE * len(self.losses))):])


def find_lr(settings: Settings, plan: Plan, path: Path, say: Callable[[str], None]) -> str:
    """Try learning rates around the one that the flags and the plan name, on the beginning of the first stage, with fresh weights.

    :param settings: of the command line.
    :param path: where the picture is written.
    :param say: is told how each run ends.
    :return: the table and the suggestion.
    :raises UserError: for what is wrong with flags, model file, plan and data, and where the stage has too few batches.
    """
    check_folder(path.parent, "folder of --find-lr")
    runtime, ahead, opened = check_all(settings, plan, lambda ahead: [(ahead.plan.stages[0], StageState(ahead.plan.stages[0].name))], say, Faults())
    stage = next(iter(opened.values()))
    model, device_model, _ = make_model(ahead.without_adapter(), runtime, [stage], say, say)
    batches = _first_batches(ahead.settings, stage, StageView(ahead.settings, stage, model.tokenizer), device_model)
    if (adapter := stage.settings.adapter) is not None:
        add_adapter(device_model.raw, adapter, choose_layers(device_model.raw, adapter))
    freeze(device_model.raw, stage.stage, ahead.settings)
    fresh = {name: value.detach().clone() for name, value in device_model.raw.state_dict().items()}

    scale = runtime.scaler.state_dict()

    def run(lr: float) -> ShortRun:
        device_model.raw.load_state_dict(fresh)
        runtime.scaler.load_state_dict(scale)
        seed_everything(ahead.settings.seed)
        found = _train(device_model, stage, batches, lr)
        say(f"lr {lr:.3g}: " + (f"diverged after {len(found.losses)} steps" if found.diverged else f"loss {found.loss:.4f}"))
        return found

    runs = search(run, stage.settings.lr)
    suggested = suggest(runs)
    save(draw(runs, suggested), path)
    return table(runs, suggested, stage.settings.lr, f"{len(batches)} steps of stage '{stage.stage.name}', {ahead.spec.experiment} with "
                 f"{stage.settings.optimizer}, batch {stage.settings.in_words('batch_size')}", path)


def search(run: Callable[[float], ShortRun], first: float) -> list[ShortRun]:
    """Try the first learning rate, larger ones, and smaller ones, until it has got worse twice in each direction.

    :return: the runs, by learning rate.
    """
    runs = [run(first)]
    for factor in (_FACTOR, 1 / _FACTOR):
        worse = 0
        for away in range(1, _MOST_AWAY + 1):
            runs.append(run(first * factor ** away))
            worse = worse + 1 if runs[-1].loss > min(other.loss for other in runs) or runs[-1].diverged else 0
            if (worse == _WORSE and any(not other.diverged for other in runs)) or (factor > 1 and runs[-1].diverged):
                break
    return sorted(runs, key=lambda one: one.lr)


def suggest(runs: Sequence[ShortRun]) -> float | None:
    """Give the lowest point of the parabola through the best run and its neighbours, over the logarithm of the learning rate; the best one's learning rate at
    an end of the grid; None where all have diverged.

    :param runs: by learning rate.
    """
    best = min(range(len(runs)), key=lambda number: runs[number].loss)
    if runs[best].diverged:
        return None
    around = runs[best - 1:best + 2] if 0 < best < len(runs) - 1 else []
    if len(around) < 3 or any(one.diverged for one in around):
        return runs[best].lr
    below, lowest, above = (one.loss for one in around)
    bend = below - 2 * lowest + above
    return runs[best].lr * _FACTOR ** ((below - above) / (2 * bend) if bend > 0 else 0.0)


def table(runs: Sequence[ShortRun], suggested: float | None, first: float, what: str, path: Path) -> str:
    """Write what has been found."""
    best = min(runs, key=lambda one: one.loss)
    lines = [what, "", f"{'lr':>10}  {'loss':>8}"]
    for one in runs:
        notes = [f"diverged after {len(one.losses)} steps"] * one.diverged + ["lowest"] * (one is best and not one.diverged) + ["as now"] * (one.lr == first)
        lines.append(f"{one.lr:>10.3g}  {'' if one.diverged else f'{one.loss:.4f}':>8}  {', '.join(notes)}".rstrip())
    if suggested is None:
        return "\n".join([*lines, "", f"all of them diverged: something else than the learning rate is wrong, or give a far smaller --lr. Picture: {path}"])
    at_end = " It is at the end of what was tried: try again with it." if best in (runs[0], runs[-1]) and not any(one.diverged for one in runs) else ""
    return "\n".join([*lines, "", f"suggested: --lr {suggested:.2g}.{at_end} It is that of a short run; a long one often wants the same or half of it. "
                      f"Picture: {path}"])


def draw(runs: Sequence[ShortRun], suggested: float | None) -> Figure:
    """Draw the loss that each learning rate came to, and the way there."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9, 7), dpi=110, layout="constrained", facecolor=_THEME.paper)
    ends, ways = picture.subplots(2, 1)
    good = [one for one in runs if not one.diverged]
    ends.plot([one.lr for one in good], [one.loss for one in good], marker="o", color=_THEME.curves[0])
    for one in runs:
        if one.diverged:
            ends.axvline(one.lr, color=_THEME.curves[1], linestyle=":", label="diverged")
    if suggested is not None:
        ends.axvline(suggested, color=_THEME.soft, label=f"suggested: {suggested:.2g}")
    ends.set_xscale("log")
    ends.set_xlabel("learning rate")
    for number, one in enumerate(runs):
        ways.plot(range(1, len(one.losses) + 1), one.losses, color=_THEME.curves[number % len(_THEME.curves)],
                  linestyle="-" if number < len(_THEME.curves) else "--", linewidth=1.2, label=f"{one.lr:.2g}")
    ways.set_xlabel("step")
    if finite := [loss for one in good for loss in one.losses]:
        ways.set_ylim(min(finite) - 0.1, max(finite) + _DIVERGED)
    for axis in (ends, ways):
        axis.set_ylabel("loss (nats per token)")
        axis.grid(color=_THEME.grid, linewidth=0.6)
        handles, names = axis.get_legend_handles_labels()
        if by_name := dict(zip(names, handles, strict=True)):
            axis.legend(by_name.values(), by_name.keys(), fontsize=8)
    return picture


def _first_batches(settings: Settings, stage: OpenStage, view: StageView, model: DeviceModel) -> list[TrainBatch]:
    """Make the first batches of a stage; raises UserError where there are too few, and where the model writes what it learns from."""
    if stage.objective.writing is not None:
        raise UserError(f"--find-lr: stage '{stage.stage.name}' trains on answers that the model writes, for which a short run shows little; give lr in the "
                        "plan.")
    context_len = stage.settings.context_len
    grouping = Grouping(settings.first_mini_batch, model.runtime.length_multiple, context_len, model.runtime.packs(model.raw))
    made = Batches(stage, view.cutter, grouping, lambda: settings.token_budget(context_len), workers=0, accuracy_pieces=0)
    found = list(islice(iter(lambda: made.next(lambda: False), None), _STEPS))
    made.close()
    if len(found) < _LEAST_STEPS:
        raise UserError(f"--find-lr: stage '{stage.stage.name}' has {len(found)} batches, and a short run needs {_LEAST_STEPS}; give a smaller --batch-size, "
                        "or more text.")
    grouping = _with_others(settings, stage, view, model, grouping, [piece for batch in found for piece in batch.batch.pieces])
    return [replace(batch, mini_batches=grouping.mini_batches(batch.batch.pieces, batch.token_budget)) for batch in found]


def _with_others(settings: Settings, stage: OpenStage, view: StageView, model: DeviceModel, grouping: Grouping, pieces: list[Piece]) -> Grouping:
    """Find what reference and teacher say of pieces, where the objective has one; raises UserError where the teacher does not fit."""
    budget, keys = settings.token_budget(stage.settings.context_len), [key_of(piece) for piece in pieces]
    if stage.objective.needs_reference:
        values = log_probs(model, pieces, grouping.mini_batches(pieces, budget))
        return replace(grouping, reference=Reference(dict(zip(keys, values, strict=True))))
    if stage.objective.teaching is not None:
        found = find_teacher(stage, settings)
        check_fit(found, stage, view.tokenizer)
        said = ask_about(open_teacher(found, model.runtime, grouping), pieces, budget, stage.objective.teaching, view.tokenizer)
        known = dict(zip(keys, said, strict=True))
        return replace(grouping, teacher=lambda piece: known[key_of(piece)])
    return grouping


def _train(model: DeviceModel, stage: OpenStage, batches: Sequence[TrainBatch], lr: float) -> ShortRun:
    """Do a short run from the model's present weights."""
    used, found = replace(stage.settings, lr=lr, ema=0.0), ShortRun(lr)
    optimizers = optimizers_of(used, model.raw)
    optimizers.set_weight_decay(used.weight_decay)
    optimizers.set_options({name: getattr(used, name) for name in OPTIMIZER_SETTINGS})
    model.raw.train()
    warmup, scaled = _WARMUP_SHARE * len(batches), model.runtime.scaler.is_enabled()  # which skips steps until its scale is right
    for step, batch in enumerate(batches):
        falls = min(1.0, (len(batches) - step) / (len(batches) - warmup))
        optimizers.set_lr(lr * warmup_factor(step, warmup) * falls)
        sums = train_step(model, optimizers, stage.objective, batch, used.grad_clip, lambda: False)
        assert sums is not None
        if sums.count:
            found.losses.append(float(sums.loss_sum) / sums.count)
        if (found.losses and not found.losses[-1] <= found.losses[0] + _DIVERGED) or not (scaled or bool(torch.isfinite(sums.grad_norm))):
            found.diverged = True
            break
    return found
