"""How the learning rate goes over a stage, as functions of where the stage is: no state.  Math floor: imports the table of schedules, no torch."""
from __future__ import annotations

from ..plan.names import SCHEDULES


def lr_factor(
    name: str, step: float, progress: float | None, min_fraction: float | None = None, warmup_steps: float = 40, warmup_fraction: float = 0.1
) -> float:
    """Give the share of the learning rate for the next optimizer step.

    The schedule's curve times the warm-up's: both are continuous, so their product never jumps, and it needs no length to warm up over.

    :param name: a key of :data:`SCHEDULES`.
    :param step: optimizer steps since the warm-up began, 0 before the first; or the share of the stage since then, if `warmup_steps` is one, too.
    :param progress: share of the stage's length done, 0 to 1 (more counts as 1); None where the length is unknown.
    :param min_fraction: where the curve ends; None = the schedule's default (cosine 0.1, linear and wsd 0).
    :param warmup_steps: steps until the warm-up reaches 1; 0 = no warm-up.
    :param warmup_fraction: where the warm-up starts.
    :return: 0 to 1.
    :raises ValueError: when `progress` is None and the schedule has a curve.
    """
    row = SCHEDULES[name]
    warmup = warmup_fraction + (1 - warmup_fraction) * step / warmup_steps if step < warmup_steps else 1.0
    if row.curve is None:
        return warmup
    if progress is None:
        raise ValueError(f"the schedule {name} needs to know how long the stage is")
    lowest = row.min_fraction if min_fraction is None else min_fraction
    return warmup * (lowest + (1 - lowest) * row.curve(min(1.0, max(0.0, progress))))
