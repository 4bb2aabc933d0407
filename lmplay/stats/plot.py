"""The pictures of lmp_plotstats: figures from curves, drawn without a display.  Stats floor: runs, numpy, matplotlib and the ground."""
from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from ..files import write_atomic
from .runs import Curve, Floats, Stage, difference, source_column, thin

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# Okabe and Ito (2008), "Color universal design": told apart by all kinds of colour vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", "-.", ":")
KIND_NAMES = {"train": "training", "validate": "validation"}
KIND_COLORS = {"train": COLORS[0], "validate": COLORS[1]}
SOURCE_COLORS = COLORS[2:]
# Of training and validation; the second pair where the colours have run out. More sources than these tell apart are not drawn.
SOURCE_STYLES = (("-", "--"), ("-.", ":"))
FLOOR: dict[str, Any] = {"color": "#333333", "linestyle": (0, (4, 3)), "linewidth": 1.0}
RESUME: dict[str, Any] = {"color": "#333333", "linestyle": "none", "marker": "^", "markersize": 6}
TIME_UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
DPI = 110
SMALL = 8.0  # font size of what is written into the panels
MOST_POINTS = 2000  # drawn of one curve: some for each pixel of the widest panel
MOST_MARKERS = 60  # more points than this are a line without markers
MOST_RAW = {"loss": 4, "accuracy": 1}  # more curves than this in a panel are drawn without the raw ones behind
FEW_POINTS = 20  # fewer points than this are all shown
RARE = 100  # of so many raw points one may lie outside a panel
START = 0.03  # share of a loss curve that may leave its panel at the top: the fall of the first steps would flatten all the rest
FAR_FLOOR = 0.5  # a floor under this share of the lowest loss is written at the bottom edge, unless its panel stays at least half filled with it
LOG_RATIO = 2.5  # a loss panel whose top is this many times its bottom gets a log axis


@dataclass(frozen=True, eq=False)
class _Line:
    """A curve as it is drawn: in front its smoothed form, behind it the raw one."""

    label: str
    color: str
    style: str
    x: Floats
    y: Floats
    raw: Floats
    validation: bool

    @property
    def marker(self) -> str:
        """Dots where there are few validations, or where a line would have no length."""
        return "o" if len(self.x) == 1 or (self.validation and len(self.x) <= MOST_MARKERS) else ""

    @property
    def smoothed(self) -> bool:
        """Whether the raw curve would show anything that the one in front does not."""
        return not np.array_equal(self.raw, self.y)


@dataclass(frozen=True, eq=False)
class _Panel:
    """One set of axes: what it shows over which x."""

    x_name: str
    y_name: str
    lines: Sequence[_Line]
    stages: Sequence[Stage]
    floors: Sequence[float] = ()
    resumes: Sequence[tuple[Floats, str]] = ()
    note: tuple[str, str] | None = None  # text and colour, of a panel that shows differences
    of: str = ""  # whose values, where it is not those of whole curves

    @property
    def difference(self) -> bool:
        """Whether it shows differences to a run."""
        return self.note is not None

    @property
    def raw_lines(self) -> list[_Line]:
        """The lines with a raw curve worth seeing: not where there are too many, and accuracy is too noisy for more than one."""
        smoothed = [line for line in self.lines if line.smoothed]
        return smoothed if len(smoothed) <= MOST_RAW[self.y_name] else []


