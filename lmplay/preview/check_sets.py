"""What the named sets of a stage would cost (`--check-plan`): their first samples are judged by the new model, and timed."""
from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..cadence import Cadence, intervals
from ..data.continuation import Piece
from ..device.memory import wait_for
from ..device.model import DeviceModel
from ..engine.batches import Grouping
from ..engine.evaluate import evaluate
from ..engine.named_sets import NamedSets
from ..engine.run import OpenStage
from ..errors import UserError
from ..objectives import load_objective
from ..plan.names import DEFAULT_OBJECTIVE
from ..plan.settings import Settings
from .show import StageView

# Samples of a set that are cut, for at most this many seconds, and seconds for which the model judges some of them.
_SAMPLES, _SECONDS, _TIMED_SECONDS = 1000, 5.0, 3.0


def check_sets(settings: Settings, stage: OpenStage, view: StageView, model: DeviceModel, grouping: Grouping, length: dict[str, Any]) -> list[dict[str, Any]]:
    """Estimate what each named set of a stage takes.

    :param length: the samples, tokens, steps and seconds of the stage, None where unknown.
    :return: for each set its name, rows, samples and tokens (estimates where not all were looked at), the seconds of an evaluation, how often it will be
        done, and the seconds of all of them; None where unknown.
    """
    objective = load_objective(DEFAULT_OBJECTIVE)
    sets = NamedSets(stage, partial(objective.prepare, cutter=view.cutter), {})
    budget = settings.validation_budget(view.context_len, settings.token_budget(view.context_len))
    to_mini_batches = partial(grouping.mini_batches, token_budget=budget)

    def judge(units: list[list[Piece]]) -> float:
        wait_for(model.runtime.device)
        started = time.perf_counter()
        evaluate(model, objective, view.tokenizer, units, to_mini_batches, lambda: False)
        return time.perf_counter() - started

    found = []
    for name, one in stage.stage.sets.items():
        units, whole = _first(sets.units(name))
        if not units:
            raise UserError(f"stage '{stage.stage.name}': evaluate.{name}: its rows give the tokenizer no token.")
        tokens = sum(piece.n_truth for unit in units for piece in unit)
        timed = seconds = 0.0
        judge(next(_chunks(units, settings.validation_batch_size)))  # warms up
        for chunk in _chunks(units, settings.validation_batch_size):
            seconds += judge(chunk)
            timed += sum(piece.n_truth for unit in chunk for piece in unit)
            if seconds > _TIMED_SECONDS:
                break
        rows = stage.data.rows_of_set(name)
        samples = len(units) if whole else rows
        all_tokens = None if samples is None else round(tokens / len(units) * samples)
        often = Cadence(intervals(one.interval or 0, {})).times(dict.fromkeys(length, 0.0), length)
        times = None if often is None else often + 1
        each = None if all_tokens is None else all_tokens * seconds / timed
        found.append({"name": name, "rows": rows, "samples": samples, "tokens": all_tokens, "whole": whole, "seconds": each, "times": times,
                      "seconds_in_all": None if each is None or times is None else each * times})
    return found


def _first(units: Iterator[list[Piece]]) -> tuple[list[list[Piece]], bool]:
    """Give the first samples of a set, at least one, and whether they are all."""
    found: list[list[Piece]] = []
    ends = time.monotonic() + _SECONDS
    for unit in units:
        if len(found) == _SAMPLES or (found and time.monotonic() > ends):
            return found, False
        found.append(unit)
    return found, True


def _chunks(units: list[list[Piece]], pieces: int) -> Iterator[list[list[Piece]]]:
    """Give samples together that have as many pieces as go through the device at once, or more."""
    chunk: list[list[Piece]] = []
    for unit in units:
        chunk.append(unit)
        if sum(map(len, chunk)) >= pieces:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
