"""How the learning rate goes over a stage, as functions of where the stage is: no state.  Math floor: imports nothing of lmplay, no torch."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

DECAY_SHARE = 0.2
"""The share of a stage over which `wsd` decays: Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations"."""


@dataclass(frozen=True)
class _Row:
    """A schedule: its curve from 1 down to 0 over progress from 0 to 1, and where it ends unless told otherwise."""

    curve: Callable[[float], float]
    min_fraction: float


# cosine: Loshchilov and Hutter 2017, "SGDR"; down to a tenth as in Brown et al. 2020, "Language Models are Few-Shot Learners".
# linear: to zero, Bergsma et al. 2025, "Straight to Zero".  wsd (warm-up, stable, decay): Hu et al. 2024, "MiniCPM".
SCHEDULES = {
    "constant": _Row(lambda progress: 1.0, 1.0),
    "linear": _Row(lambda progress: 1 - progress, 0.0),
    "cosine": _Row(lambda progress: (1 + math.cos(math.pi * progress)) / 2, 0.1),
    "wsd": _Row(lambda progress: min(1.0, (1 - progress) / DECAY_SHARE), 0.0),
}


def lr_factor(
    name: str, step: int, progress: float | None, min_fraction: float | None = None, warmup_steps: int = 40, warmup_fraction: float = 0.1
) -> float:
    """Give the share of the learning rate for the next optimizer step.

    The schedule's curve times the warm-up's: both are continuous, so their product never jumps, and it needs no length to warm up over.

    :param name: a key of :data:`SCHEDULES`.
    :param step: optimizer steps done in this stage; 0 before the first.
    :param progress: share of the stage's length done, 0 to 1 (more counts as 1); None where the length is unknown.
    :param min_fraction: where the curve ends; None = the schedule's default (cosine 0.1, linear and wsd 0).
    :param warmup_steps: steps until the warm-up reaches 1; 0 = no warm-up.
    :param warmup_fraction: where the warm-up starts.
    :return: 0 to 1.
    :raises ValueError: when `progress` is None and the schedule is not constant.
    """
    row = SCHEDULES[name]
    warmup = warmup_fraction + (1 - warmup_fraction) * step / warmup_steps if step < warmup_steps else 1.0
    if name == "constant":
        return warmup
    if progress is None:
        raise ValueError(f"the schedule {name} needs to know how long the stage is")
    lowest = row.min_fraction if min_fraction is None else min_fraction
    return warmup * (lowest + (1 - lowest) * row.curve(min(1.0, max(0.0, progress))))
