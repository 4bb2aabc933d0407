"""How training goes: running losses, speed, and the time that is left.  Engine floor, no torch."""
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import printable
from ..words import clock

if TYPE_CHECKING:
    from ..engine.opening import Run
    from ..plan.schema import Stage

_NAME_CHARACTERS = 24


@dataclass(frozen=True)
class _Mark:
    """Where a stage was, and when: the share of it that has been read, samples and tokens of the run."""

    time: float
    share: float | None
    samples: int
    tokens: int


class Progress:
    """Follows a run, stage by stage."""

    def __init__(self) -> None:
        self.validation: float | None = None  # loss of the newest validation in this stage
        self._losses: dict[str, float] = {}  # running means; of all under the empty name, then by source
        self._start = self._here = _Mark(time.monotonic(), None, 0, 0)
        self._first: _Mark | None = None  # after the first step of this run in this stage, which is passed over: it is slow
        self._to_come: dict[str, int] | None = {}  # samples and tokens of the stages after this one; None = unknown

    def start_stage(self, run: Run) -> None:
        """Begin a stage, or go on with it."""
        totals = run.runner.stats.totals
        self.validation = None
        self._losses = {name: loss for name, loss in self._losses.items() if not name}  # the sources are others now
        self._start = self._here = _Mark(time.monotonic(), None, totals["total_train_samples"], totals["total_train_tokens"])
        self._first, self._to_come = None, _to_come(run)

    def add(self, totals: Mapping[str, int], share: float | None, loss_sum: float, n_truth: int, sources: Mapping[str, tuple[float, float]]) -> None:
        """Take note of a step.

        :param totals: of the run, after it.
        :param share: of the stage that has been read; None where its length is unknown.
        :param loss_sum: of the batch.
        :param n_truth: its tokens to be learned.
        :param sources: loss sum and tokens of each source in it, where they are told apart.
        """
        for name, (part, n_tokens) in {"": (loss_sum, n_truth), **sources}.items():
            if n_tokens:
                self._losses[name] = self._losses.get(name, part / n_tokens) * 0.95 + part / n_tokens * 0.05
        self._here = _Mark(time.monotonic(), share, totals["total_train_samples"], totals["total_train_tokens"])
        self._first = self._first or self._here

    def figures(self) -> dict[str, Any]:
        """Give the figures: losses are running means over about 20 steps."""
        stage_left = self._stage_left()
        return {"loss": self._losses.get("", 0.0), "loss_by_source": {name: loss for name, loss in sorted(self._losses.items()) if name},
                "validation_loss": self.validation,
                "tokens_per_second": (self._here.tokens - self._start.tokens) / max(self._here.time - self._start.time, 1e-9),
                "stage_seconds_left": stage_left, "plan_seconds_left": self._plan_left(stage_left)}

    def text(self) -> str:
        """Give the figures for people."""
        said = self.figures()
        apart = ", ".join(f"{shorten(name, _NAME_CHARACTERS)} {loss:.3f}" for name, loss in said["loss_by_source"].items())
        left = ""
        if said["stage_seconds_left"] is not None:
            left = f", {clock(said['stage_seconds_left'])} left"
            if self._to_come and said["plan_seconds_left"] is not None:
                left += f" (plan {clock(said['plan_seconds_left'])})"
        validation = f", validation {self.validation:.3f}" if self.validation is not None else ""
        return f"loss {said['loss']:.3f}{f' ({apart})' if apart else ''}{validation}, {said['tokens_per_second']:,.0f} tokens/s{left}"

    def _stage_left(self) -> float | None:
        """Work out how many seconds the stage will take, by the speed since the first step; None while that is not known."""
        first, here = self._first, self._here
        if first is None or first.share is None or here.share is None or here.share <= first.share:
            return None
        return (here.time - first.time) * (1 - here.share) / (here.share - first.share)

    def _plan_left(self, stage_left: float | None) -> float | None:
        """Work out how many seconds the plan will take, if a sample or token of the stages to come takes as long as one of this stage."""
        if stage_left is None or self._first is None or self._to_come is None:
            return None
        done = {"samples": self._here.samples - self._first.samples, "tokens": self._here.tokens - self._first.tokens}
        return stage_left + sum((self._here.time - self._first.time) * count / max(done[unit], 1) for unit, count in self._to_come.items())


def total_samples(run: Run, stage: Stage) -> int | None:
    """Count the samples of a stage; None where that is unknown, or the stage is done."""
    return run.stage_data[stage.name].samples().total if stage.name in run.stage_data and stage.tokens is None else None


def shorten(text: str, most: int) -> str:
    """Show the beginning of a text on one line that any terminal can show."""
    text = printable(text[:most + 1].replace("\n", "⏎"))
    return text if len(text) <= most else text[:most - 1] + "…"


def _to_come(run: Run) -> dict[str, int] | None:
    """Add up the lengths of the stages after the one at work; None where one is unknown."""
    lengths: Counter[str] = Counter()
    for stage, _ in run.curriculum.remaining()[1:]:
        total = total_samples(run, stage) if stage.tokens is None else stage.tokens
        if total is None:
            return None
        lengths["samples" if stage.tokens is None else "tokens"] += total
    return dict(lengths)
