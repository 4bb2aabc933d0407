"""What is minimised on a batch: the next token, so far.  Math floor: imports the math floor only.

Shapes: B pieces, T positions of a piece, N positions whose next token is truth, D width, V vocabulary.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .linear_cross_entropy import linear_cross_entropy

CHUNK = 1024
"""Positions whose logits are held at once.  Enough to keep the matrix products at full speed (fewer positions go over the head's
gradient more often), and 0.2 GB for each of two float32 buffers at GPT-2's vocabulary of 50257."""


@dataclass(frozen=True)
class Result:
    """What an objective says about a mini-batch."""

    loss_sum: Tensor
    """Sum of the losses in nats, a scalar, at least float32: divide by the count of the whole batch."""
    count: int
    """N, the truth tokens the sum goes over."""
    losses_N: Tensor
    """The loss of each of these positions, without gradient: for sums over a part of them, a source's say."""
    predictions_N: Tensor
    """The most probable token ids at these positions, int64, on the model's device."""


def next_token(
    model: nn.Module, tokens_BT: Tensor, positions_N: Tensor, targets_N: Tensor, head: nn.Module | None = None, chunk: int = CHUNK,
    lengths: tuple[int, ...] | None = None
) -> Result:
    """Judge a model by the tokens it gives to the truth.

    The head is applied at the truth positions only, `chunk` at a time; the same function serves validation, under ``torch.no_grad()``.

    :param model: token ids (B, T) -> hidden states (B, T, D), see :mod:`lmplay.exp`.
    :param tokens_BT: token ids, right-padded, int64.
    :param positions_N: the flat places ``b * T + t`` whose next token is truth, each once, int64; may be none.
    :param targets_N: the ids of these next tokens, int64.
    :param head: hidden states (C, D) -> logits (C, V); None = ``model.head``.  For a wrapper that hides the model's attributes.
    :param chunk: positions to hold logits for.
    :param lengths: of pieces that are joined in one row, for a model that takes them.
    :return: loss sum, count, losses and predictions.
    """
    head = model.get_submodule("head") if head is None else head
    hidden_BTD = model(tokens_BT) if lengths is None else model(tokens_BT, lengths=lengths)
    hidden_ND = hidden_BTD.flatten(0, 1).index_select(0, positions_N)
    if type(head) is nn.Linear and head.bias is None:  # not isinstance: a subclass (an adapter, say) computes something else
        loss_sum, losses_N, predictions_N = linear_cross_entropy(hidden_ND, head.weight, targets_N, chunk)
    else:
        loss_sum, losses_N, predictions_N = _any_head(head, hidden_ND, targets_N, chunk)
    return Result(loss_sum, len(targets_N), losses_N, predictions_N)


def _any_head(head: nn.Module, hidden_ND: Tensor, targets_N: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Do the same for a head of any kind, which is computed a second time on the way back."""
    # with no position there is one empty chunk, so that the loss still hangs on the graph
    chunks = zip(hidden_ND.split(chunk), targets_N.split(chunk), strict=True)
    judged = (checkpoint(_judge_chunk, head, hidden, target, use_reentrant=False) for hidden, target in chunks)
    sums, losses, predictions = zip(*judged, strict=True)
    return torch.stack(sums).sum(), torch.cat(losses), torch.cat(predictions)


def _judge_chunk(head: nn.Module, hidden_CD: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Give the loss sum, the losses and the predictions of one chunk."""
    logits_CV = head(hidden_CD)
    exact = torch.promote_types(logits_CV.dtype, torch.float32)
    losses_C = functional.cross_entropy(logits_CV.to(exact), targets_C, reduction="none")
    return losses_C.sum(), losses_C.detach(), logits_CV.detach().argmax(1)
