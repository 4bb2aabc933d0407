"""What is said of evaluations, for people and for programs."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..plotstats.table import align
from ..words import counted
from .results import Difference, Figure, Result

_SHOWN = {"share": "{:.1%}", "": "{:,.2f}"}
# Settings and counts that stand above a table, in these words.
_COUNTS = {"documents": "document", "tokens": "token", "bytes": "byte"}


def tables(results: Sequence[Result], differences: Sequence[Difference]) -> str:
    """Lay out a table for each set, a model a line, and below it what two models are against each other."""
    blocks = []
    for kind, name in dict.fromkeys((result.kind, result.set) for result in results):
        group = [result for result in results if (result.kind, result.set) == (kind, name)]
        heads = list(dict.fromkeys(figure.name for result in group for figure in result.figures))
        rows = [["model", *(head for name in heads for head in (name, "95 %"))]]
        for result in group:
            by_name = {figure.name: figure for figure in result.figures}
            rows.append([result.model, *(cell for head in heads for cell in _cells(by_name.get(head)))])
        shown = [number for number in range(len(rows[0])) if number == 0 or any(row[number] for row in rows[1:])]
        blocks.append("\n".join([_heading(group), align([[row[number] for number in shown] for row in rows], "<" + ">" * (len(shown) - 1)),
                                 *(one.verdict for one in differences if (one.kind, one.set) == (kind, name))]))
    return "\n\n".join(blocks)


def as_json(results: Sequence[Result], differences: Sequence[Difference]) -> dict[str, Any]:
    """Collect all that was found as plain values."""
    return {"evaluations": [{"model": result.model, **result.to_json()} for result in results], "comparisons": [one.to_json() for one in differences]}


def _heading(group: Sequence[Result]) -> str:
    """Say what was judged and how; what is not the same for all models is said of each."""
    first = group[0]
    said = []
    for key, word in _COUNTS.items():
        values = {result.model: result.counts[key] for result in group if key in result.counts}
        if values:
            said.append(counted(next(iter(values.values())), word) if len({*values.values()}) == 1 else
                        f"{', '.join(f'{value:,} ({model})' for model, value in values.items())} {word}s")
        lost = [f"{result.counts['left_out']:,} ({result.model})" for result in group if key == "documents" and result.counts.get("left_out")]
        if lost:
            said.append(f"left out as no token can write them: {', '.join(lost)}")
    for key in first.settings:
        settings = {result.model: _written(result.settings[key]) for result in group if result.settings.get(key) not in (None, [])}
        if settings and key != "most":
            each = [f"{value} ({model})" for model, value in settings.items()]
            said.append(f"{key.replace('_', ' ')} {next(iter(settings.values())) if len({*settings.values()}) == 1 else ', '.join(each)}")
    return f"{first.set} ({first.kind}): {', '.join(said)}"


def _written(value: Any) -> str:
    """Write a setting."""
    return ", ".join(map(repr, value)) if isinstance(value, list) else str(value)


def _cells(figure: Figure | None) -> tuple[str, str]:
    """Write a figure and its interval."""
    if figure is None or figure.value is None:
        return "-" if figure is not None else "", ""
    form = _SHOWN.get(figure.unit, "{:.4f}").format
    return form(figure.value), "" if figure.low is None or figure.high is None else f"{form(figure.low)} to {form(figure.high)}"
