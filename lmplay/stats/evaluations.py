"""The file of a run's evaluations, beside its statistics: `NAME_eval.json`.  Stats floor, no torch."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import UserError, value_fault
from ..files import check_is_file, write_text

FORMAT = 1
# What tells one evaluation of a run from another: the same one again takes the place of the earlier.
_IDENTITY = ("kind", "set", "source", "settings", "state", "samples")


def evaluations_file(folder: Path, model: str) -> Path:
    """Return the path of the file of a run."""
    return folder / f"{model}_eval.json"


def read_evaluations(folder: Path, model: str) -> tuple[str | None, list[dict[str, Any]]]:
    """Read the evaluations of a run, in the order in which they were first made.

    :return: the run's id (None = unknown) and the evaluations; none where there is no file.
    :raises UserError: when the file is damaged or not one.
    """
    path = evaluations_file(folder, model)
    try:
        check_is_file(path)
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["kind"] != "evaluations":
            raise ValueError(f"its format is {content['format']}, this program reads {FORMAT}")
        found = [{**one, "set": str(one["set"]), "kind": str(one["kind"]), "figures": dict(one["figures"])} for one in content["evaluations"]]
        return content.get("run"), found
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else value_fault(error)
        raise UserError(f"evaluations {path}: damaged, or not written by lmp_eval ({reason}); move it to another folder.") from None


def add_evaluation(folder: Path, model: str, run: str | None, evaluation: dict[str, Any]) -> None:
    """Write an evaluation into the file of a run; those of an earlier run of the same name are dropped.

    :param run: the run's id; None = unknown.
    :param evaluation: plain values, with `kind`, `set`, `source`, `settings`, the `state` that was judged, the `samples` of training before it, and `figures`.
    :raises UserError: when the file there is damaged, or cannot be written.
    """
    before, there = read_evaluations(folder, model)
    if before is not None and run is not None and before != run:
        there = []
    identity = [evaluation.get(key) for key in _IDENTITY]
    places = [number for number, one in enumerate(there) if [one.get(key) for key in _IDENTITY] == identity]
    if places:
        there[places[0]] = evaluation
    else:
        there.append(evaluation)
    path = evaluations_file(folder, model)
    try:
        write_text(path, json.dumps({"format": FORMAT, "kind": "evaluations", "model": model, "run": run or before, "evaluations": there}, indent=1,
                                    ensure_ascii=False, allow_nan=False) + "\n")
    except OSError as error:
        raise UserError(f"evaluations {path}: cannot be written ({error.strerror or error}); --no-record leaves the file out.") from None
