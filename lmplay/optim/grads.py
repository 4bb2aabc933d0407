"""A look at gradients, for those who write models.  Math floor: imports torch only."""
from __future__ import annotations

from torch import nn


def check_grads(model: nn.Module) -> list[str]:
    """Find parameters whose gradient is missing, zero all over, or not finite; frozen ones have none, and are marked.

    Waits for the device once a parameter.

    :param model: the raw model, after a backward.
    :return: a line for each, in the model's order; none when all is well.
    """
    lines = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            lines.append(f"{name}: frozen, no gradient")
        elif parameter.grad is None:
            lines.append(f"{name}: no gradient; the loss does not depend on it")
        elif not parameter.grad.isfinite().all():
            wrong = int((~parameter.grad.isfinite()).sum())
            lines.append(f"{name}: {wrong} of {parameter.grad.numel()} values of its gradient are not finite")
        elif not parameter.grad.any():
            lines.append(f"{name}: its gradient is zero all over")
    return lines
