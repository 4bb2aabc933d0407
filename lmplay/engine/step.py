"""One optimizer step over a batch.  Engine floor."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..data.collate import MiniBatch
from ..errors import TrainingError
from ..objective import next_token
from .runtime import Runtime


@dataclass(frozen=True)
class StepResult:
    """What a step says: sum of the losses (nats) and gradient norm, as tensors on the device, predictions of the pieces asked for, and how many
    places its mini-batches had and how many of these were padding."""

    loss_sum: torch.Tensor
    grad_norm: torch.Tensor
    predictions: dict[int, torch.Tensor]
    places: int
    padding: int


def train_step(raw: nn.Module, wrapped: nn.Module, optimizer: torch.optim.Optimizer, runtime: Runtime, mini_batches: Sequence[MiniBatch], *,
               grad_clip: float, watch: range, interrupted: Callable[[], bool]) -> StepResult | None:
    """Do forward and backward of every mini-batch, then one update.

    The losses are summed over the truth tokens and divided by their number in the whole batch, so neither the mini-batches nor their
    order matter for the gradient.

    :param raw: the model as built; owns the head and the parameters.
    :param wrapped: the same model, perhaps compiled; is run.
    :param mini_batches: all of the batch.
    :param grad_clip: the largest norm of the gradient, 0 = no limit.
    :param watch: numbers of the pieces whose predictions are wanted.
    :param interrupted: asked before each mini-batch.
    :return: the result, or None when interrupted: nothing has been updated then.
    :raises TrainingError: when loss or gradient is not finite (on a GPU, :func:`check_finite` finds it later, without making it wait).
    """
    n_truth = sum(len(mini_batch.targets) for mini_batch in mini_batches)
    loss_sum = torch.zeros((), device=runtime.device)
    predictions: dict[int, torch.Tensor] = {}
    optimizer.zero_grad(set_to_none=True)
    for mini_batch in mini_batches:
        if interrupted():
            return None
        there = mini_batch.to(runtime.device)
        with runtime.autocast():
            result = next_token(wrapped, there.tokens, there.positions, there.targets, head=raw.get_submodule("head"))
        runtime.scaler.scale(result.loss_sum / n_truth).backward()
        loss_sum += result.loss_sum.detach()
        predictions.update((number, result.predictions_N[where]) for number, where in there.rows if number in watch)
    runtime.scaler.unscale_(optimizer)
    grad_norm = nn.utils.get_total_norm([parameter.grad for parameter in raw.parameters() if parameter.grad is not None])
    if grad_clip:
        nn.utils.clip_grads_with_norm_(raw.parameters(), grad_clip, grad_norm)
    if runtime.device.type == "cpu":
        check_finite(float(loss_sum), float(grad_norm))
    runtime.scaler.step(optimizer)
    runtime.scaler.update()
    return StepResult(loss_sum, grad_norm, predictions, sum(mini_batch.tokens.numel() for mini_batch in mini_batches),
                      sum(mini_batch.n_padding for mini_batch in mini_batches))


def check_finite(loss_sum: float, grad_norm: float, scaled: bool = False) -> None:
    """Refuse to go on with numbers that are not finite.

    :param loss_sum: of a batch.
    :param grad_norm: of its gradient.
    :param scaled: a gradient scaler is at work: it skips infinite gradients by itself and lowers its scale.
    :raises TrainingError: when one is not finite.
    """
    if not math.isfinite(loss_sum) or not (math.isfinite(grad_norm) or scaled):
        raise TrainingError(f"the loss ({loss_sum}) or the norm of its gradient ({grad_norm}) is not finite; nothing has been saved since. "
                            "A lower --lr, --grad-clip 1, or training without --amp may help.")
