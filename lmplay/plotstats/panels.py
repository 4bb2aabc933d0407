"""Panels of a picture: layout, axes, curves and marks, and words that never overlap.  Plotstats floor: runs, theme, numpy and matplotlib."""
from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..stats.figures import BY_NAME, Figure
from ..words import compact, cut, plain
from .runs import Floats, Stage, thin
from .theme import Theme

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture
    from matplotlib.text import Text

FLOOR: dict[str, Any] = {"linestyle": (0, (4, 3)), "linewidth": 1.0}
# Events of a run, along the lower edge: marker and size; the first ones are drawn behind.
MARKS: dict[str, tuple[str, float]] = {"saved": ("|", 7), "resumed": ("^", 6), "batch skipped": ("x", 6)}
TIME_UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
BANDS = {False: "band: ± 1 standard error of the samples", True: "band: ± 1 standard deviation over the seeds"}
BAND = 0.2  # opacity
DPI = 110
SMALL = 8.0  # font size of what is written into the panels
MOST_POINTS = 2000  # drawn of one curve: several per pixel of the widest panel
MOST_MARKERS = 60  # more points than this are a line without markers
MOST_RAW, MOST_RAW_SHARES = 4, 1  # more curves than this in a panel are drawn without the raw ones behind; shares (word accuracy) are noisy
FEW_POINTS = 20  # all points of a shorter curve lie inside its panel
RARE = 100  # one of this many raw points may lie outside a panel
START = 0.03  # share of a loss curve that may leave its panel at the top: the fall of the first steps would flatten all the rest
FAR_FLOOR = 0.5  # a floor under this share of the lowest loss is written at the bottom edge, unless the curves fill half the panel with it
LOG_RATIO = 2.5  # a loss panel whose top is this many times its bottom gets a log axis


@dataclass(frozen=True, eq=False)
class Line:
    """A curve as it is drawn: the smoothed one (y) in front of the raw one."""

    label: str
    color: str
    style: str
    x: Floats
    y: Floats
    raw: Floats
    validation: bool
    breaks: Sequence[int] = ()  # indexes at which the line starts again
    band: Floats | None = None  # how far y is uncertain to both sides
    of_seeds: bool = False  # the mean of several runs

    @property
    def marker(self) -> str:
        """Dots for few validations, and for a single point."""
        return "o" if len(self.x) == 1 or (self.validation and len(self.x) <= MOST_MARKERS) else ""

    @property
    def smoothed(self) -> bool:
        """Whether the raw curve differs from the one in front."""
        return not np.array_equal(self.raw, self.y)


@dataclass(frozen=True, eq=False)
class Panel:
    """One set of axes: a figure over an x axis."""

    x_name: str
    figure: Figure
    lines: Sequence[Line]
    stages: Sequence[Stage]
    floors: Sequence[float] = ()
    marks: Sequence[tuple[str, Floats, str]] = ()  # events of `MARKS`: kind, x and colour
    note: tuple[str, str] | None = None  # of a panel with differences: text and colour
    of: str = ""  # whose values these are, if not those of whole curves

    @property
    def difference(self) -> bool:
        """Whether it shows differences to a run."""
        return self.note is not None

    @property
    def is_share(self) -> bool:
        """Whether its values are shown in percent."""
        return self.figure.unit == "share"

    @property
    def raw_lines(self) -> list[Line]:
        """The lines whose raw curve is drawn: none where there are too many."""
        smoothed = [line for line in self.lines if line.smoothed]
        return smoothed if len(smoothed) <= (MOST_RAW_SHARES if self.is_share else MOST_RAW) else []


