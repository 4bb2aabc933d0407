"""The report of `lmp_plotstats --html`: one file that opens in any browser, without a network.  Plotstats floor; plotly on demand.

The page is a frame, tables, the data as JSON, a script that draws the charts, and plotly.js.
"""
from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..files import write_text
from ..stats.figures import BY_NAME, FIGURES, Figure
from .compare import Comparison, Idea
from .plot import KIND_NAMES, LOSS, WARNING, same_tokens
from .report_tables import comparison_table, evaluations_table, events_table, runs_table, samples_tables, sets_table, settings_tables, stages_table
from .runs import X_NAMES, Curve, Floats, smooth, source_column, thin, window_of, with_unit
from .theme import THEMES

# Points of a curve in the page: several per pixel of a wide screen, with all peaks; fewer where there are many curves.
_MOST_POINTS, _MOST_OF_A_CHART, _LEAST_POINTS = 3000, 30_000, 600
_MOST_SOURCES = 10  # drawn of a stage, those with most tokens
_MOST_MARKS = 60  # of a kind and a run; more would be a band


def write_report(curves: Sequence[Curve], folder: Path, path: Path, smoothing: float | None = None, theme: str | None = None,
                 baseline: str | None = None, ideas: Sequence[Idea] = (), comparisons: Sequence[Comparison] = (),
                 evaluations: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType({})) -> None:
    """Write the report of an output folder to the file `path`; for the parameters see :func:`report_content`.

    :raises UserError: when plotly is not installed, or the file cannot be written.
    """
    page = report_page(report_content(curves, folder, smoothing, theme, baseline, ideas, comparisons, evaluations), "--html")
    try:
        write_text(path, page)
    except OSError as error:
        raise UserError(f"--html {path}: cannot be written ({error.strerror or error}).") from None


def report_content(curves: Sequence[Curve], folder: Path, smoothing: float | None = None, theme: str | None = None,
                   baseline: str | None = None, ideas: Sequence[Idea] = (), comparisons: Sequence[Comparison] = (),
                   evaluations: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType({})) -> dict[str, Any]:
    """Collect what the report of an output folder shows.

    :param folder: settings and samples of the runs are read from it.
    :param smoothing: of training curves, see :func:`lmplay.plotstats.runs.window_of`.
    :param theme: one of `THEMES`; None = what the browser prefers.
    :param baseline: a run that the charts subtract when the page opens.
    :param ideas: the runs, those that differ in the seed alone together.
    :param comparisons: of the ideas with a baseline.
    :param evaluations: what `lmp_eval` has found, by run.
    :return: `data` for the script of the page; `parts`: the title and the tables, as HTML.
    """
    names = list(dict.fromkeys(curve.model for curve in curves))
    whole = [curve for curve in curves if curve.stage is None]
    figures = {figure.name: figure for figure in (*FIGURES, *(figure for curve in curves for figure in curve.declared)) if figure.chart}
    charts = [_chart(figure, kind, [curve for curve in whole if curve.kind == kind], smoothing)
              for figure in figures.values() for kind in ("validate", "train") if getattr(figure, kind)]
    data = {**_frame(theme), "baseline": baseline, "groups": {idea.label: idea.models for idea in ideas},
            "charts": [chart for chart in (*charts, *_set_charts(whole), *_source_charts(curves, smoothing)) if chart["lines"]],
            "runs": [_run(name, [curve for curve in curves if curve.model == name]) for name in names]}
    comparable = same_tokens([curve for curve in whole if curve.kind == "validate"])
    parts = {"title": html.escape(", ".join(names)), "runs": runs_table(curves, folder), "sets": sets_table(curves) + evaluations_table(evaluations),
             "comparison": comparison_table(ideas, comparisons), "stages": stages_table(curves), "events": events_table(curves),
             "warning": "" if comparable else f'<p class="warning">{html.escape(WARNING.capitalize())}.</p>',
             "texts": samples_tables(folder, names), "settings": settings_tables(folder, names)}
    return {"data": data, "parts": parts}


def report_page(content: dict[str, Any], flag: str) -> str:
    """Write the page of a report: one file, whole in itself.

    :param flag: what asks for it, for the message.
    :raises UserError: when plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError(f"{flag}: the package plotly is not installed; pip install 'lmplay[report]'.") from None
    # "</script>" would end the script, and "<!--<script>" would keep its end from ending it, wherever they stand in a name
    parts = {**content["parts"], "data": to_json(content["data"]).replace("<", "\\u003c"), "plotly": get_plotlyjs()}
    frame = (Path(__file__).parent / "report.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], frame)


def live_page(theme: str | None, seconds: float) -> str:
    """Write the page of a report that is told what it shows later, and again and again.

    :param seconds: between two questions for what is new.
    :raises UserError: when plotly is not installed.
    """
    data = {**_frame(theme), "baseline": None, "groups": {}, "charts": [], "runs": [], "seconds": seconds}
    tables = ("runs", "sets", "comparison", "stages", "events", "warning", "texts", "settings")
    return report_page({"data": data, "parts": {"title": "runs", **dict.fromkeys(tables, "")}}, "--serve")


def to_json(value: Any) -> str:
    """Write JSON shortly."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _frame(theme: str | None) -> dict[str, Any]:
    """Say what the page needs before it knows any run."""
    return {"x_names": list(X_NAMES), "theme": theme, "palettes": {name: asdict(one)["curves"] for name, one in THEMES.items()}}


