"""How training goes: running losses, speed, and the time that is left.  Report floor, no torch."""
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..errors import printable
from ..stats.figures import NATS, REWARD, Progress
from ..words import clock
from .records import StageStart, StepDone

_NAME_CHARACTERS = 24
# What is left of a step's weight in the running losses after each further step: they follow within some five steps.
_KEPT = 0.7


@dataclass(frozen=True)
class _Mark:
    """A point in time: the share of the stage that had been read, and the run's progress."""

    time: float
    share: float | None
    progress: Progress


class ProgressLine:
    """Follows a run, stage by stage."""

    stage: StageStart  # the current one

    def __init__(self) -> None:
        self.validation: float | None = None  # loss of the newest validation in this stage, and its unit
        self.unit = NATS
        self._losses: dict[str, tuple[float, float]] = {}  # running sums of loss and tokens by source; those of all under the empty name
        self._own: dict[str, float | None] = {}  # the newest values of the objective's own figures
        self._start = self._here = _Mark(time.monotonic(), None, Progress(0, 0, 0, 0.0))
        self._first: _Mark | None = None  # after this run's first step in this stage, which is slow and not counted

    def start_stage(self, stage: StageStart) -> None:
        """Begin or continue a stage."""
        self.stage, self.validation, self._first, self._own = stage, None, None, {}
        self._losses = {}  # the next stage has other sources, and its loss may be one of pairs
        self._start = self._here = _Mark(time.monotonic(), None, stage.progress)

    def add(self, step: StepDone) -> None:
        """Add a step."""
        for name, (loss_sum, n_tokens) in {"": (step.loss_sum, step.n_truth), **step.sources}.items():
            if n_tokens:
                old_loss, old_tokens = self._losses.get(name, (0.0, 0.0))
                self._losses[name] = (_KEPT * old_loss + loss_sum, _KEPT * old_tokens + n_tokens)
        self._own = dict(step.own)
        self._here = _Mark(time.monotonic(), step.share, step.progress)
        self._first = self._first or self._here

    def figures(self) -> dict[str, Any]:
        """Return the figures; losses are running means over the tokens of the last few steps."""
        stage_left = self._stage_left()
        losses = {name: loss_sum / n_tokens for name, (loss_sum, n_tokens) in sorted(self._losses.items())}
        return {"loss": losses.pop("", 0.0), "loss_by_source": losses,
                "validation_loss": self.validation, **self._own,
                "tokens_per_second": (self._here.progress.tokens - self._start.progress.tokens) / max(self._here.time - self._start.time, 1e-9),
                "stage_seconds_left": stage_left, "plan_seconds_left": self._plan_left(stage_left)}

    def text(self) -> str:
        """Write the figures for people."""
        figures = self.figures()
        apart = ", ".join(f"{shorten(name, _NAME_CHARACTERS)} {loss:.3f}" for name, loss in figures["loss_by_source"].items())
        left = ""
        if figures["stage_seconds_left"] is not None:
            left = f", {clock(figures['stage_seconds_left'])} left"
            if self.stage.to_come and figures["plan_seconds_left"] is not None:
                left += f" (plan {clock(figures['plan_seconds_left'])})"
        found = "" if self.validation is None else f"reward {-self.validation:.3f}" if self.unit == REWARD else f"{self.validation:.3f}"
        validation = f", validation {found}" if found else ""
        own = "".join(f", {name} {value:.3g}" for name, value in self._own.items() if value is not None)
        return f"loss {figures['loss']:.3f}{f' ({apart})' if apart else ''}{validation}{own}, {figures['tokens_per_second']:,.0f} tokens/s{left}"

    def _stage_left(self) -> float | None:
        """Estimate the seconds left in the stage, by the speed since the first step; None while unknown."""
        first, here = self._first, self._here
        if first is None or first.share is None or here.share is None or here.share <= first.share:
            return None
        return (here.time - first.time) * (1 - here.share) / (here.share - first.share)

    def _plan_left(self, stage_left: float | None) -> float | None:
        """Estimate the seconds left in the plan: samples, tokens and steps of later stages take as long as those of this one; None while unknown."""
        if stage_left is None or self._first is None or self.stage.to_come is None:
            return None
        here, first = self._here.progress, self._first.progress
        done = {"samples": here.samples - first.samples, "tokens": here.tokens - first.tokens, "steps": here.step - first.step}
        return stage_left + sum((self._here.time - self._first.time) * count / max(done[unit], 1) for unit, count in self.stage.to_come.items())


def shorten(text: str, most: int) -> str:
    """Cut a text to one line that any terminal can show."""
    text = printable(text[:most + 1].replace("\n", "⏎"))
    return text if len(text) <= most else text[:most - 1] + "…"
