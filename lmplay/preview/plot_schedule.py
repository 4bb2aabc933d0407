"""`--plot-schedule`: learning rate, batch size, context length and weight decay as a plan will have them, drawn without training."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.batches import StageSizes
from ..engine.components import LrSchedulersComponent
from ..engine.opening import open_stages, outline
from ..engine.run import OpenStage
from ..plan.curriculum import StageState
from ..plan.names import optimizer_row
from ..plan.schema import Plan
from ..plan.settings import Settings
from ..plotstats.plot import save
from ..plotstats.theme import THEMES
from ..words import compact
from .show import StageView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Pieces and tokens of a sample are means of the first ones.
_LOOKED_AT = 200
# A stage with more steps than this is drawn at this number of places.
_MOST_POINTS = 2000
# Places of a stage that means are taken over.
_MEAN_OF = 256
# A stage whose length is not known is drawn up to this step, at least.
_SOME_STEPS = 200
# Context lengths for which the pieces of a sample are counted, where it changes; between them they are interpolated.
_CONTEXTS = 5
_THEME = THEMES["light"]
_PANELS = ("learning rate", "batch size (pieces)", "context (tokens)", "weight decay")


@dataclass
class Course:
    """What a stage will be trained with: the samples before each step that is drawn (of a stage of unknown length its share of them), and the values of it.

    `length` is how many samples the stage has; None where that is unknown.
    """

    name: str
    length: float | None
    samples: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _PANELS})


def plot_schedule(settings: Settings, plan: Plan, path: Path, say: Callable[[str], None]) -> str:
    """Draw what a plan will do.

    :param settings: of the command line.
    :param path: where the picture is written.
    :param say: is told what there is to say of the data.
    :return: a line that says where it is, and on what it rests.
    :raises UserError: for what is wrong with flags, model file, plan and data.
    """
    courses, means = courses_of(settings, plan, say)
    save(draw(courses), path)
    return f"{path}: {len(courses)} stage{'s' * (len(courses) > 1)}; {means}"


def courses_of(settings: Settings, plan: Plan, say: Callable[[str], None]) -> tuple[list[Course], str]:
    """Work out the course of each stage from its beginning, and say what their lengths rest on; see :func:`plot_schedule`."""
    ahead = outline(settings, plan)
    states = [(stage, StageState(stage.name, rules=state.rules)) for stage, state in zip(ahead.plan.stages, ahead.curriculum.states, strict=True)]
    opened = open_stages(ahead, states, say)
    tokenizer = ahead.tokenizer(stage.data for stage in opened.values())
    found, means = [], []
    for stage in opened.values():
        view = StageView(ahead.settings, stage, tokenizer)
        pieces, tokens = _means(view, stage)
        found.append(_course(ahead.settings, stage, StageSizes(stage, view.cutter), pieces, tokens))
        means.append(f"{stage.stage.name} {pieces(stage.settings.context_len):.2f} pieces and {tokens:,.0f} tokens")
    return found, f"a sample is taken to have as many as the first {_LOOKED_AT} on average: {', '.join(means)}"


def _means(view: StageView, stage: OpenStage) -> tuple[Callable[[float], float], float]:
    """Count the pieces, by the context length, and the tokens of the first samples."""
    samples = list(itertools.islice(iter(view.data.open_samples().next, None), _LOOKED_AT))
    chain, longest = stage.settings.context_len_schedule, stage.settings.context_len
    shortest = longest if chain is None else round(min(chain.values))
    lengths = sorted({round(length) for length in np.geomspace(shortest, longest, _CONTEXTS)})
    units = {length: [unit for sample in samples if (unit := stage.objective.prepare(sample, view.cutter.with_context(length)))] for length in lengths}
    if not units[longest]:
        return lambda length: 1.0, 1.0
    counts = [fmean(map(len, units[length])) for length in lengths]
    return lambda length: float(np.interp(length, lengths, counts)), fmean(sum(piece.n_truth for piece in unit) for unit in units[longest])


def _course(run: Settings, stage: OpenStage, sizes: StageSizes, pieces: Callable[[float], float], tokens: float) -> Course:
    """Follow the schedules of a stage.

    :param pieces: gives those of a sample at a context length.
    :param tokens: of a sample.
    """
    settings, (unit, length), is_known = stage.settings, stage.stage.length, stage.data.length_is_known

    def samples_of_step(share: float) -> float:
        return sizes.batch_size(share) / pieces(sizes.context_len(share))

    places = [(number + 0.5) / _MEAN_OF for number in range(_MEAN_OF)]
    lengths: dict[str, Callable[[], float | None]] = {
        "samples": lambda: length, "tokens": lambda: length / tokens, "epochs": lambda: stage.data.open_samples().total,
        "steps": lambda: length * fmean(map(samples_of_step, places))}
    total = lengths[unit]() if is_known else None
    drawn = total if total is not None else 2 * max(_SOME_STEPS, settings.warmup) * samples_of_step(0.0)
    steps_in_all = length if unit == "steps" and is_known else drawn * fmean(1 / samples_of_step(place) for place in places)
    decay = optimizer_row(settings.optimizer).weight_decay if settings.weight_decay is None else settings.weight_decay
    course, lr = Course(stage.stage.name, total), LrSchedulersComponent(run)
    n_points, steps, samples = min(steps_in_all, _MOST_POINTS), 0.0, 0.0
    for point in range(max(1, math.ceil(n_points - 1e-9))):
        share = point / n_points
        lr.steps, lr.progress = round(steps), share if total is not None else None
        course.samples.append(samples if total is not None else share)
        if settings.weight_decay_schedule is not None:
            decay = settings.weight_decay_schedule.at(share)
        values = lr.lr(settings, {"steps": steps, "samples": samples, "tokens": samples * tokens}), sizes.batch_size(share), sizes.context_len(share), \
            math.nan if decay is None else decay
        for name, value in zip(_PANELS, values, strict=True):
            course.values[name].append(value)
        of_step = samples_of_step(share)
        steps += (steps_in_all if unit == "steps" and is_known else drawn / of_step) / n_points
        samples += (steps_in_all * of_step if unit == "steps" and is_known else drawn) / n_points
    return course


def draw(courses: list[Course]) -> Figure:
    """Draw the courses of stages behind each other, a panel for each value."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    known = all(course.length is not None for course in courses)
    widths = [float(course.length or 1.0) if known else 1.0 for course in courses]
    starts = [0.0, *itertools.accumulate(widths)]
    picture = Figure(figsize=(9, 9), dpi=110, layout="constrained", facecolor=_THEME.paper)
    axes: list[Any] = list(picture.subplots(len(_PANELS), 1, sharex=True))
    for axis, panel, color in zip(axes, _PANELS, _THEME.curves, strict=False):
        for number, (course, start, width) in enumerate(zip(courses, starts, widths, strict=False)):
            within = width if not known and course.length is None else width / (course.length or 1.0)
            axis.plot([*(start + samples * within for samples in course.samples), start + width], [*course.values[panel], course.values[panel][-1]],
                      color=color, drawstyle="steps-post", linewidth=1.6)
            if number % 2:
                axis.axvspan(start, start + width, color=_THEME.shade, zorder=0)
        axis.set_ylabel(panel)
        axis.set_ylim(bottom=0)
        axis.margins(x=0.01)
        axis.grid(color=_THEME.grid, linewidth=0.6)
        axis.set_axisbelow(True)
    axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value) if known else f"{value:g}"))
    axes[-1].set_xlabel("samples" if known else "stages, each from its beginning to its end (the samples of one are not known)")
    for course, start, width in zip(courses, starts, widths, strict=False):
        axes[0].annotate(course.name, (start + width / 2, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 4), textcoords="offset points", ha="center",
                         va="bottom", color=_THEME.soft, fontsize=9)
    return picture