def make_figure(panels: Sequence[Panel], columns: int, title: Sequence[str], theme: Theme) -> Picture:
    """Lay out panels in rows of `columns`, with one title (a list of lines) and one legend for all.

    :param panels: row by row; those of a row share y, those of a column x.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    rows, width = len(panels) // columns, 3.2 + 5.0 * columns
    entries = _legend_entries(panels, theme)
    legend_columns = _legend_columns([len(label) for label, _ in entries], width)
    picture = Picture(dpi=DPI, figsize=(width, 1.2 + 3.3 * rows + 0.2 * -(-len(entries) // legend_columns)), layout="constrained", facecolor=theme.paper)
    FigureCanvasAgg(picture)
    grid = picture.subplots(rows, columns, squeeze=False, sharex="col", sharey="row")
    for axes, panel in zip(grid.flat, panels, strict=True):
        _draw_panel(axes, panel, theme)
    for row in range(rows):
        _set_y_axis(grid[row], panels[row * columns : (row + 1) * columns], theme)
    for column in range(columns):
        _set_x_axis(grid[-1, column], panels[column::columns], theme)
    picture.align_ylabels(grid[:, 0])
    picture.suptitle("\n".join(plain(textwrap.fill(line, int(width * 9))) for line in title), fontsize=12, color=theme.ink)
    if entries:
        labels, handles = zip(*entries, strict=True)
        picture.legend(handles, labels, loc="outside lower center", ncols=legend_columns, fontsize=SMALL + 1, frameon=False, labelcolor=theme.ink)
    picture.draw_without_rendering()  # lays out: only now the space for the names is known
    height = _write_stage_names(grid[0], panels[:columns], theme)
    picture.set_figheight(picture.get_figheight() + height / DPI)
    for index, (axes, panel) in enumerate(zip(grid.flat, panels, strict=True)):
        _write_floors(axes, panel, theme)
        if panel.note:
            axes.set_title(plain(panel.note[0]), fontsize=SMALL + 1, color=panel.note[1], pad=6 + (height * 72 / DPI if index < columns else 0))
    return picture


def _draw_panel(axes: Axes, panel: Panel, theme: Theme) -> None:
    """Draw shades, floors, marks and curves, from back to front."""
    axes.set_facecolor(theme.paper)
    axes.tick_params(which="both", color=theme.soft, labelcolor=theme.ink)
    for spine in axes.spines.values():
        spine.set_color(theme.soft)
    for stage in panel.stages[1::2]:
        axes.axvspan(stage.begin[panel.x_name], stage.end[panel.x_name], color=theme.shade, linewidth=0, zorder=0)
    axes.grid(True, color=theme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    for stage, floor in zip(panel.stages, panel.floors, strict=False):
        axes.plot([stage.begin[panel.x_name], stage.end[panel.x_name]], [floor, floor], color=theme.soft, **FLOOR)
    for kind, x, color in panel.marks:
        look = _mark_look(kind, color)
        axes.plot(x, np.full(len(x), 0.015), transform=axes.get_xaxis_transform(), zorder=4 + 0.1 * list(MARKS).index(kind), **look)
    if panel.note:
        axes.axhline(0.0, color=panel.note[1], linewidth=1.5)
    for line in panel.raw_lines:
        chosen = thin(line.raw, MOST_POINTS)
        alpha = min(0.3, max(0.15, 250 / len(chosen)))  # many points are a band rather than a line
        axes.plot(line.x[chosen], line.raw[chosen], color=line.color, linewidth=0.7, alpha=alpha, zorder=2)
    for line in panel.lines:
        chosen = thin(line.y, MOST_POINTS)
        gaps = [index for index in chosen.searchsorted(np.array(line.breaks, dtype=np.intp)).tolist() if 0 < index < len(chosen)]
        x, y = (np.insert(values[chosen], gaps, np.nan) for values in (line.x, line.y))
        axes.plot(x, y, color=line.color, linestyle=line.style, marker=line.marker, markersize=4, linewidth=1.6, zorder=3)
        if line.band is not None:
            band = np.insert(line.band[chosen], gaps, np.nan)
            axes.fill_between(x, y - band, y + band, color=line.color, alpha=BAND, linewidth=0, zorder=1.5)
    if not any(line.x.size for line in panel.lines):
        axes.tick_params(labelleft=False, labelbottom=False)
        axes.text(0.5, 0.5, "nothing recorded yet", transform=axes.transAxes, ha="center", va="center", color=theme.soft)


def _legend_entries(panels: Sequence[Panel], theme: Theme) -> list[tuple[str, Artist]]:
    """Collect what the legend explains: each line once, then what the marks mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: dict[tuple[str, str, str], Artist] = {}
    for panel in panels:
        for line in panel.lines:
            if line.x.size:
                handle = Line2D([], [], color=line.color, ls=line.style, marker=line.marker, markersize=4)
                entries.setdefault((plain(line.label), line.color, line.style), handle)
    result = [(label, handle) for (label, _, _), handle in entries.items()]
    if any(panel.raw_lines for panel in panels):
        result.append(("pale: before smoothing", Line2D([], [], color=theme.ink, alpha=0.3, linewidth=0.7)))
    if bands := list(dict.fromkeys(BANDS[line.of_seeds] for panel in panels for line in panel.lines if line.band is not None)):
        result.append((" / ".join(bands), Patch(color=theme.ink, alpha=BAND, linewidth=0)))
    if np.isfinite([floor for panel in panels for floor in panel.floors]).any():
        result.append(("floor: the lowest loss that these texts allow", Line2D([], [], color=theme.soft, **FLOOR)))
    for kind in MARKS:
        colors = {color for panel in panels for one, x, color in panel.marks if one == kind and len(x)}
        if colors:
            result.append((kind, Line2D([], [], **_mark_look(kind, colors.pop() if len(colors) == 1 else theme.ink))))
    return result


def _mark_look(kind: str, color: str) -> dict[str, Any]:
    """Say how a mark is drawn."""
    marker, size = MARKS[kind]
    return {"color": color, "linestyle": "none", "marker": marker, "markersize": size, "markeredgewidth": 1.5 if marker == "x" else 1.0}