def draw_curve(curve: Curve, validation: Curve | None, x_names: Sequence[str], smoothing: float | None) -> Figure:
    """Draw one statistics file: loss above accuracy above the losses of its sources, a column for each x.

    :param curve: what to draw.
    :param validation: what to draw with the training that it belongs to, or None.
    :param x_names: the x axes.
    :param smoothing: see :func:`~lmplay.stats.runs.window_of`; validation is never smoothed.
    :return: the figure.
    """
    shown = [curve] if validation is None else [curve, validation]
    panels = []
    for y_name in _measured(shown):
        floors = _floors(curve) if y_name == "loss" else ()
        for x_name in x_names:
            lines = [_line(one, x_name, y_name, smoothing, KIND_NAMES[one.kind], KIND_COLORS[one.kind]) for one in shown]
            panels.append(_Panel(x_name, y_name, lines, curve.stages, floors, [(_resumes(curve, x_name), RESUME["color"])]))
    panels += _source_panels(shown, x_names, smoothing)
    stage = [] if curve.stage is None else [f"stage {curve.stage}"]
    state = ["not finished"] if curve.running else []
    return _figure(panels, len(x_names), [curve.model, " · ".join([f"experiment {curve.experiment}", KIND_NAMES[curve.kind], *stage, *state])])


def draw_together(curves: Sequence[Curve], x_names: Sequence[str], smoothing: float | None) -> Figure:
    """Draw the same kind of curve of several models into the same panels.

    :param curves: one for each model, all of one kind.
    :param x_names: the x axes.
    :param smoothing: see :func:`~lmplay.stats.runs.window_of`.
    :return: the figure.
    """
    panels = []
    for y_name in _measured(curves):
        for x_name in x_names:
            lines = _lines(curves, x_name, y_name, smoothing)
            stages = _shared_stages(curves, x_name)
            floors = _shared_floors(curves) if stages and y_name == "loss" else ()
            resumes = [(_resumes(curve, x_name), line.color) for curve, line in zip(curves, lines, strict=True)]
            panels.append(_Panel(x_name, y_name, lines, stages, floors, resumes))
    return _figure(panels, len(x_names), [f"{KIND_NAMES[curves[0].kind].capitalize()} of {len(curves)} models"])


