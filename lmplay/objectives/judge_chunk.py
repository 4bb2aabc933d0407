"""The loss of a chunk of logits and its gradient as one function without side effects, for code that is generated from it.  Math floor.

Shapes: C positions of a chunk, V vocabulary, P columns of its logits: V, filled up so that rows begin where fast products need them to.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

JudgeChunk = Callable[[Tensor, Tensor, int, float, float, bool], tuple[Tensor, Tensor, Tensor | None]]
"""See :func:`judge_chunk`."""


def judge_chunk(logits_CP: Tensor, targets_C: Tensor, size: int, soft_cap: float, z_loss: float, with_gradient: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Judge the logits of a chunk.

    Generated code reads them two or three times and writes the gradient once, in their type; by itself each line here is a copy in float32.

    :param logits_CP: what the head's product has given; the columns from `size` on do not count.
    :param targets_C: token ids, int64.
    :param size: V.
    :param soft_cap: see :class:`lmplay.modules.heads.LinearTerms`.
    :param z_loss: the same.
    :return: the losses (C,), at least float32; the most probable token ids (C,); and with `with_gradient` that of the sum of the losses, and of the z-loss, by
        the logits (C, P), in their type.
    """
    exact = logits_CP.to(torch.promote_types(logits_CP.dtype, torch.float32))
    if soft_cap:
        exact = exact.tanh() * soft_cap
    columns_P = torch.arange(logits_CP.shape[1], device=logits_CP.device)
    counted = torch.where(columns_P < size, exact, float("-inf"))
    highest_C1, predictions_C1 = counted.max(1, keepdim=True)
    weights = (counted - highest_C1).exp()
    total_C1 = weights.sum(1, keepdim=True)
    log_sum_C1 = highest_C1 + total_C1.log()
    losses_C1 = log_sum_C1 - exact.gather(1, targets_C[:, None])
    gradient = None
    if with_gradient:
        gradient = weights / total_C1
        if z_loss:
            gradient = gradient * (1 + 2 * z_loss * log_sum_C1)
        gradient = torch.where(columns_P == targets_C[:, None], gradient - 1, gradient)
        if soft_cap:
            gradient = gradient * (1 - (exact / soft_cap).square())  # the derivative of tanh
        gradient = gradient.to(logits_CP.dtype)
    return losses_C1.squeeze(1), predictions_C1.squeeze(1), gradient
