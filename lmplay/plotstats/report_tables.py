"""The tables of the report.  Plotstats floor: runs, table, words and the ground."""
from __future__ import annotations

import html
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..words import compact, duration
from .compare import Comparison, Idea, idea_lines
from .runs import Curve, Floats
from .table import COLUMNS, describe_runs, describe_sets, differing_settings, lay_out_evaluations, read_settings, show

_MOST_EVENTS = 20  # of a kind and a run; of more, the first and the last are shown, with the number
_MOST_TEXTS = 24  # validations of a run whose texts are shown, evenly over the run


def runs_table(curves: Sequence[Curve], folder: Path) -> str:
    """Lay out a row for each run: what it reached."""
    rows = [["–" if run[key] is None else f"{run[key]:,.0f}" if form is compact else form(run[key]) for _, key, form in COLUMNS]
            for run in describe_runs(curves, folder)]
    return f"<section><h2>Runs</h2>{_table(('run', *(heading for heading, _, _ in COLUMNS[1:])), rows, 'two')}</section>"


def sets_table(curves: Sequence[Curve]) -> str:
    """Lay out a row for each named set of each run: its newest figures."""
    heads, *rows = describe_sets(curves) or [[]]
    return f"<section><h2>Named sets</h2>{_table(heads, rows, 'two')}</section>" if rows else ""