def draw_differences(curves: Sequence[Curve], x_names: Sequence[str], smoothing: float | None) -> Figure:
    """Draw each model minus the one that got farthest on the same x axis.

    :param curves: one for each model, all of one kind, at least two.
    :param x_names: the x axes.
    :param smoothing: see :func:`~lmplay.stats.runs.window_of`.
    :return: the figure.
    """
    panels = []
    for y_name in _measured(curves):
        for x_name in x_names:
            lines = _lines(curves, x_name, y_name, smoothing)
            longest = _longest(curves, x_name, y_name)
            base = lines[curves.index(longest)]
            note = (f"{'below' if y_name == 'loss' else 'above'} zero = better than {_cut(longest.model, 40)}", base.color)
            panels.append(_Panel(x_name, y_name, [_minus(line, base) for line in lines], _shared_stages(curves, x_name), note=note))
    return _figure(panels, len(x_names), [f"{KIND_NAMES[curves[0].kind].capitalize()} of {len(curves)} models, each minus the longest run"])


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all.

    :param figure: what the functions above return.
    :param path: the file to make or to replace.
    :raises UserError: when it cannot be written.
    """
    try:
        write_atomic(path, lambda file: figure.savefig(file, format="png"))
    except OSError as error:
        raise UserError(f"picture {path}: cannot be written ({error.strerror or error}); free some space or mend the folder's rights.") from None


def compact(value: float) -> str:
    """Write a count shortly.

    :param value: the count.
    :return: ``950``, ``2k``, ``1.5M``, ``3B``.
    """
    for size, suffix in SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


def _measured(curves: Sequence[Curve]) -> list[str]:
    """Name the rows of panels: accuracy only where any was measured."""
    return ["loss", *(["accuracy"] if any(curve.points("samples", "accuracy")[0].size for curve in curves) else [])]


def _source_panels(shown: Sequence[Curve], x_names: Sequence[str], smoothing: float | None) -> list[_Panel]:
    """Prepare a row of panels with the loss of each source, those with most tokens first; none where they are not told apart."""
    most, panels = len(SOURCE_COLORS) * len(SOURCE_STYLES), []
    drawn = list(dict.fromkeys(source for curve in shown for source in curve.sources))
    of = "by source" if len(drawn) <= most else f"of the {most} largest of {len(drawn)} sources"
    for x_name in x_names if drawn else ():
        lines = []
        for index, source in enumerate(drawn[:most]):
            color, styles = SOURCE_COLORS[index % len(SOURCE_COLORS)], SOURCE_STYLES[index // len(SOURCE_COLORS)]
            for curve in shown:
                if source in curve.sources:
                    label = f"{_cut(source, 40)}, {KIND_NAMES[curve.kind]}"
                    style = styles[curve.kind == "validate"]
                    lines.append(_line(curve, x_name, source_column(source), smoothing, label, color, style))
        panels.append(_Panel(x_name, "loss", lines, shown[0].stages, of=of))
    return panels


def _line(curve: Curve, x_name: str, y_name: str, smoothing: float | None, label: str, color: str, style: str = "-") -> _Line:
    """Prepare a column of a curve; validation points are few and means already, so they stay as they are."""
    validation = curve.kind == "validate"
    x, raw = curve.points(x_name, y_name)
    _, y = curve.smoothed(x_name, y_name, 0 if validation else smoothing)
    return _Line(label, color, style, x, y, raw, validation)


def _lines(curves: Sequence[Curve], x_name: str, y_name: str, smoothing: float | None) -> list[_Line]:
    """Prepare one line for each model; colours first, line styles where these run out."""
    many = len({curve.experiment for curve in curves}) > 1
    lines = []
    for index, curve in enumerate(curves):
        label = f"{_cut(curve.model, 40)}{f' ({_cut(curve.experiment, 30)})' if many else ''}{', not finished' if curve.running else ''}"
        lines.append(_line(curve, x_name, y_name, smoothing, label, COLORS[index % len(COLORS)], STYLES[index // len(COLORS) % len(STYLES)]))
    return lines


def _minus(line: _Line, base: _Line) -> _Line:
    """Prepare the difference of two lines."""
    x, y = difference(line.x, line.y, base.x, base.y)
    _, raw = difference(line.x, line.raw, base.x, base.raw)
    return replace(line, x=x, y=y, raw=raw)


def _longest(curves: Sequence[Curve], x_name: str, y_name: str) -> Curve:
    """Find the curve whose column goes farthest; the first of equals."""
    return max(curves, key=lambda curve: np.max(curve.points(x_name, y_name)[0], initial=-1.0))


def _resumes(curve: Curve, x_name: str) -> Floats:
    """Give the places where the curve's own stages were resumed: a stage's file lists those of the whole run."""
    places = curve.resumes[x_name]
    return places[(places >= curve.stages[0].begin[x_name]) & (places <= curve.stages[-1].end[x_name])] if curve.stages else places


def _floors(curve: Curve) -> list[float]:
    """Say the floor of each stage: that of the very rows validated where it is known, else that of the stage's texts."""
    if curve.kind == "train":
        return [stage.floor for stage in curve.stages]
    _, floors = curve.points("tokens", "floor")
    parts = np.split(floors, curve.borders("floor"))
    return [float(np.median(part)) if part.size else stage.floor for part, stage in zip(parts, curve.stages, strict=False)]


def _shared_stages(curves: Sequence[Curve], x_name: str) -> Sequence[Stage]:
    """Give the stages of the longest run where those of all others begin at the same places (within 2 %), else none."""
    longest = _longest(curves, x_name, "loss")
    slack = 0.02 * np.max(longest.points(x_name, "loss")[0], initial=0.0)
    pairs = [pair for curve in curves for pair in zip(longest.stages, curve.stages, strict=False)]
    same = all(one.name == other.name and abs(one.begin[x_name] - other.begin[x_name]) <= slack for one, other in pairs)
    return longest.stages if same else ()


def _shared_floors(curves: Sequence[Curve]) -> Sequence[float]:
    """Give the floors of the curve with most stages where all others have the same, else none: another tokenizer has other ones."""
    floors = sorted((_floors(curve) for curve in curves), key=len)
    return floors[-1] if all(np.allclose(one, floors[-1][: len(one)], rtol=0.005, equal_nan=True) for one in floors) else ()


