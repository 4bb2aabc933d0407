"""The update that ends a step: clipping, and no update where loss or gradient is not finite.  Engine floor."""
from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..device.memory import is_out_of_memory
from ..device.model import DeviceModel
from ..errors import TrainingError
from ..modules.sharded import total_norm
from ..optim.set import OptimizerSet


def update(model: DeviceModel, optimizers: OptimizerSet, loss_sum: torch.Tensor, grad_clip: float) -> torch.Tensor:
    """Clip the gradient, which is that of all ranks, and update the weights, unless loss or gradient is not finite.

    :param loss_sum: of the batch, a scalar on the device.
    :param grad_clip: the largest norm of the gradient, 0 = no limit.
    :return: the gradient's norm before clipping, a scalar on the device.
    :raises TrainingError: when there is no memory for the optimizers' state.
    """
    runtime, parameters = model.runtime, list(model.raw.parameters())
    scaled: Any = optimizers
    # Parts that skip by themselves would update half a model, and a fused kernel that skips its first step leaves its state undefined.
    if runtime.scaler.is_enabled() and len(optimizers) == 1 and not optimizers.followers and optimizers.can_skip_on_device():
        scaled = next(iter(optimizers))
    try:
        runtime.scaler.unscale_(scaled)
        grad_norm = total_norm(parameter.grad for parameter in parameters if parameter.grad is not None)
        if grad_clip:
            nn.utils.clip_grads_with_norm_(parameters, grad_clip, grad_norm)
        if runtime.scaler.is_enabled():  # skips gradients that are not finite by itself, and lowers its scale
            runtime.scaler.step(scaled)
            runtime.scaler.update()
        elif runtime.asynchronous and optimizers.can_skip_on_device():
            optimizers.step_unless(~(loss_sum.isfinite() & grad_norm.isfinite()))
        elif bool(loss_sum.isfinite() & grad_norm.isfinite()):  # waits for the device once
            optimizers.step()
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            # Some of the weights may have been updated, and what it lacks is of the size of the model: smaller mini-batches are no help.
            raise TrainingError("out of memory in the update of the weights: the optimizer's state does not fit. A smaller model, or an optimizer "
                                "with less state (--optimizer sgd), may; the last checkpoint is intact.") from error
        raise
    return grad_norm
