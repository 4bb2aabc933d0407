"""The warm-up of the learning rate.  Math floor, no torch; the shapes of schedules are in `plan/names.py`, their parts in `plan/schedules.py`."""
from __future__ import annotations


def warmup_factor(step: float, warmup_steps: float = 40, warmup_fraction: float = 0.1) -> float:
    """Give the share of the learning rate that a warm-up leaves for the next optimizer step.

    The warm-up and a schedule's curve are both continuous, so their product never jumps, and it needs no length to warm up over.

    :param step: optimizer steps since the warm-up began, 0 before the first; or the share of the stage since then, if `warmup_steps` is one, too.
    :param warmup_steps: steps until the warm-up reaches 1; 0 = no warm-up.
    :param warmup_fraction: where the warm-up starts.
    :return: 0 to 1.
    """
    return warmup_fraction + (1 - warmup_fraction) * step / warmup_steps if step < warmup_steps else 1.0