def _figure(panels: Sequence[_Panel], columns: int, title: Sequence[str]) -> Figure:
    """Lay out panels in rows of `columns`, with one title and one legend for all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, width = len(panels) // columns, 3.2 + 5.0 * columns
    entries = _legend_entries(panels)
    legend_columns = _legend_columns([len(label) for label, _ in entries], width)
    figure = Figure(dpi=DPI, figsize=(width, 1.2 + 3.3 * rows + 0.2 * -(-len(entries) // legend_columns)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, sharex="col", sharey="row")
    for axes, panel in zip(grid.flat, panels, strict=True):
        _draw_panel(axes, panel)
    for row in range(rows):
        _set_y_axis(grid[row], panels[row * columns : (row + 1) * columns])
    for column in range(columns):
        _set_x_axis(grid[-1, column], panels[column::columns])
    figure.align_ylabels(grid[:, 0])
    figure.suptitle("\n".join(_plain(textwrap.fill(line, int(width * 9))) for line in title), fontsize=12)
    if entries:
        labels, handles = zip(*entries, strict=True)
        figure.legend(handles, labels, loc="outside lower center", ncols=legend_columns, fontsize=SMALL + 1, frameon=False)
    figure.draw_without_rendering()  # lays out: only now it is known how much room the names have
    height = _write_stage_names(grid[0], panels[:columns])
    figure.set_figheight(figure.get_figheight() + height / DPI)
    for index, (axes, panel) in enumerate(zip(grid.flat, panels, strict=True)):
        _write_floors(axes, panel)
        if panel.note:
            axes.set_title(_plain(panel.note[0]), fontsize=SMALL + 1, color=panel.note[1], pad=6 + (height * 72 / DPI if index < columns else 0))
    return figure


def _draw_panel(axes: Axes, panel: _Panel) -> None:
    """Draw shades, floors, resumes and curves, from back to front."""
    for stage in panel.stages[1::2]:
        axes.axvspan(stage.begin[panel.x_name], stage.end[panel.x_name], color="#eeeeee", linewidth=0, zorder=0)
    axes.grid(True, color="#d8d8d8", linewidth=0.6)
    axes.set_axisbelow(True)
    for stage, floor in zip(panel.stages, panel.floors, strict=False):
        axes.plot([stage.begin[panel.x_name], stage.end[panel.x_name]], [floor, floor], **FLOOR)
    for x, color in panel.resumes:
        axes.plot(x, np.full(len(x), 0.015), transform=axes.get_xaxis_transform(), zorder=4, **{**RESUME, "color": color})
    if panel.note:
        axes.axhline(0.0, color=panel.note[1], linewidth=1.5)
    for line in panel.raw_lines:
        chosen = thin(line.raw, MOST_POINTS)
        alpha = min(0.3, max(0.15, 250 / len(chosen)))  # many points are a band rather than a line
        axes.plot(line.x[chosen], line.raw[chosen], color=line.color, linewidth=0.7, alpha=alpha, zorder=2)
    for line in panel.lines:
        chosen = thin(line.y, MOST_POINTS)
        axes.plot(line.x[chosen], line.y[chosen], color=line.color, linestyle=line.style, marker=line.marker, markersize=4, linewidth=1.6, zorder=3)
    if not any(line.x.size for line in panel.lines):
        axes.tick_params(labelleft=False, labelbottom=False)
        axes.text(0.5, 0.5, "nothing recorded yet", transform=axes.transAxes, ha="center", va="center", color="#666666")


def _legend_entries(panels: Sequence[_Panel]) -> list[tuple[str, Artist]]:
    """Collect what the legend explains: each line once, then what the marks mean."""
    from matplotlib.lines import Line2D

    entries: dict[tuple[str, str, str], Artist] = {}
    for panel in panels:
        for line in panel.lines:
            if line.x.size:
                handle = Line2D([], [], color=line.color, ls=line.style, marker=line.marker, markersize=4)
                entries.setdefault((_plain(line.label), line.color, line.style), handle)
    result = [(label, handle) for (label, _, _), handle in entries.items()]
    if any(panel.raw_lines for panel in panels):
        result.append(("pale: before smoothing", Line2D([], [], color="#333333", alpha=0.3, linewidth=0.7)))
    if np.isfinite([floor for panel in panels for floor in panel.floors]).any():
        result.append(("floor: the lowest loss that these texts allow", Line2D([], [], **FLOOR)))
    if any(len(x) for panel in panels for x, _ in panel.resumes):
        result.append(("resumed", Line2D([], [], **RESUME)))
    return result


def _legend_columns(lengths: Sequence[int], width: float) -> int:
    """Find the most columns that fit into a width in inches, given the number of letters of each entry; entries go down the columns."""
    for columns in range(len(lengths), 1, -1):
        if sum(0.6 + 0.075 * max(column) for column in np.array_split(lengths, columns)) <= width:
            return columns
    return 1


def _set_y_axis(row: Sequence[Axes], panels: Sequence[_Panel]) -> None:
    """Choose limits, scale, ticks and label of a row of panels, whose y axis is one."""
    from matplotlib.ticker import FixedLocator, FormatStrFormatter, FuncFormatter, NullLocator

    axes, loss, difference = row[0], panels[0].y_name == "loss", panels[0].difference
    low, high = _limits(panels)
    log = loss and not difference and low > 0 and high / low > LOG_RATIO
    foot = 0.14 if np.isfinite([floor for panel in panels for floor in panel.floors]).any() else 0.08  # room for what is written under a floor
    unit = "loss (nats per token)" if loss else f"word accuracy{' (points)' if difference else ''}"
    axes.set_ylabel(f"{'difference in ' if difference else ''}{unit}{', log scale' if log else ''}" + (f"\n{panels[0].of}" if panels[0].of else ""))
    if log:
        axes.set_yscale("log")
        low, high = low / (high / low) ** foot, high * (high / low) ** 0.04
        axes.yaxis.set_major_locator(FixedLocator(_log_ticks(low, high)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    else:
        least = (0.05 * high if loss and not difference else 0.02) or 1.0  # a narrower range would show rounding alone
        short = max(0.0, least - (high - low))
        low, high = low - short / 2 - foot * max(short, high - low), high + short / 2 + 0.04 * (high - low)
    if not loss:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
        low, high = (low, high) if difference else (max(low, -0.004), min(high, 1.01))
    axes.set_ylim(low, high)


def _limits(panels: Sequence[_Panel]) -> tuple[float, float]:
    """Find the lowest and highest y that must be seen; a long curve may leave its panel with its first fall and its rarest peaks."""
    values = [np.zeros(1 if panels[0].difference else 0)]
    for panel in panels:
        for line in panel.lines:
            if len(line.x) < FEW_POINTS or (panel.y_name == "accuracy" and not panel.difference):
                values.append(line.y)
                continue
            late = line.x >= line.x[0] + START * (line.x[-1] - line.x[0])
            usual = np.sort(line.raw[late])[: -1 - late.sum() // RARE]
            values.append(usual[late.sum() // RARE + 1 if panel.difference else 0 :])
            values.append(line.y[-1:])
    every = np.concatenate(values)
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 1.0)
    near = [floor for panel in panels for floor in panel.floors if floor > min(low * FAR_FLOOR, low * low / high if low > 0 else low)]
    return min([low, *near]), max([high, *near])


def _log_ticks(low: float, high: float) -> list[float]:
    """Choose four to nine plain numbers within the limits of a log axis."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for digits in ((1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8), (1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1,)):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits if low <= digit * 10.0**decade <= high]
        if len(ticks) <= 9:
            break
    return ticks


