"""The runs of a folder as a table: what they reached and which settings differ, for people and for programs.  Plotstats floor."""
from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..documents import read_json_or_yaml
from ..errors import UserError
from ..plan.options import FLAGS, Change
from ..plan.used import flat_settings
from ..stats.evaluations import read_evaluations
from ..words import compact, cut, duration
from .runs import Curve

# Settings that differ between any two runs, or do not change the training; a plan is compared stage by stage.
_NOT_COMPARED = {flag.name for flag in FLAGS if flag.change is Change.ASIDE}
_LOSS = "{:.4f}".format
# The columns: heading, key of `describe_runs`, how a value is written.
COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("model", "model", str), ("experiment", "experiment", str), ("samples", "samples", compact), ("tokens", "tokens", compact),
    ("time", "seconds", duration), ("tokens/s", "tokens_per_second", compact), ("train loss", "train_loss", _LOSS),
    ("validation", "validation_loss", _LOSS), ("± error", "standard_error", _LOSS), ("best loss", "best_validation_loss", _LOSS),
    ("bits/byte", "bits_per_byte", _LOSS), ("best bits", "best_bits_per_byte", _LOSS),
    ("accuracy", "accuracy", "{:.1%}".format), ("by edits", "edit_accuracy", "{:.1%}".format))
_WHOLE = "{:,}".format
# The same of what a run's named sets say.
SET_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("at samples", "samples", _WHOLE), ("samples", "n_samples", _WHOLE), ("tokens", "n_tokens", _WHOLE), ("loss", "loss", _LOSS),
    ("± error", "standard_error", _LOSS), ("perplexity", "perplexity", "{:,.2f}".format), ("bits/byte", "bits_per_byte", _LOSS),
    ("accuracy", "accuracy", "{:.1%}".format))
_LARGE = 10  # such figures (perplexities) are written with two digits
_MOST_CELL = 32  # letters of a setting


def describe_runs(curves: Sequence[Curve], folder: Path) -> list[dict[str, Any]]:
    """List for each run the newest and the lowest figures, None where unknown, and `settings`, those that differ between the runs of the folder."""
    names = list(dict.fromkeys(curve.model for curve in curves))
    differing = differing_settings({name: read_settings(folder, name) for name in names})
    runs = []
    for name in names:
        mine = [curve for curve in curves if curve.model == name]
        whole = {curve.kind: curve for curve in mine if curve.stage is None}
        train, validation = whole.get("train"), whole.get("validate")
        tokens, seconds = _figure(train, Curve.last, "tokens"), _figure(train, Curve.last, "seconds")
        runs.append({
            "model": name, "experiment": (train or validation or mine[0]).experiment, "running": any(curve.running for curve in whole.values()),
            "samples": _figure(train, Curve.last, "samples"), "tokens": tokens, "seconds": seconds,
            "tokens_per_second": tokens / seconds if tokens is not None and seconds else None, "train_loss": _figure(train, Curve.last, "loss"),
            "validation_loss": _figure(validation, Curve.last, "loss"), "standard_error": _figure(validation, Curve.last, "standard_error"),
            "best_validation_loss": _figure(validation, _best, "loss"),
            "bits_per_byte": _figure(validation, Curve.last, "bits_per_byte"), "best_bits_per_byte": _figure(validation, Curve.lowest, "bits_per_byte"),
            "accuracy": _figure(validation, Curve.last, "accuracy"), "edit_accuracy": _figure(validation, Curve.last, "edit_accuracy"),
            "written_accuracy": _figure(validation, Curve.last, "written_accuracy"),
            "sets": dict(validation.newest) if validation is not None else {},
            "settings": {key: values[name] for key, values in differing.items()}})
    return runs


