"""The pictures of lmp_plotstats: which panels each has, and what is in them.  Plotstats floor.

At most a few thousand points of a curve are drawn, after smoothing: the lowest and the highest of each stretch about as wide as a pixel, so that no peak
is lost (:func:`~lmplay.plotstats.runs.thin`).
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UserError
from ..files import write_atomic
from ..stats.figures import BY_NAME, FIGURES, Figure
from ..words import cut
from .compare import Idea, baseline_of
from .panels import Line, Panel, make_figure
from .runs import Curve, Floats, Stage, difference, source_column, with_unit
from .theme import THEMES, Theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LOSS = BY_NAME["loss"]
PANELS = sorted((figure for figure in FIGURES if figure.panel), key=lambda figure: figure.name != "bits_per_byte")  # which comes first where it is needed
STYLES = ("-", "--", "-.", ":")
KIND_NAMES = {"train": "training", "validate": "validation"}
FIRST_SOURCE_COLOR = 2  # those before it are for training and validation
# Of training and validation; the second pair where the colours have run out. Sources beyond that are not drawn.
SOURCE_STYLES = (("-", "--"), ("-.", ":"))
MOST_SAVES = 60  # more marks than this would be a band
# Runs whose tokens (nats per token over bits per byte, on validation texts) differ in length by more than this share are not comparable by token.
SAME_TOKENS = 0.02
WARNING = "tokens of different lengths (other tokenizers, or other texts): compare bits per byte of validation, not loss per token"
LIGHT = THEMES["light"]


def draw_curve(curve: Curve, validation: Curve | None, x_names: Sequence[str], smoothing: float | None, theme: Theme = LIGHT) -> Picture:
    """Draw one statistics file: loss, other figures, and losses by source below each other, a column for each x.

    :param validation: the validation to draw together with this training, or None.
    :param smoothing: see :func:`~lmplay.plotstats.runs.window_of`; validation is never smoothed.
    """
    shown = [curve] if validation is None else [curve, validation]
    colors = dict(zip(KIND_NAMES, theme.curves, strict=False))
    panels = []
    for figure in _measured(shown):
        floors = _floors(curve) if figure is LOSS else ()
        for x_name in x_names:
            lines = [_line(one, x_name, figure.name, smoothing, KIND_NAMES[one.kind], colors[one.kind]) for one in shown]
            saves = _within(curve, curve.saves, x_name)
            marks = [("saved", saves if len(saves) <= MOST_SAVES else saves[:0], theme.soft), *_marks(curve, x_name, theme.ink, theme.alarm)]
            panels.append(Panel(x_name, with_unit(figure, shown), lines, curve.stages, floors, marks))
    panels += _set_panels(shown, x_names, theme)
    panels += _source_panels(shown, x_names, smoothing, theme)
    stage = [] if curve.stage is None else [f"stage {curve.stage}"]
    state = ["not finished"] if curve.running else []
    return make_figure(panels, len(x_names), [curve.model, " · ".join([f"experiment {curve.experiment}", KIND_NAMES[curve.kind], *stage, *state])], theme)


def draw_together(curves: Sequence[Curve], x_names: Sequence[str], smoothing: float | None, theme: Theme = LIGHT, comparable: bool = True,
                  ideas: Sequence[Idea] | None = None) -> Picture:
    """Draw the same kind of curve of several models into the same panels.

    :param curves: one for each model, all of one kind.
    :param smoothing: see :func:`~lmplay.plotstats.runs.window_of`.
    :param ideas: the models of one idea, which differ in the seed alone, are drawn as one line, their mean; None = each model is one.
    :param comparable: whether losses per token can be compared (see :func:`same_tokens`); else the title warns.
    """
    ideas = ideas or [Idea(curve.model, (curve,)) for curve in curves]

    def panel(x_name: str, figure: Figure, lines: list[Line]) -> Panel:
        stages = _shared_stages(curves, x_name)
        floors = _shared_floors(curves) if stages and figure is LOSS else ()
        marks = [mark for idea, line in zip(ideas, lines, strict=True) for curve in idea.runs for mark in _marks(curve, x_name, line.color, line.color)]
        return Panel(x_name, with_unit(figure, curves), lines, stages, floors, marks)

    return _draw_models(ideas, x_names, smoothing, theme, comparable, panel, "")


def draw_differences(curves: Sequence[Curve], x_names: Sequence[str], smoothing: float | None, baseline: str | None = None, theme: Theme = LIGHT,
                     comparable: bool = True, ideas: Sequence[Idea] | None = None) -> Picture:
    """Draw each model minus a baseline, or minus the one with most samples, the same in all panels; see :func:`draw_together`.

    :param baseline: the model to subtract, one of those of `curves`; None = the one with most samples.
    """
    ideas = ideas or [Idea(curve.model, (curve,)) for curve in curves]
    chosen = baseline_of(ideas, baseline)
    number, name = ideas.index(chosen), cut(chosen.label, 40)

    def panel(x_name: str, figure: Figure, lines: list[Line]) -> Panel:
        base = lines[number]
        better = {None: f"zero = {name}", True: f"above zero = better than {name}", False: f"below zero = better than {name}"}[figure.higher_is_better]
        return Panel(x_name, with_unit(figure, curves), _all_minus(lines, base), _shared_stages(curves, x_name), note=(better, base.color))

    return _draw_models(ideas, x_names, smoothing, theme, comparable, panel, f", each minus {name}")


def save(picture: Picture, path: Path) -> None:
    """Write a picture, whole or not at all, to a .png, .svg or .pdf file; raises UserError when it cannot be written."""
    kind = path.suffix[1:]
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)  # the same curves make the same file
    try:
        write_atomic(path, lambda file: picture.savefig(file, format=kind, metadata=undated))
    except OSError as error:
        raise UserError(f"picture {path}: cannot be written ({error.strerror or error}); free some space or fix the folder's permissions.") from None


def same_tokens(curves: Sequence[Curve]) -> bool:
    """Tell by the validation curves whether losses per token can be compared: whether tokens of the first stages are equally long. True where unknown."""
    ratios = []
    for curve in curves:
        first = slice(0, curve.borders("loss")[0] if len(curve.stages) > 1 else None)
        (_, loss), (_, bits) = curve.points("tokens", "loss"), curve.points("tokens", "bits_per_byte")
        loss, bits = loss[first], bits[first]
        if len(loss) == len(bits) and len(loss) and (bits > 0).all():
            ratios.append(loss / bits)
    fewest = min(map(len, ratios), default=0)  # all runs have these validations, over the same texts
    medians = [float(np.median(one[:fewest])) for one in ratios]
    return not medians or max(medians) <= (1 + SAME_TOKENS) * min(medians)


def _draw_models(ideas: Sequence[Idea], x_names: Sequence[str], smoothing: float | None, theme: Theme, comparable: bool,
                 panel: Callable[[str, Figure, list[Line]], Panel], minus: str) -> Picture:
    """Draw several models.

    :param panel: makes the panel of an x axis and a figure from a line for each model.
    :param minus: what the title says of a baseline.
    """
    curves = [curve for idea in ideas for curve in idea.runs]
    panels = [panel(x_name, figure, _lines(ideas, x_name, figure.name, smoothing, theme)) for figure in _measured(curves, comparable) for x_name in x_names]
    for name in [name for name in curves[0].named_sets if all(name in curve.sets for curve in curves)]:
        of_set = [replace(idea, runs=tuple(curve.sets[name] for curve in idea.runs)) for idea in ideas]
        figure = LOSS if comparable else BY_NAME["bits_per_byte"]
        panels += [replace(panel(x_name, figure, _lines(of_set, x_name, figure.name, smoothing, theme)), of=f"of {cut(name, 40)}", floors=())
                   for x_name in x_names]
    title = f"{KIND_NAMES[curves[0].kind].capitalize()} of {len(curves)} models{minus}"
    return make_figure(panels, len(x_names), [title, *([] if comparable else [WARNING])], theme)


def _measured(curves: Sequence[Curve], comparable: bool = True) -> list[Figure]:
    """List the figures with panels: loss, those that were measured, and bits per byte only where losses per token are not comparable."""
    figures = {figure.name: figure for figure in (*PANELS, *(figure for curve in curves for figure in curve.declared)) if figure.panel}
    return [figure for name, figure in figures.items() if figure is LOSS or (
        any(curve.points("samples", name)[0].size for curve in curves) and not (name == "bits_per_byte" and comparable))]


def _set_panels(shown: Sequence[Curve], x_names: Sequence[str], theme: Theme) -> list[Panel]:
    """Prepare a row of panels with the losses on named sets; none where there are none."""
    sets = [(name, one) for curve in shown for name, one in curve.sets.items() if name in curve.named_sets]
    colors = theme.curves[FIRST_SOURCE_COLOR:]
    return [Panel(x_name, LOSS, [_line(one, x_name, LOSS.name, 0, cut(name, 40), colors[index % len(colors)], STYLES[index // len(colors) % len(STYLES)])
                                 for index, (name, one) in enumerate(sets)], shown[0].stages, of="of named sets") for x_name in x_names if sets]


def _source_panels(shown: Sequence[Curve], x_names: Sequence[str], smoothing: float | None, theme: Theme) -> list[Panel]:
    """Prepare a row of panels with the loss by source, those with most tokens first; none where there is no loss by source."""
    colors = theme.curves[FIRST_SOURCE_COLOR:]
    most, panels = len(colors) * len(SOURCE_STYLES), []
    drawn = list(dict.fromkeys(source for curve in shown for source in curve.sources))
    of = "by source" if len(drawn) <= most else f"of the {most} largest of {len(drawn)} sources"
    for x_name in x_names if drawn else ():
        lines = []
        for index, source in enumerate(drawn[:most]):
            color, styles = colors[index % len(colors)], SOURCE_STYLES[index // len(colors)]
            for curve in shown:
                if source in curve.sources:
                    label = f"{cut(source, 40)}, {KIND_NAMES[curve.kind]}"
                    style = styles[curve.kind == "validate"]
                    lines.append(_line(curve, x_name, source_column(source), smoothing, label, color, style))
        panels.append(Panel(x_name, LOSS, lines, shown[0].stages, of=of))
    return panels


def _line(curve: Curve, x_name: str, y_name: str, smoothing: float | None, label: str, color: str, style: str = "-") -> Line:
    """Prepare a column of a curve; validation points are few and means already, so they stay as they are, and those of two stages are of other samples."""
    validation = curve.kind == "validate"
    x, raw = curve.points(x_name, y_name)
    _, y = curve.smoothed(x_name, y_name, 0 if validation else smoothing)
    return Line(label, color, style, x, y, raw, validation, curve.borders(y_name) if validation else (), _error(curve, x_name, y_name))


def _error(curve: Curve, x_name: str, y_name: str) -> Floats | None:
    """Give the standard errors of the points of a column; None where they were not measured."""
    if y_name != LOSS.name:
        return None
    known = np.isfinite(curve.columns[x_name]) & np.isfinite(curve.columns[y_name])
    errors = curve.columns["standard_error"][known]
    return errors if np.isfinite(errors).any() else None


def _lines(ideas: Sequence[Idea], x_name: str, y_name: str, smoothing: float | None, theme: Theme) -> list[Line]:
    """Prepare one line for each idea; colours first, line styles where these run out."""
    many = len({curve.experiment for idea in ideas for curve in idea.runs}) > 1
    lines = []
    for index, idea in enumerate(ideas):
        first, running = idea.runs[0], any(curve.running for curve in idea.runs)
        label = f"{cut(idea.label, 40)}{f' ({cut(first.experiment, 30)})' if many else ''}{', not finished' if running else ''}"
        color, style = theme.curves[index % len(theme.curves)], STYLES[index // len(theme.curves) % len(STYLES)]
        lines.append(_mean([_line(curve, x_name, y_name, smoothing, label, color, style) for curve in idea.runs]))
    return lines


def _mean(lines: Sequence[Line]) -> Line:
    """Prepare the mean of the lines of several seeds, where all of them have values, with their standard deviation as its band."""
    first, *others = lines
    if not others:
        return first
    zero = np.zeros(len(first.x))
    own, gaps = _minus(first, replace(first, y=zero, raw=zero)), [_minus(first, other) for other in others]
    kept = np.all([np.isin(own.x, gap.x) for gap in gaps], axis=0)
    values = np.array([own.y[kept], *(own.y[kept] - gap.y[np.isin(gap.x, own.x[kept])] for gap in gaps)])
    y = values.mean(axis=0)
    return replace(own, x=own.x[kept], y=y, raw=y, breaks=[int(kept[:index].sum()) for index in own.breaks], band=values.std(axis=0, ddof=1), of_seeds=True)


def _all_minus(lines: Sequence[Line], base: Line) -> list[Line]:
    """Prepare the differences, and the baseline itself up to the end of the longest other line."""
    others = [_minus(line, base) for line in lines if line is not base]
    reach = max((line.x[-1] for line in others if line.x.size), default=np.inf)
    near = int(np.searchsorted(base.x, reach, side="right"))
    zero = replace(base, x=base.x[:near], y=np.zeros(near), raw=np.zeros(near), band=None)
    return [zero if line is base else others.pop(0) for line in lines]


def _minus(line: Line, base: Line) -> Line:
    """Prepare the difference of two lines, part by part where both have as many."""
    parts = [_parts(one) for one in (line, base)]
    if len(parts[0]) != len(parts[1]):
        parts = [[slice(None)], [slice(None)]]
    found = [[difference(line.x[mine], values[mine], base.x[its], of_base[its]) for mine, its in zip(*parts, strict=True)]
             for values, of_base in ((line.y, base.y), (line.raw, base.raw))]
    (x, y), (_, raw) = ([np.concatenate(column) for column in zip(*of_parts, strict=True)] for of_parts in found)
    return replace(line, x=x, y=y, raw=raw, band=None, breaks=np.cumsum([len(places) for places, _ in found[0]])[:-1].tolist())


def _parts(line: Line) -> list[slice]:
    """List the parts of a line."""
    return [slice(begin, end) for begin, end in itertools.pairwise([0, *line.breaks, len(line.x)])]


def _longest(curves: Sequence[Curve], x_name: str, y_name: str) -> Curve:
    """Find the curve whose column goes farthest; the first of equals."""
    return max(curves, key=lambda curve: np.max(curve.points(x_name, y_name)[0], initial=-1.0))


def _marks(curve: Curve, x_name: str, color: str, alarm: str) -> list[tuple[str, Floats, str]]:
    """List the marks of resumes and skipped batches."""
    return [("resumed", _within(curve, curve.resumes, x_name), color), ("batch skipped", curve.skipped(x_name), alarm)]


def _within(curve: Curve, events: dict[str, Floats], x_name: str) -> Floats:
    """Select the events within the curve's own stages: a stage's file may list those of the whole run."""
    x = events[x_name]
    return x[(x >= curve.stages[0].begin[x_name]) & (x <= curve.stages[-1].end[x_name])] if curve.stages else x


def _floors(curve: Curve) -> list[float]:
    """List the floor of each stage: that of the validated rows where known, else that of the stage's texts."""
    if curve.kind == "train":
        return [stage.floor for stage in curve.stages]
    _, floors = curve.points("tokens", "floor")
    parts = np.split(floors, curve.borders("floor"))
    return [float(np.median(part)) if part.size else stage.floor for part, stage in zip(parts, curve.stages, strict=False)]


def _shared_stages(curves: Sequence[Curve], x_name: str) -> Sequence[Stage]:
    """Return the stages of the longest run if those of all others begin at the same x (within 2 %), else none."""
    longest = _longest(curves, x_name, "loss")
    slack = 0.02 * np.max(longest.points(x_name, "loss")[0], initial=0.0)
    pairs = [pair for curve in curves for pair in zip(longest.stages, curve.stages, strict=False)]
    same = all(one.name == other.name and abs(one.begin[x_name] - other.begin[x_name]) <= slack for one, other in pairs)
    return longest.stages if same else ()


def _shared_floors(curves: Sequence[Curve]) -> Sequence[float]:
    """Return the floors of the curve with most stages if all others have the same, else none: they depend on the tokenizer."""
    floors = sorted((_floors(curve) for curve in curves), key=len)
    return floors[-1] if all(np.allclose(one, floors[-1][: len(one)], rtol=0.005, equal_nan=True) for one in floors) else ()