def _set_x_axis(axes: Axes, panels: Sequence[_Panel]) -> None:
    """Choose limits, ticks and label of a column of panels, whose x axis is one."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    name = panels[0].x_name
    ends = [place for panel in panels for stage in panel.stages for place in (stage.begin[name], stage.end[name])]
    every = np.concatenate([ends, *(line.x for panel in panels for line in panel.lines)])
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
    low = low if low > 0.1 * high else 0.0
    low, high = (low, high) if high > low else (0.0, max(high, 1.0))
    unit, label = 1, name
    if name == "seconds":
        unit, unit_name = next((pair for pair in TIME_UNITS if high >= 2 * pair[0]), TIME_UNITS[-1])
        label = f"training time ({unit_name})"
    ticks = np.array(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(low / unit, high / unit)) * unit
    axes.set_xlim(low - 0.01 * (high - low), high + 0.01 * (high - low))
    axes.xaxis.set_major_locator(FixedLocator(ticks[(ticks >= low) & (ticks <= high)].tolist()))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:.4g}" if name == "seconds" else compact(value)))
    axes.set_xlabel(label)


def _write_stage_names(row: Sequence[Axes], panels: Sequence[_Panel]) -> float:
    """Name the stages above the first row of panels: level where there is room, else upright, and left out where even that is too tight.

    :param row: the axes, laid out.
    :param panels: what they show.
    :return: the height of the names in pixels, 0 where there are none.
    """
    look: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": SMALL, "color": "#444444"}
    texts: list[list[Text]] = []
    for axes, panel in zip(row, panels, strict=True):
        places = [(stage.begin[panel.x_name] + stage.end[panel.x_name]) / 2 for stage in panel.stages]
        named = [(x, stage.name) for x, stage in zip(places, panel.stages, strict=True) if np.isfinite(x)]
        texts.append([axes.text(x, 1.01, _plain(_cut(name, 32)), transform=axes.get_xaxis_transform(), **look) for x, name in named])
    if any(_crowded(one, axes) for one, axes in zip(texts, row, strict=True)):
        for one, axes in zip(texts, row, strict=True):
            for text in one:
                text.set_rotation(90)
            for text in _crowded(one, axes):
                text.remove()
                one.remove(text)
    return max((text.get_window_extent().height for one in texts for text in one), default=0.0)


def _write_floors(axes: Axes, panel: _Panel) -> None:
    """Write each floor under its line, or at the bottom edge if it lies below, once for neighbouring stages with the same."""
    spans: list[tuple[float, float, float]] = []
    for stage, floor in zip(panel.stages, panel.floors, strict=False):
        begin, end = stage.begin[panel.x_name], stage.end[panel.x_name]
        if spans and spans[-1][2] == floor:
            begin = spans.pop()[0]
        if np.isfinite(begin + end + floor):
            spans.append((begin, end, floor))
    low, transform = axes.get_ylim()[0], axes.get_xaxis_transform()
    look: dict[str, Any] = {"ha": "center", "fontsize": SMALL, "color": FLOOR["color"]}
    texts: list[Text] = []
    for begin, end, floor in spans:
        if floor >= low:
            texts.append(axes.annotate(f"floor {floor:.3g}", ((begin + end) / 2, floor), xytext=(0, -3), textcoords="offset points", va="top", **look))
        else:
            texts.append(axes.text((begin + end) / 2, 0.04, f"floor {floor:.3g} ↓", transform=transform, va="bottom", **look))
    if _crowded(texts, axes):
        for text in texts:
            text.set_text(text.get_text().removeprefix("floor "))
    for text in _crowded(texts, axes):
        text.remove()


def _crowded(texts: Sequence[Text], axes: Axes) -> list[Text]:
    """Find the texts, going from left to right, that touch one that stays, or that reach beyond their panel."""
    crowded, right, panel = [], -np.inf, axes.bbox
    for text in texts:
        box = text.get_window_extent()
        if box.x0 < max(right + 3, panel.x0 - 8) or box.x1 > panel.x1 + 8:
            crowded.append(text)
        else:
            right = box.x1
    return crowded


def _plain(text: str) -> str:
    """Keep matplotlib from reading a name as a formula, or from hiding it in a legend for its leading underscore."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def _cut(text: str, most: int) -> str:
    """Shorten a long name in its middle: runs often differ at their ends."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - 1) // 2 :]}"
