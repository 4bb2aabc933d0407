"""The statistics files.  Stats floor, no torch.

The trainer writes them from what is in the checkpoint and takes nothing from them, so after any crash they follow the checkpoint. All that depends on the
clock, and the run's random id, is under "clock".
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..files import check_is_file, write_text
from .figures import CLOCK_COLUMNS, Mark, StageEntry, columns_of, describe
from .totals import ModelStats

FORMAT = 1
KINDS = ("train", "validate")
_CLOCK_KEYS = ("from_seconds", "to_seconds")


def write_stats(folder: Path, model: str, experiment: str, stage: str | None, stats: ModelStats, stages: Sequence[StageEntry], resumes: Sequence[Mark],
                by_stage: Mapping[str, ModelStats] = MappingProxyType({}), saves: Sequence[Mark] = (), peak_memory: int | None = None,
                run: str | None = None) -> None:
    """Write the two JSON files of a run, or of a stage.

    :param folder: the output folder.
    :param model: the run's name: that of the model file, without suffix.
    :param stage: the stage's name; None = the whole run.
    :param stages: an entry for each stage that has begun.
    :param by_stage: of a whole run the statistics of its stages: their sources are listed as STAGE/SOURCE.
    :param peak_memory: the most bytes in use up to here; None = unknown.
    :param run: the run's id.
    """
    for kind, history, path in zip(KINDS, (stats.train, stats.validate), stats_files(folder, model, stage), strict=True):
        columns, figures = history.columns(), describe(stats.figures, kind)
        clock = {name: columns[name] for name in (*CLOCK_COLUMNS, *(figure.name for figure in stats.figures if figure.clock))}
        times = [{key: value for key, value in entry.items() if key in _CLOCK_KEYS} for entry in stages]
        sources = {f"{part}/{name}": known for part, inner in by_stage.items() for name, known in inner.describe_sources().items()}
        sources |= {name: {**known, "columns": {"loss": history.source_losses(name)}} for name, known in stats.describe_sources().items()}
        write_text(path, json.dumps({
            "format": FORMAT, "kind": kind, "model": model, "experiment": experiment, "stage": stage,
            "totals": dict(stats.totals), "best": stats.best, "final": stats.final,
            "stages": [{key: value for key, value in entry.items() if key not in _CLOCK_KEYS} for entry in stages],
            **({"figures": figures} if figures else {}),
            "columns": {name: columns[name] for name in columns_of(kind, stats.figures)}, "sources": sources, **(_sets(stats) if kind == "validate" else {}),
            "clock": {**clock, "resumes": resumes, "saves": list(saves), "peak_memory_bytes": peak_memory, "stages": times, "run": run,
                      **({"sets": {name: one.rows["seconds"] for name, one in stats.sets.items()}} if kind == "validate" else {})},
        }, separators=(",", ":"), allow_nan=False))


def stats_files(folder: Path, model: str, stage: str | None) -> list[Path]:
    """Return the paths of the two files of a run (stage None), or of a stage, see :func:`write_stats`."""
    prefix = model if stage is None else f"{model}_step_{stage}"
    return [folder / f"{prefix}_{kind}_stats.json" for kind in KINDS]


def read_stats(path: Path) -> dict[str, Any]:
    """Read a statistics file; an empty dict where it is missing, cut off, or not one."""
    try:
        check_is_file(path)
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError):
        return {}
    whole = isinstance(content, dict) and content.get("format") == FORMAT and all(isinstance(content.get(key), dict) for key in ("totals", "columns", "clock"))
    return content if whole else {}


def _refuse(constant: str) -> None:
    """Refuse what is no JSON: Infinity, -Infinity and NaN."""
    raise ValueError(constant)


def _sets(stats: ModelStats) -> dict[str, Any]:
    """List the evaluations of named sets, and the newest loss of each sample."""
    names = columns_of("validate", stats.figures)
    columns = {name: history.columns() for name, history in stats.sets.items()}
    return {"sets": {name: {"columns": {key: of_set[key] for key in names}} for name, of_set in columns.items()}, "judged": stats.judged}
