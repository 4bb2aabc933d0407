"""The report of `lmp_plotstats --html`: one file that opens anywhere without a network.  Stats floor: runs, numpy and the ground; plotly on demand.

The page is a frame, the data as JSON, and a script that draws what is asked for with plotly.js, which is in the file too.
"""
from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..files import read_json_or_yaml, write_text
from .runs import X_NAMES, Curve, Floats, smooth, thin, window_of

# Points of a curve in the page: some for each pixel of a wide screen; peaks are kept.
_MOST_POINTS = 3000
# Charts in the page's order: title, kind of statistics, column, whether smaller numbers are spread on a log axis by default.
_CHARTS = (("Validation loss (nats per token)", "validate", "loss"), ("Training loss (nats per token)", "train", "loss"),
           ("Validation, bits per byte", "validate", "bits_per_byte"), ("Word accuracy, validation", "validate", "accuracy"),
           ("Word accuracy, training", "train", "accuracy"), ("Learning rate", "train", "lr"), ("Gradient norm", "train", "grad_norm"),
           ("Tokens per second", "train", "tokens_per_second"), ("Share of time waiting for data", "train", "data_wait_share"),
           ("Share of padding", "train", "padding_share"))
# Settings that differ between any two runs and say nothing.
_DULL = ("model", "given", "plan", "out_dir")