def _chart(figure: Figure, kind: str, curves: Sequence[Curve], smoothing: float | None) -> dict[str, Any]:
    """Collect the lines of a chart, one for each run; runs without a known value other than zero have none."""
    known = [curve for curve in curves if np.nan_to_num(curve.columns.get(figure.name, np.zeros(0))).any()]
    most = max(_LEAST_POINTS, min(_MOST_POINTS, _MOST_OF_A_CHART // max(1, len(known))))
    title = f"{KIND_NAMES[kind]} {figure.title}" if figure.validate else figure.title
    unit = f" ({shown})" if (shown := with_unit(figure, curves).unit) not in ("", "share") else ""
    return {**_look(figure), "title": title[:1].upper() + title[1:] + unit, "kind": kind, "sources": [],
            "lines": [{"run": curve.model, "source": None, **_line(curve, figure.name, smoothing, most)} for curve in known]}


def _look(figure: Figure) -> dict[str, Any]:
    """Say how a figure is drawn."""
    better = {None: "", True: ", above zero is better", False: ", below zero is better"}[figure.higher_is_better]
    return {"column": figure.name, "log": figure.log, "percent": figure.unit == "share", "better": better}


def _set_charts(whole: Sequence[Curve]) -> list[dict[str, Any]]:
    """Collect for each named set the losses, and bits per byte, of all runs that have it."""
    charts = []
    for name in dict.fromkeys(name for curve in whole for name in curve.named_sets):
        for figure in (LOSS, BY_NAME["bits_per_byte"]):
            chart = _chart(figure, "validate", [curve.sets[name] for curve in whole if name in curve.sets], None)
            unit = f" ({figure.unit})" if figure.unit else ""
            charts.append({**chart, "title": f"{figure.title.capitalize()} on {name}{unit}"})
    return charts


def _source_charts(curves: Sequence[Curve], smoothing: float | None) -> list[dict[str, Any]]:
    """Collect for each stage the losses by source of all runs that have them."""
    charts = []
    stages = dict.fromkeys((curve.stage, curve.kind) for curve in curves if curve.sources)
    for stage, kind in stages:
        lines = [{"run": curve.model, "source": source, **_line(curve, source_column(source), smoothing, _LEAST_POINTS)}
                 for curve in curves if (curve.stage, curve.kind) == (stage, kind) for source in curve.sources[:_MOST_SOURCES]]
        charts.append({**_look(LOSS), "title": f"{KIND_NAMES[kind].capitalize()} loss by source, stage {stage}", "kind": kind,
                       "sources": list(dict.fromkeys(line["source"] for line in lines)), "lines": lines})
    return charts


def _line(curve: Curve, column: str, smoothing: float | None, most: int) -> dict[str, Any]:
    """Make the points of a column, smoothed, and raw where that differs."""
    values = curve.columns[column]
    rows = np.flatnonzero(np.isfinite(values))
    window = window_of(smoothing, len(rows)) if curve.kind == "train" and column != "lr" else 1
    raw = values[rows]
    soft = smooth(raw, window, curve.borders(column)) if window > 1 else raw
    borders = curve.borders(column) if curve.kind == "validate" else []
    return {"line": _points(curve, rows, soft, most, borders), "raw": _points(curve, rows, raw, most) if window > 1 else None}


def _points(curve: Curve, rows: NDArray[np.intp], y: Floats, most: int, borders: Sequence[int] = ()) -> dict[str, list[Any]]:
    """Thin a curve to what can be seen, with eight digits, and say where it starts again."""
    kept = thin(y, most)
    return {**{name: _numbers(curve.columns[name][rows[kept]]) for name in X_NAMES}, "y": _numbers(y[kept]),
            "breaks": kept.searchsorted(np.array(borders, dtype=np.intp)).tolist()}


def _run(name: str, curves: Sequence[Curve]) -> dict[str, Any]:
    """Describe a run: where its stages lie, their floors, and its events."""
    whole = next((curve for curve in curves if curve.stage is None), curves[0])
    train = next((curve for curve in curves if curve.stage is None and curve.kind == "train"), whole)
    stages = [{"name": stage.name, "done": stage.done, "floor": _number(stage.floor),
               "begin": {x: _number(value) for x, value in stage.begin.items()}, "end": {x: _number(value) for x, value in stage.end.items()}}
              for stage in whole.stages]
    marks = {"resumed": whole.resumes, "saved": whole.saves, "skipped": {x: train.skipped(x) for x in X_NAMES}}
    return {"name": name, "stages": stages, "marks": {kind: _marks(places) for kind, places in marks.items()}}


def _marks(places: dict[str, Floats]) -> list[dict[str, float | None]]:
    """List the marks of a kind; none where there are too many."""
    count = len(places["samples"])
    return [{x: _number(places[x][index]) for x in X_NAMES} for index in range(count)] if count <= _MOST_MARKS else []


def _numbers(values: Floats) -> list[float | None]:
    """Write numbers shortly, NaN as null."""
    return [float(f"{value:.8g}") if value == value else None for value in values.tolist()]


def _number(value: float) -> float | None:
    """Write NaN as null."""
    return None if np.isnan(value) else float(value)
