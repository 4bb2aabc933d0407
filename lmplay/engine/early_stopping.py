"""Which validation of a stage was the best, and whether it has got no better for too long.  Engine floor, no torch."""
from __future__ import annotations

from ..plan.curriculum import StageState
from ..plan.settings import StageSettings


def note_loss(state: StageState, loss: float, samples: int, min_delta: float) -> bool:
    """Take note of a regular validation.

    :param state: of the stage; is changed.
    :param loss: in nats per token.
    :param samples: the run's at that time.
    :param min_delta: a smaller drop of the loss does not count for early stopping.
    :return: whether the loss is the lowest of the stage.
    """
    if state.best_loss is None or loss < state.best_loss - min_delta:
        state.best_loss, state.stale = loss, 0
    else:
        state.stale += 1
    lowest = state.lowest_loss is None or loss < state.lowest_loss
    if lowest:
        state.lowest_loss, state.lowest_samples = loss, samples
    return lowest


def is_over(state: StageState, settings: StageSettings) -> bool:
    """Tell whether a stage ends because validation has got no better for too long."""
    return settings.patience is not None and state.stale >= settings.patience