def write_report(curves: Sequence[Curve], folder: Path, path: Path, smoothing: float | None = None,
                 theme: str | None = None, baseline: str | None = None) -> None:
    """Write the report.

    :param curves: all that was read of an output folder.
    :param folder: that folder; settings and samples of the runs are read from it.
    :param path: the file to write.
    :param smoothing: of training curves, see :func:`lmplay.stats.runs.window_of`.
    :raises UserError: when plotly is not installed, or the file cannot be written.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError("--html: the package plotly is not installed; pip install 'lmplay[report]'.") from None
    names = list(dict.fromkeys(curve.model for curve in curves))
    charts = [_chart(title, kind, column, curves, smoothing) for title, kind, column in _CHARTS]
    data = {"x_names": list(X_NAMES), "charts": [chart for chart in charts if chart["lines"]],
            "runs": [_run(name, [curve for curve in curves if curve.model == name]) for name in names]}
    settings = {name: _read(folder / f"{name}_settings.json") for name in names}
    parts = {"title": html.escape(", ".join(names)), "runs": _table(curves, names), "texts": _samples(folder, names), "settings": _settings(settings),
             # "</" would end the script, wherever it stands in a name
             "data": json.dumps(data, separators=(",", ":")).replace("</", "<\\/"), "plotly": get_plotlyjs()}
    frame = (Path(__file__).parent / "report.html").read_text(encoding="utf-8")
    page = re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], frame)
    try:
        write_text(path, page)
    except OSError as error:
        raise UserError(f"--html {path}: cannot be written ({error.strerror or error}).") from None


def _chart(title: str, kind: str, column: str, curves: Sequence[Curve], smoothing: float | None) -> dict[str, Any]:
    """Collect the lines of a chart: one a run, over each x."""
    lines = []
    for curve in curves:
        if curve.kind != kind or curve.stage is not None or not np.isfinite(curve.columns.get(column, np.empty(0))).any():
            continue
        window = window_of(smoothing, len(curve.points("samples", column)[1])) if kind == "train" else 1
        over = {}
        for x_name in X_NAMES:
            x, y = curve.points(x_name, column)
            soft = smooth(y, window, curve.borders(column)) if window > 1 else y
            over[x_name] = {"raw": _points(x, y) if window > 1 else None, "line": _points(x, soft)}
        lines.append({"run": curve.model, "over": over})
    return {"title": title, "column": column, "kind": kind, "lines": lines}


def _points(x: Floats, y: Floats) -> list[list[float]]:
    """Thin a curve to what can be seen; six digits are enough for the eye."""
    kept = thin(y, _MOST_POINTS)
    return [[float(f"{value:.8g}") for value in values[kept]] for values in (x, y)]


def _run(name: str, curves: Sequence[Curve]) -> dict[str, Any]:
    """Say where the stages of a run lie, their floors, and what happened to it."""
    whole = next((curve for curve in curves if curve.stage is None), curves[0])
    stages = [{"name": stage.name, "done": stage.done, "floor": None if np.isnan(stage.floor) else stage.floor,
               "begin": _plain(stage.begin), "end": _plain(stage.end)} for stage in whole.stages]
    resumes = [{x: _number(whole.resumes[x][i]) for x in X_NAMES} for i in range(len(whole.resumes["samples"]))]
    return {"name": name, "stages": stages, "resumes": resumes}


def _plain(place: dict[str, float]) -> dict[str, float | None]:
    """Write unknown places as null."""
    return {name: _number(value) for name, value in place.items()}


def _number(value: float) -> float | None:
    """Write NaN as null."""
    return None if np.isnan(value) else float(value)


def _read(path: Path) -> dict[str, Any]:
    """Read a settings file; a missing or damaged one is an empty one: the report shows what there is."""
    try:
        content = read_json_or_yaml(path, "settings")
    except UserError:
        return {}
    return content if isinstance(content, dict) else {}


def _table(curves: Sequence[Curve], names: Sequence[str]) -> str:
    """Lay out a row a run."""
    rows = []
    for name in names:
        whole = {curve.kind: curve for curve in curves if curve.model == name and curve.stage is None}
        train, validation = whole.get("train"), whole.get("validate")
        seconds = train.last("seconds") if train else float("nan")
        tokens = train.last("tokens") if train else float("nan")
        cells = [name, (train or validation or curves[0]).experiment, _form(train.last("samples") if train else None, ",.0f"), _form(tokens, ",.0f"),
                 _form(seconds / 60, ",.1f"), _form(tokens / seconds if seconds else None, ",.0f"), _form(train.last("loss") if train else None, ".4f"),
                 _form(validation.last("loss") if validation else None, ".4f"), _form(validation.lowest("loss") if validation else None, ".4f"),
                 _form(validation.last("bits_per_byte") if validation else None, ".4f")]
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    heads = ("run", "experiment", "samples", "tokens", "minutes", "tokens/s", "train loss", "validation", "best", "bits/byte")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<section><h2>Runs</h2><div class="wide"><table class="runs"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div></section>'


def _form(value: float | None, form: str) -> str:
    """Write a number, or a dash."""
    return "–" if value is None or np.isnan(value) else format(value, form)


def _settings(settings: dict[str, dict[str, Any]]) -> str:
    """Lay out the settings that differ between the runs, and behind it all settings of each."""
    flat = {name: {**{key: value for key, value in one.items() if key not in (*_DULL, "model_args")}, **(one.get("model_args") or {})}
            for name, one in settings.items() if one}
    if not flat:
        return ""
    keys = list(dict.fromkeys(key for one in flat.values() for key in one))
    differing = [key for key in keys if len({json.dumps(one.get(key), sort_keys=True) for one in flat.values()}) > 1]
    parts = ["<section><h2>Settings</h2>"]
    if len(flat) > 1:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in flat)
        rows = "".join(f"<tr><th>{html.escape(key)}</th>" + "".join(f"<td>{html.escape(_show(one.get(key)))}</td>" for one in flat.values()) + "</tr>"
                       for key in differing)
        parts.append(f'<h3>What differs</h3><div class="wide"><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
                     if differing else "<p>All runs have the same settings.</p>")
    for name, one in settings.items():
        if one:
            text = html.escape(json.dumps({key: value for key, value in one.items() if key != "given"}, indent=2, ensure_ascii=False))
            parts.append(f"<details><summary>All settings and the plan of {html.escape(name)}</summary><pre>{text}</pre></details>")
    return "".join([*parts, "</section>"])


def _show(value: Any) -> str:
    """Write a setting."""
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value)


def _samples(folder: Path, names: Sequence[str]) -> str:
    """Lay out what the runs wrote while they trained (`--sample-prompts`): a row a step, a column a run, prompt by prompt."""
    by_prompt: dict[str, dict[int, dict[str, str]]] = {}
    for name in names:
        path = folder / f"{name}_samples.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for line in lines:
            try:
                one = json.loads(line)
                by_prompt.setdefault(str(one["prompt"]), {}).setdefault(int(one["samples"]), {})[name] = str(one["text"])
            except (ValueError, KeyError, TypeError):
                continue  # the last line of a run that is being written
    if not by_prompt:
        return ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    parts = ["<section><h2>What they write</h2>"]
    for prompt, steps in by_prompt.items():
        rows = "".join(f"<tr><th>{samples:,}</th>" + "".join(f"<td>{html.escape(steps[samples].get(name, ''))}</td>" for name in names) + "</tr>"
                       for samples in sorted(steps))
        parts.append(f'<h3>{html.escape(prompt) or "(no prompt)"}</h3><div class="wide"><table class="texts"><thead><tr><th>samples</th>{head}</tr></thead>'
                     f"<tbody>{rows}</tbody></table></div>")
    return "".join([*parts, "</section>"])
