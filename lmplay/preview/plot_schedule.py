"""`--plot-schedule`: learning rate, batch size and weight decay as a plan will have them, drawn without training."""
from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

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
# A stage whose length is not known is drawn up to this step, at least.
_SOME_STEPS = 200
_THEME = THEMES["light"]
_PANELS = ("learning rate", "batch size (pieces)", "weight decay")


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
        pieces, tokens = _means(StageView(ahead.settings, stage, tokenizer))
        found.append(_course(ahead.settings, stage, pieces, tokens))
        means.append(f"{stage.stage.name} {pieces:.2f} pieces and {tokens:,.0f} tokens")
    return found, f"a sample is taken to have as many as the first {_LOOKED_AT} on average: {', '.join(means)}"


def _means(view: StageView) -> tuple[float, float]:
    """Count the pieces and the tokens of the first samples."""
    stream = view.data.open_samples()
    units = [view.prepare(sample) for sample in itertools.islice(iter(stream.next, None), _LOOKED_AT)]
    units = [unit for unit in units if unit]
    return fmean(map(len, units)) if units else 1.0, fmean(sum(piece.n_truth for piece in unit) for unit in units) if units else 1.0


def _course(run: Settings, stage: OpenStage, pieces: float, tokens: float) -> Course:
    """Follow the schedules of a stage; `pieces` and `tokens` are those of a sample."""
    settings, (unit, length) = stage.settings, stage.stage.length
    steps_of_sample = pieces / settings.batch_size
    lengths: dict[str, float | None] = {"samples": length, "tokens": length / tokens, "steps": length / steps_of_sample,
                                        "epochs": stage.data.open_samples().total}
    total = lengths[unit]
    if not stage.data.length_is_known:
        total = None
    decay = optimizer_row(settings.optimizer).weight_decay if settings.weight_decay is None else settings.weight_decay
    course, lr = Course(stage.stage.name, total), LrSchedulersComponent(run)
    drawn = total if total is not None else 2 * max(_SOME_STEPS, settings.warmup) / steps_of_sample
    steps = drawn * steps_of_sample
    n_points = min(steps, _MOST_POINTS)
    for point in range(max(1, math.ceil(n_points - 1e-9))):
        share = point / n_points
        samples = share * drawn
        lr.steps, lr.progress = round(share * steps), share if total is not None else None
        done = {"steps": share * steps, "samples": samples, "tokens": samples * tokens}
        course.samples.append(samples if total is not None else share)
        if settings.weight_decay_schedule is not None:
            decay = settings.weight_decay_schedule.at(share)
        values = lr.lr(settings, done), float(settings.batch_size), math.nan if decay is None else decay
        for name, value in zip(_PANELS, values, strict=True):
            course.values[name].append(value)
    return course


def draw(courses: list[Course]) -> Figure:
    """Draw the courses of stages behind each other, a panel for each value."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    known = all(course.length is not None for course in courses)
    widths = [float(course.length or 1.0) if known else 1.0 for course in courses]
    starts = [0.0, *itertools.accumulate(widths)]
    picture = Figure(figsize=(9, 7), dpi=110, layout="constrained", facecolor=_THEME.paper)
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