def _legend_columns(lengths: Sequence[int], width: float) -> int:
    """Find the most columns that fit into a width in inches, by the letters of each entry; entries go down the columns."""
    for columns in range(len(lengths), 1, -1):
        if sum(0.6 + 0.075 * max(column) for column in np.array_split(lengths, columns)) <= width:
            return columns
    return 1


def _set_y_axis(row: Sequence[Axes], panels: Sequence[Panel], theme: Theme) -> None:
    """Choose limits, scale, ticks and label of the y axis of a row of panels."""
    from matplotlib.ticker import FixedLocator, FormatStrFormatter, FuncFormatter, NullLocator

    axes, figure, share, difference = row[0], panels[0].figure, panels[0].is_share, panels[0].difference
    low, high = _limits(panels)
    log = figure.log and not difference and low > 0 and high / low > LOG_RATIO
    foot = 0.14 if np.isfinite([floor for panel in panels for floor in panel.floors]).any() else 0.08  # space for the words under a floor
    unit = " (points)" if share and difference else f" ({figure.unit})" if figure.unit and not share else ""
    label = f"{'difference in ' if difference else ''}{plain(figure.title + unit)}{', log scale' if log else ''}"
    axes.set_ylabel(label + (f"\n{panels[0].of}" if panels[0].of else ""), color=theme.ink)
    if log:
        axes.set_yscale("log")
        low, high = low / (high / low) ** foot, high * (high / low) ** 0.04
        axes.yaxis.set_major_locator(FixedLocator(_log_ticks(low, high)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    else:
        fixed = share or (difference and figure.name in BY_NAME)
        least = (0.02 if fixed else 0.05 * max(abs(low), abs(high))) or 1.0  # a narrower range would show rounding alone
        short = max(0.0, least - (high - low))
        low, high = low - short / 2 - foot * max(short, high - low), high + short / 2 + 0.04 * (high - low)
    if share:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
        low, high = (low, high) if difference else (max(low, -0.004), min(high, 1.01))
    axes.set_ylim(low, high)


def _limits(panels: Sequence[Panel]) -> tuple[float, float]:
    """Find the lowest and highest y that must be seen; a long curve may leave its panel with its first fall and its rarest peaks."""
    values = [np.zeros(1 if panels[0].difference else 0)]
    for panel in panels:
        for line in panel.lines:
            if len(line.x) < FEW_POINTS or (panel.is_share and not panel.difference):
                band = 0.0 if line.band is None else np.nan_to_num(line.band)
                values += [line.y - band, line.y + band]
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


def _set_x_axis(axes: Axes, panels: Sequence[Panel], theme: Theme) -> None:
    """Choose limits, ticks and label of the x axis of a column of panels."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    name = panels[0].x_name
    ends = [x for panel in panels if not panel.difference for stage in panel.stages for x in (stage.begin[name], stage.end[name])]
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
    axes.set_xlabel(label, color=theme.ink)


def _write_stage_names(row: Sequence[Axes], panels: Sequence[Panel], theme: Theme) -> float:
    """Name the stages above the first row of panels, rotated where they would overlap, and left out where they still would.

    :return: the height of the names in pixels, 0 where there are none.
    """
    look: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": SMALL, "color": theme.soft}
    texts: list[list[Text]] = []
    for axes, panel in zip(row, panels, strict=True):
        named = [((stage.begin[panel.x_name] + stage.end[panel.x_name]) / 2, stage.name) for stage in panel.stages]
        texts.append([axes.text(x, 1.01, plain(cut(name, 32)), transform=axes.get_xaxis_transform(), **look) for x, name in named if np.isfinite(x)])
    if any(_crowded(one, axes) for one, axes in zip(texts, row, strict=True)):
        for one, axes in zip(texts, row, strict=True):
            for text in one:
                text.set_rotation(90)
            for text in _crowded(one, axes):
                text.remove()
                one.remove(text)
    return max((text.get_window_extent().height for one in texts for text in one), default=0.0)


def _write_floors(axes: Axes, panel: Panel, theme: Theme) -> None:
    """Write each floor under its line, or at the bottom edge if it lies below; once for neighbouring stages with the same floor."""
    spans: list[tuple[float, float, float]] = []
    for stage, floor in zip(panel.stages, panel.floors, strict=False):
        begin, end = stage.begin[panel.x_name], stage.end[panel.x_name]
        if spans and spans[-1][2] == floor:
            begin = spans.pop()[0]
        if np.isfinite(begin + end + floor):
            spans.append((begin, end, floor))
    low, transform = axes.get_ylim()[0], axes.get_xaxis_transform()
    look: dict[str, Any] = {"ha": "center", "fontsize": SMALL, "color": theme.soft}
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
    """Find the texts, from left to right, that touch one that stays, or that reach beyond their panel."""
    crowded, right, panel = [], -np.inf, axes.bbox
    for text in texts:
        box = text.get_window_extent()
        if box.x0 < max(right + 3, panel.x0 - 8) or box.x1 > panel.x1 + 8:
            crowded.append(text)
        else:
            right = box.x1
    return crowded
