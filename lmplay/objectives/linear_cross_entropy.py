"""Cross-entropy of a linear head over a large vocabulary, without the logits of all positions.  Math floor.

Shapes: N positions, C positions of one chunk, D width, V vocabulary.
"""
from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..modules.heads import LinearTerms
from .judge_chunk import JudgeChunk

# Logits of a block in the search for the largest.
_BLOCK = 128
# Rows whose softmax a CPU computes at a time (`benchmarks/step.py`).
_ROWS = 32
MULTIPLE = 64
"""Rows of logits are filled up to a multiple of this: the numbers of half precision that a cache line of 128 bytes holds."""
# Rows whose float32 softmax a GPU holds at a time, where no code is generated: of GPT-2's vocabulary 50 MB, the level-2 cache of an H100.
_GPU_ROWS = 256
# A chunk's logits and their gradient take at most this share of a GPU's memory.
_CHUNK_SHARE, _FEWEST, _MOST = 1 / 32, 1024, 8192


def linear_cross_entropy(hidden_ND: Tensor, terms: LinearTerms, targets_N: Tensor, chunk: int | None = None, judge: JudgeChunk | None = None) \
        -> tuple[Tensor, Tensor, Tensor]:
    """Sum ``cross_entropy(logits, target)`` over the positions, `chunk` of them at a time.

    The gradients are computed in the forward pass, while a chunk's softmax is in memory, so that no chunk is multiplied twice;
    backward only scales them, once (a second backward through the same graph raises torch's error about an in-place change).
    Under autocast the products are in its type; softmax, loss and held gradients are float32 (float64 for float64 input).
    The gradient is that of the sum plus the head's z-loss, the value is that of the sum alone, so that losses with and without it compare.
    In float16 a single softmax gradient below 3e-8 becomes zero: it is not scaled here, for it is not yet divided by the count either.

    :param hidden_ND: hidden states.
    :param terms: how the head computes logits.
    :param targets_N: token ids, int64.
    :param chunk: positions to hold logits for, at least 1; None = as many as suit the device.
    :param judge: compiled code of :func:`.judge_chunk.judge_chunk`, which is used on a GPU; None = there is none.
    :return: the sum of the losses (scalar, differentiable), the losses (N,) by themselves without gradient, and the most probable token ids (N,).
    """
    gradients, weight_VD = torch.is_grad_enabled(), terms.weight_VD
    needed = gradients and hidden_ND.requires_grad, gradients and weight_VD.requires_grad
    return _LinearCrossEntropy.apply(hidden_ND, weight_VD, targets_N, terms, chunk or chunk_for(hidden_ND.device, len(weight_VD)), judge, *needed)


@cache
def chunk_for(device: torch.device, size: int) -> int:
    """Choose the positions whose logits are held at once.

    More of them mean that the head's gradient is gone over less often. On a GPU of NVIDIA it is by its memory, not by what is free: the sums of a run must not
    depend on that.

    :param size: V.
    """
    if device.type != "cuda":
        return _FEWEST
    fit = int(torch.cuda.get_device_properties(device).total_memory * _CHUNK_SHARE) // (6 * size)  # twice in half precision, and some rows in float32
    return min(max(1 << max(fit.bit_length() - 1, 0), _FEWEST), _MOST)


class _LinearCrossEntropy(torch.autograd.Function):
    """See :func:`linear_cross_entropy`."""

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, terms: LinearTerms, chunk: int, judge: JudgeChunk | None, with_hidden: bool,
                with_weight: bool) -> tuple[Tensor, Tensor, Tensor]:
        device = hidden_ND.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_ND.dtype
        with torch.autocast(device, enabled=False):
            if device == "cpu":
                parts = _compute(hidden_ND.to(dtype), terms._replace(weight_VD=weight_VD.to(dtype)), targets_N, chunk, with_hidden, with_weight)
            else:
                parts = _compute_on_gpu(hidden_ND.to(dtype), terms, targets_N, chunk, judge, with_hidden, with_weight)
        ctx.save_for_backward(parts.hidden_gradient_ND, parts.weight_gradient_VD)
        ctx.dtypes = hidden_ND.dtype, weight_VD.dtype
        ctx.mark_non_differentiable(parts.losses_N, parts.predictions_N)
        return parts.loss_sum, parts.losses_N, parts.predictions_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        held = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        # in place: a second copy of the head's gradient would be the largest tensor of a step
        hidden_gradient, weight_gradient = (None if tensor is None else tensor.mul_(loss_gradient).to(dtype) for tensor, dtype in held)
        return hidden_gradient, weight_gradient, None, None, None, None, None, None


class _Parts(NamedTuple):
    """What one pass over the chunks gives; a gradient nobody needs is None."""

    loss_sum: Tensor
    losses_N: Tensor
    predictions_N: Tensor
    hidden_gradient_ND: Tensor | None
    weight_gradient_VD: Tensor | None