def write_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Lay out the `describe_runs`: a line for each run, with `-` for unknown values, and below a line for each setting that differs."""
    rows = [[heading for heading, _, _ in COLUMNS], *([_cell(run[key], form) for _, key, form in COLUMNS] for run in runs)]
    text = align(rows, "<<" + ">" * (len(COLUMNS) - 2))
    keys = list(runs[0]["settings"])
    if keys:
        settings = [["settings that differ", *(cut(run["model"], _MOST_CELL) for run in runs)],
                    *([key, *(cut(show(run["settings"][key]), _MOST_CELL) for run in runs)] for key in keys)]
        text += "\n\n" + align(settings, "<" * (len(runs) + 1))
    return text


def describe_sets(curves: Sequence[Curve]) -> list[list[str]]:
    """Lay out the newest figures of each named set of each run, a row each below the headings; nothing where there are none."""
    found = [(curve.model, name, curve.newest[name]) for curve in curves if (curve.kind, curve.stage) == ("validate", None)
             for name in curve.named_sets if name in curve.newest]
    rows = [[model, name, *("-" if figures.get(key) is None else form(figures[key]) for _, key, form in SET_COLUMNS)] for model, name, figures in found]
    return [["model", "set", *(heading for heading, _, _ in SET_COLUMNS)], *rows] if rows else []


def write_sets(curves: Sequence[Curve]) -> str:
    """Write :func:`describe_sets` as text."""
    rows = describe_sets(curves)
    return align(rows, "<<" + ">" * len(SET_COLUMNS)) if rows else ""


def describe_evaluations(folder: Path, names: Sequence[str]) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Read what `lmp_eval` has found of some runs.

    :return: the evaluations by run, those with any; and a line for each file that cannot be used.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    faults: list[str] = []
    for name in names:
        try:
            found[name] = read_evaluations(folder, name)[1]
        except UserError as error:
            faults += error.faults
    return {name: evaluations for name, evaluations in found.items() if evaluations}, faults


def lay_out_evaluations(by_run: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    """Lay out evaluations, a row each below the headings, with a column for each figure; nothing where there are none."""
    names = list(dict.fromkeys(name for evaluations in by_run.values() for one in evaluations for name in one["figures"]))
    rows = [[model, show(one.get("state")), _cell(one.get("samples"), _WHOLE), one["set"], _cell(one.get("documents"), _WHOLE),
             *(_write_figure(one["figures"].get(name)) for name in names)] for model, evaluations in by_run.items() for one in evaluations]
    return [["model", "state", "at samples", "set", "documents", *names], *rows] if rows else []


def write_evaluations(by_run: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Write :func:`lay_out_evaluations` as text."""
    rows = lay_out_evaluations(by_run)
    return align(rows, "<<><" + ">" * (len(rows[0]) - 4)) if rows else ""


def read_settings(folder: Path, name: str) -> dict[str, Any]:
    """Read the settings beside the statistics of a run; none if they are missing or damaged."""
    try:
        content = read_json_or_yaml(folder / f"{name}_settings.json", "settings")
    except (UserError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def differing_settings(settings: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Find the settings that are not the same in all runs.

    :param settings: by run; runs without settings are not compared.
    :return: for each setting that differs its value in every run (None = missing); those of a plan's stages are named STAGE.KEY.
    """
    flat = {name: {key: value for key, value in flat_settings(one).items() if key not in _NOT_COMPARED} for name, one in settings.items() if one}
    keys = dict.fromkeys(key for one in flat.values() for key in one)
    differing = [key for key in keys if len({json.dumps(one.get(key), sort_keys=True) for one in flat.values()}) > 1]
    return {key: {name: flat.get(name, {}).get(key) for name in settings} for key in differing}


def show(value: Any) -> str:
    """Write a setting."""
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _figure(curve: Curve | None, pick: Callable[[Curve, str], float], name: str) -> float | None:
    """Pick one value of a curve, None if there is none."""
    value = math.nan if curve is None else pick(curve, name)
    return None if math.isnan(value) else value


def _best(curve: Curve, name: str) -> float:
    """Give the best validation loss of the newest stage: that of the file, if it has one, for its columns may hold means."""
    return curve.lowest(name) if math.isnan(curve.best) else curve.best


def _write_figure(figure: Mapping[str, Any] | None) -> str:
    """Write a figure of an evaluation."""
    if figure is None or not isinstance(value := figure.get("value"), (int, float)):
        return "-"
    return f"{value:.1%}" if figure.get("unit") == "share" else f"{value:,.2f}" if value > _LARGE else f"{value:.4f}"


def _cell(value: Any, form: Callable[[Any], str]) -> str:
    """Write a value, or `-` where there is none."""
    return "-" if value is None else form(value)


def align(rows: Sequence[Sequence[str]], sides: str) -> str:
    """Align columns to the left (<) or right (>)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip() for row in rows)
