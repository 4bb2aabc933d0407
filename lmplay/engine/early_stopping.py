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
    return note_lowest(state, loss, samples)


def note_lowest(state: StageState, loss: float, samples: int) -> bool:
    """Note a validation that is not counted for early stopping, and tell whether its loss is the lowest of the stage; see :func:`note_loss`."""
    lowest = state.lowest_loss is None or loss < state.lowest_loss
    if lowest:
        state.lowest_loss, state.lowest_samples = loss, samples
    return lowest


def judge_anew(state: StageState, identity: str) -> bool:
    """Forget the losses so far when validations judge other samples from here on.

    :param state: of the stage; is changed.
    :param identity: of the samples.
    :return: whether there was a loss to forget.
    """
    if state.judged_by == identity:
        return False
    had = state.lowest_loss is not None
    state.judged_by, state.best_loss, state.lowest_loss, state.lowest_samples, state.stale = identity, None, None, None, 0
    return had


def is_over(state: StageState, settings: StageSettings) -> bool:
    """Tell whether a stage ends because validation has got no better for too long."""
    return settings.patience is not None and state.stale >= settings.patience