def _compute(hidden_ND: Tensor, terms: LinearTerms, targets_N: Tensor, chunk: int, with_hidden: bool, with_weight: bool) -> _Parts:
    """Go over the chunks on a CPU with two buffers: memory asked for anew for each chunk costs as much as the softmax."""
    weight_VD, soft_cap = terms.weight_VD, terms.soft_cap
    (total, _), size, exact = hidden_ND.shape, len(weight_VD), torch.promote_types(hidden_ND.dtype, torch.float32)
    padded_CP = _padded(hidden_ND, min(chunk, total), size)
    # in half precision a CPU goes over few rows at a time: their float32 softmax stays in its cache
    rows = _ROWS if exact != hidden_ND.dtype else len(padded_CP)
    softmax_RV = hidden_ND.new_empty(min(rows, len(padded_CP)), size, dtype=exact)
    losses_N = hidden_ND.new_empty(total, dtype=exact)
    predictions_N = torch.empty_like(targets_N)
    hidden_gradient = torch.empty_like(hidden_ND, dtype=exact) if with_hidden else None
    weight_gradient = torch.zeros_like(weight_VD, dtype=exact) if with_weight else None
    for start in range(0, total, chunk):
        part = slice(start, min(start + chunk, total))
        hidden, count = hidden_ND[part], part.stop - start
        if exact != hidden_ND.dtype:  # more rows, of zeros, so that the products have few shapes
            hidden = nn.functional.pad(hidden, (0, 0, 0, -count % MULTIPLE))
        padded = padded_CP[:len(hidden)]
        logits = padded[:, :size]
        torch.mm(hidden / soft_cap if soft_cap else hidden, weight_VD.t(), out=logits)
        for first in range(0, count, rows):
            here = slice(start + first, min(start + first + rows, part.stop))
            of_rows = logits[first:first + here.stop - here.start]
            softmax = softmax_RV[:len(of_rows)]
            losses_N[here], predictions_N[here] = _judge_rows(of_rows, targets_N[here, None], terms, softmax, with_hidden or with_weight)
            if exact != logits.dtype and (with_hidden or with_weight):
                of_rows.copy_(softmax)
        logits[count:] = 0
        if exact == logits.dtype:
            logits = padded = softmax_RV[:count]
        if hidden_gradient is not None:
            hidden_gradient[part] = (logits @ weight_VD)[:count]
        if weight_gradient is not None and exact == logits.dtype:
            weight_gradient.addmm_(logits.t(), hidden)
        elif weight_gradient is not None:
            weight_gradient += (padded.t() @ hidden)[:size]
    return _Parts(losses_N.sum(), losses_N, predictions_N, hidden_gradient, weight_gradient)


def _compute_on_gpu(hidden_ND: Tensor, terms: LinearTerms, targets_N: Tensor, chunk: int, judge: JudgeChunk | None, with_hidden: bool, with_weight: bool) \
        -> _Parts:
    """Go over the chunks on a GPU, where memory costs nothing to ask for, and products are not written into views (Apple's GPUs have done that wrongly).

    The weight has further rows of zeros, so that the rows of all products begin where the fastest kernels need them to.
    """
    width, size, dtype, exact = hidden_ND.shape[1], len(terms.weight_VD), hidden_ND.dtype, torch.promote_types(hidden_ND.dtype, torch.float32)
    columns = _round_up(size)
    if columns == size:
        weight_PD = terms.weight_VD.to(dtype)
    else:
        weight_PD = hidden_ND.new_zeros(columns, width)
        weight_PD[:size] = terms.weight_VD
    losses, predictions = [hidden_ND.new_empty(0, dtype=exact)], [targets_N[:0]]
    hidden_gradients = [hidden_ND.new_empty(0, width, dtype=exact)] if with_hidden else None
    weight_gradient_PD = torch.zeros_like(weight_PD, dtype=exact) if with_weight else None
    for hidden, targets in zip(hidden_ND.split(chunk), targets_N.split(chunk), strict=True):
        logits_CP = (hidden / terms.soft_cap if terms.soft_cap else hidden) @ weight_PD.t()
        if judge is not None and terms.log_weights is None and len(hidden):
            of_chunk, best, gradient_CP = judge(logits_CP, targets, size, terms.soft_cap, terms.z_loss, with_hidden or with_weight)
        else:
            of_chunk, best, gradient_CP = _judge_by_rows(logits_CP, targets, size, terms, with_hidden or with_weight)
        losses.append(of_chunk)
        predictions.append(best)
        if hidden_gradients is not None and gradient_CP is not None:
            hidden_gradients.append((gradient_CP @ weight_PD).to(exact))
        if weight_gradient_PD is not None and gradient_CP is not None:
            if exact == dtype:
                weight_gradient_PD.addmm_(gradient_CP.t(), hidden)
            else:
                weight_gradient_PD += gradient_CP.t() @ hidden
    losses_N = torch.cat(losses)
    return _Parts(losses_N.sum(), losses_N, torch.cat(predictions), None if hidden_gradients is None else torch.cat(hidden_gradients),
                  None if weight_gradient_PD is None else weight_gradient_PD[:size])