def evaluations_table(evaluations: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Lay out a row for each evaluation of `lmp_eval`."""
    heads, *rows = lay_out_evaluations(evaluations) or [[]]
    return f"<section><h2>Evaluations</h2>{_table(heads, rows, 'two')}</section>" if rows else ""


def comparison_table(ideas: Sequence[Idea], comparisons: Sequence[Comparison]) -> str:
    """Lay out what the ideas are against the baseline, a row for each and for each set of samples, and above it which runs are one idea."""
    if not comparisons:
        return ""
    rows = [[one.idea, one.baseline, one.set_in_words, f"{one.samples:,}", f"{one.loss:.4f}",
             f"{one.baseline_loss:.4f}", one.unit, f"{one.difference:+.4f}", f"{one.low:+.4f} to {one.high:+.4f}", one.verdict] for one in comparisons]
    heads = ("idea", "against", "judged by", "samples", "loss", "baseline's", "unit", "difference", "95 % interval", "verdict")
    groups = "".join(f"<p>{html.escape(line)}</p>" for line in idea_lines(ideas))
    return f"<section><h2>Comparison</h2>{groups}{_table(heads, rows, 'left')}</section>"


def stages_table(curves: Sequence[Curve]) -> str:
    """Lay out a row for each stage of each run: its length, speed, waste and end."""
    by_key = {(curve.model, curve.kind, curve.stage): curve for curve in curves}
    rows = []
    for whole in [curve for curve in curves if curve.kind == "train" and curve.stage is None]:
        for stage in whole.stages:
            train, validation = (by_key.get((whole.model, kind, stage.name)) for kind in ("train", "validate"))
            samples, tokens, seconds = (stage.end[name] - stage.begin[name] for name in ("samples", "tokens", "seconds"))
            means = [float(np.nanmean(values)) if train is not None and np.isfinite(values := train.columns[name]).any() else None
                     for name in ("data_wait_share", "padding_share")]
            rows.append([whole.model, stage.name + ("" if stage.done else " …"), _form(samples, ",.0f"), _form(tokens, ",.0f"), _time(seconds),
                         _form(tokens / seconds if seconds else None, ",.0f"), *(_form(mean, ".1%") for mean in means),
                         *(_form(float(np.nansum(train.columns[name])) if train is not None else None, ",.0f") for name in ("forced_cuts", "skipped_batches")),
                         _form(validation.last("loss") if validation is not None else None, ".4f"), _form(stage.floor, ".4f")])
    heads = ("run", "stage", "samples", "tokens", "time", "tokens/s", "waits for data", "padding", "cuts within words", "batches skipped", "validation",
             "floor")
    return f"<h3>Stages</h3>{_table(heads, rows, 'two')}" if rows else ""


def events_table(curves: Sequence[Curve]) -> str:
    """Lay out what happened to the runs, and where."""
    rows = []
    for curve in [curve for curve in curves if curve.kind == "train" and curve.stage is None]:
        skipped = {name: curve.skipped(name) for name in curve.resumes}
        for what, places in (("resumed", curve.resumes), ("batch skipped", skipped), ("saved", curve.saves)):
            rows += [[curve.model, *cells] for cells in _events(what, places)]
    return f"<section><h2>Events</h2>{_table(('run', 'what', 'samples', 'tokens', 'time'), rows, 'two')}</section>" if rows else ""


def samples_tables(folder: Path, names: Sequence[str]) -> str:
    """Lay out the completions while training: a table for each prompt, with a column for each run and a row for each validation of the longest one.

    Of another run a row has the newest completion since the row before.
    """
    by_prompt: dict[str, dict[str, dict[int, str]]] = {}
    for name in names:
        for samples, prompt, text in _read_samples(folder / f"{name}_samples.jsonl"):
            mine = by_prompt.setdefault(prompt, {}).setdefault(name, {})
            mine[samples] = f"{mine[samples]}\n―\n{text}" if samples in mine else text  # several for a prompt (--sample-count)
    if not by_prompt:
        return ""
    parts = ["<section><h2>What they write</h2>"]
    for prompt, texts in by_prompt.items():
        columns = [name for name in names if name in texts]
        texts = {name: dict(sorted(texts[name].items())) for name in columns}
        longest = list(max(texts.values(), key=max))
        chosen = sorted({longest[round(index)] for index in np.linspace(0, len(longest) - 1, min(len(longest), _MOST_TEXTS))})
        rows = [[f"{place:,}", *(_text_at(texts[name], before, place) for name in columns)] for before, place in zip([-1, *chosen], chosen, strict=False)]
        left_out = f" <small>({len(chosen)} of {len(longest)} places)</small>" if len(chosen) < len(longest) else ""
        summary = f"<summary>{html.escape(prompt) or '(no prompt)'}{left_out}</summary>"
        parts.append(f"<details open>{summary}{_table(('samples', *columns), rows, 'texts', str)}</details>")
    return "".join([*parts, "</section>"])


def settings_tables(folder: Path, names: Sequence[str]) -> str:
    """Lay out the settings that differ between the runs, and behind it all settings of each."""
    settings = {name: read_settings(folder, name) for name in names}
    known = [name for name in names if settings[name]]
    if not known:
        return ""
    differing = differing_settings(settings)
    parts = ["<section><h2>Settings</h2>"]
    if len(known) > 1:
        rows = [[key, *(show(values[name]) for name in known)] for key, values in differing.items()]
        parts.append(f"<h3>What differs</h3>{_table(('', *known), rows, 'left')}" if rows else "<p>All runs have the same settings.</p>")
    for name in known:
        text = html.escape(json.dumps({key: value for key, value in settings[name].items() if key != "given"}, indent=2, ensure_ascii=False))
        parts.append(f"<details><summary>All settings and the plan of {html.escape(name)}</summary><pre>{text}</pre></details>")
    return "".join([*parts, "</section>"])


def _events(what: str, places: dict[str, Floats]) -> Iterable[list[str]]:
    """List the events of a kind; of a long list the first and the last, with the number."""
    count = len(places["samples"])
    shown = list(range(count)) if count <= _MOST_EVENTS else [0, count - 1]
    for index, said in zip(shown, [what] * count if count <= _MOST_EVENTS else [f"{what}, first of {count:,}", f"{what}, last of {count:,}"], strict=True):
        yield [said, _form(places["samples"][index], ",.0f"), _form(places["tokens"][index], ",.0f"), _time(places["seconds"][index])]


def _read_samples(path: Path) -> Iterable[tuple[int, str, str]]:
    """Read samples, prompts and texts; other lines are skipped, such as an unfinished last one."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return
    for line in lines:
        try:
            one = json.loads(line)
            yield int(one["samples"]), str(one["prompt"]), str(one["text"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue


def _text_at(texts: dict[int, str], before: int, place: int) -> str:
    """Write as HTML the newest text after `before` and up to `place` (both in samples), with its own place if that is another; empty if there is none."""
    places = list(texts)
    found = bisect_right(places, place) - 1
    if found < 0 or places[found] <= before:
        return ""
    where = "" if places[found] == place else f"<small>at {places[found]:,}</small> "
    return where + html.escape(texts[places[found]])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], look: str, form: Callable[[str], str] = html.escape) -> str:
    """Lay out a table that scrolls where it is too wide; its first column names the rows, `form` makes HTML of the others."""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + f"<th>{html.escape(first)}</th>" + "".join(f"<td>{form(cell)}</td>" for cell in cells) + "</tr>"
                   for first, *cells in rows)
    return f'<div class="wide"><table class="{look}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _form(value: Any, form: str) -> str:
    """Write a number, or a dash."""
    return "–" if value is None or np.isnan(value) else format(value, form)


def _time(seconds: float | None) -> str:
    """Write a duration, or a dash."""
    return "–" if seconds is None or np.isnan(seconds) else duration(seconds)
