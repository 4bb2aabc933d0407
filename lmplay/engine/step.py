"""One optimizer step over a batch.  Engine floor."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..data.collate import MiniBatch
from ..device.memory import is_out_of_memory
from ..device.runtime import Runtime
from ..errors import TrainingError
from ..objectives.next_token import next_token


@dataclass(frozen=True)
class StepResult:
    """What a step says: sum of the losses (nats) and gradient norm, as tensors on the device, the loss sum of each source where they were asked for
    (none otherwise), predictions of the pieces asked for, and how many places its mini-batches had and how many of these were padding.

    Where loss sum or gradient norm is not finite, nothing has been updated."""

    loss_sum: torch.Tensor
    grad_norm: torch.Tensor
    source_sums: torch.Tensor
    predictions: dict[int, torch.Tensor]
    places: int
    padding: int


def train_step(raw: nn.Module, wrapped: nn.Module, optimizer: torch.optim.Optimizer, runtime: Runtime, mini_batches: Sequence[MiniBatch], *,
               grad_clip: float, watch: range, interrupted: Callable[[], bool], sources: Sequence[int] = (),
               forward: Callable[[], AbstractContextManager[None]] = nullcontext) -> StepResult | None:
    """Do forward and backward of every mini-batch, then one update.

    The losses are summed over the truth tokens and divided by their number in the whole batch, so neither the mini-batches nor their
    order matter for the gradient. A batch with nothing to learn, and one whose loss or gradient is not finite, change neither weights nor optimizer.

    :param raw: the model as built; owns the head and the parameters.
    :param wrapped: the same model, perhaps compiled; is run.
    :param mini_batches: all of the batch.
    :param grad_clip: the largest norm of the gradient, 0 = no limit.
    :param watch: numbers of the pieces whose predictions are wanted.
    :param interrupted: asked before each mini-batch.
    :param forward: around forward and backward of each mini-batch, which change nothing that lasts.
    :param sources: the source of each piece, by its number in the batch, where loss sums by source are wanted.
    :return: the result, or None when interrupted: nothing has been updated then.
    :raises TrainingError: when there is no memory for the optimizer.
    """
    n_truth = sum(len(mini_batch.targets_N) for mini_batch in mini_batches)
    loss_sum = torch.zeros((), device=runtime.device)
    source_sums = torch.zeros(max(sources, default=-1) + 1, device=runtime.device)
    predictions: dict[int, torch.Tensor] = {}
    optimizer.zero_grad(set_to_none=True)
    for mini_batch in mini_batches if n_truth else ():
        if interrupted():
            return None
        there = mini_batch.to(runtime.device)
        with forward():
            with runtime.autocast():
                result = next_token(wrapped, there.tokens_BT, there.positions_N, there.targets_N, head=raw.get_submodule("head"), lengths=there.seq_lens)
            runtime.scaler.scale(result.loss_sum / n_truth).backward()
        loss_sum += result.loss_sum.detach()
        if len(source_sums):
            source_sums.index_add_(0, _source_of_each(there, sources, runtime.device), result.losses_N.to(source_sums.dtype))
        predictions.update((number, result.predictions_N[where]) for number, where in there.rows if number in watch)
    grad_norm = _update(raw, optimizer, runtime, loss_sum, grad_clip) if n_truth else torch.zeros_like(loss_sum)
    return StepResult(loss_sum, grad_norm, source_sums, predictions, sum(mini_batch.n_slots for mini_batch in mini_batches),
                      sum(mini_batch.n_padding for mini_batch in mini_batches))


def _source_of_each(mini_batch: MiniBatch, sources: Sequence[int], device: torch.device) -> torch.Tensor:
    """Give the source of each of a mini-batch's N positions, without waiting for the device."""
    lengths = [where.stop - where.start for _, where in mini_batch.rows]
    numbers_N = torch.from_numpy(np.repeat([sources[number] for number, _ in mini_batch.rows], lengths))
    return numbers_N.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers_N.to(device)


def _update(raw: nn.Module, optimizer: torch.optim.Optimizer, runtime: Runtime, loss_sum: torch.Tensor, grad_clip: float) -> torch.Tensor:
    """Clip the gradient and update the weights, unless loss or gradient is not finite; give the gradient's norm before clipping."""
    runtime.scaler.unscale_(optimizer)
    grad_norm = nn.utils.get_total_norm([parameter.grad for parameter in raw.parameters() if parameter.grad is not None])
    if grad_clip:
        nn.utils.clip_grads_with_norm_(raw.parameters(), grad_clip, grad_norm)
    try:
        if runtime.scaler.is_enabled():  # passes over gradients that are not finite by itself, and lowers its scale
            runtime.scaler.step(optimizer)
            runtime.scaler.update()
        elif runtime.asynchronous and _can_be_told(optimizer):
            _step_unless(optimizer, ~(loss_sum.isfinite() & grad_norm.isfinite()))
        elif math.isfinite(float(loss_sum)) and math.isfinite(float(grad_norm)):
            optimizer.step()
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            # Some of the weights may have been updated, and what it lacks is of the size of the model: smaller mini-batches are no help.
            raise TrainingError("out of memory in the update of the weights: the optimizer's state does not fit. A smaller model, or an optimizer "
                                "with less state (--optimizer sgd), may; the last checkpoint is whole.") from error
        raise
    return grad_norm


def _can_be_told(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the device alone can pass over an update: by a fused kernel, once all state is there (sgd's kernel would leave its first undefined)."""
    return all(group.get("fused") and all(parameter in optimizer.state for parameter in group["params"] if parameter.grad is not None)
               for group in optimizer.param_groups)


def _step_unless(optimizer: torch.optim.Optimizer, condition: torch.Tensor) -> None:
    """Update the weights where a condition that only the device knows does not hold: the way in which torch's GradScaler tells a fused kernel."""
    optimizer.grad_scale, optimizer.found_inf = None, condition.float()  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