def _judge_by_rows(logits_CP: Tensor, targets_C: Tensor, size: int, terms: LinearTerms, with_gradient: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Do what :func:`.judge_chunk.judge_chunk` does, a few rows at a time; the gradient takes the place of the logits."""
    losses, predictions = [], []
    for padded, targets in zip(logits_CP.split(_GPU_ROWS), targets_C.split(_GPU_ROWS), strict=True):
        logits = padded[:, :size]
        softmax = logits.new_empty(logits.shape, dtype=torch.promote_types(logits.dtype, torch.float32))
        of_rows, best = _judge_rows(logits, targets[:, None], terms, softmax, with_gradient)
        losses.append(of_rows)
        predictions.append(best)
        if with_gradient:
            logits.copy_(softmax)  # behind them are zeros already
    return torch.cat(losses), torch.cat(predictions), logits_CP if with_gradient else None


def _padded(hidden_ND: Tensor, rows: int, size: int) -> Tensor:
    """Make a buffer for logits; of half precision its rows begin at whole cache lines, as fast products need: of 50,257 columns they otherwise begin anywhere.

    :return: (`rows` and `size`, or their next multiples of 64), the columns from `size` on are 0.
    """
    half = hidden_ND.element_size() == 2
    buffer = hidden_ND.new_empty(_round_up(rows) if half else rows, _round_up(size) if half else size)
    buffer[:, size:] = 0
    return buffer


def _round_up(count: int) -> int:
    """Round up to whole cache lines."""
    return -(-count // MULTIPLE) * MULTIPLE


def _judge_rows(logits_RV: Tensor, target_R1: Tensor, terms: LinearTerms, softmax_RV: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor]:
    """Judge some rows of logits.

    :param logits_RV: what the head's product has given; with a soft cap changed in place.
    :param softmax_RV: a buffer, at least float32; with `with_gradient` it holds the gradient of the losses by the product then.
    :return: the losses and the most probable token ids (R,).
    """
    exact = softmax_RV.dtype
    if terms.soft_cap:
        logits_RV.tanh_().mul_(terms.soft_cap)
    of_target = logits_RV.gather(1, target_R1).to(exact)
    if terms.log_weights is None:
        torch.softmax(logits_RV, 1, dtype=exact, out=softmax_RV)
        largest = predictions = find_largest(logits_RV if logits_RV.dtype == exact else softmax_RV)  # in float32 a CPU finds it in half the time
        highest = logits_RV.gather(1, largest).to(exact)
    else:
        weighted_RV = (logits_RV + terms.log_weights).scatter_(1, target_R1, of_target)
        torch.softmax(weighted_RV, 1, out=softmax_RV)
        predictions, largest = find_largest(logits_RV), find_largest(weighted_RV)
        highest = weighted_RV.gather(1, largest)
    # log of the sum of exponentials = highest logit - log of the highest probability, and that one is never 0
    log_highest = softmax_RV.gather(1, largest).log()
    log_sum, losses_R1 = highest - log_highest, highest - of_target - log_highest
    if with_gradient:
        if terms.z_loss:
            softmax_RV.mul_(1 + 2 * terms.z_loss * log_sum)
        softmax_RV.scatter_add_(1, target_R1, softmax_RV.new_full(target_R1.shape, -1))  # now the gradient of the loss by the logits
        if terms.soft_cap:  # and now by the product: the derivative of tanh is 1 - tanh²
            softmax_RV.addcmul_(softmax_RV, logits_RV.square_(), value=-terms.soft_cap**-2)
    return losses_R1.squeeze(1), predictions.squeeze(1)


def find_largest(logits_CV: Tensor) -> Tensor:
    """Find where the largest logit of each position is.

    On a CPU block by block: torch finds an index several times more slowly than a value, and for a small model that was a percent of a step.

    :param logits_CV: at least one a position.
    :return: indices (C, 1); of equal ones the first.
    """
    size = logits_CV.shape[1]
    whole = size - size % _BLOCK
    if logits_CV.device.type != "cpu" or not whole:
        return logits_CV.argmax(1, keepdim=True)
    parts = [logits_CV[:, :whole].unflatten(1, (-1, _BLOCK)).amax(2)]
    if whole < size:
        parts.append(logits_CV[:, whole:].amax(1, keepdim=True))
    block_C1 = torch.cat(parts, 1).argmax(1, keepdim=True)
    indices_CB = (block_C1 * _BLOCK + torch.arange(_BLOCK)).clamp_(max=size - 1)
    return indices_CB.gather(1, logits_CV.gather(1, indices_CB).argmax(1, keepdim=True))
