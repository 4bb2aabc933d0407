"""The next token: cross-entropy of the truth, as in pretraining.  Math floor.

Shapes: B pieces, T positions of a piece, N positions whose next token is truth, D width, V vocabulary.
"""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..data.collate import MiniBatch, to_device
from ..modules.heads import LinearTerms
from .ahead import find_later
from .base import Objective, Result, add_gradient
from .candidates import choose_candidates
from .judge_chunk import JudgeChunk
from .linear_cross_entropy import linear_cross_entropy

CHUNK = 1024
"""Positions whose logits are held at once on a CPU.  Enough to keep the matrix products at full speed (fewer positions go over the head's gradient more
often), and 0.2 GB for each of two float32 buffers at GPT-2's vocabulary of 50257 (in half precision 0.1 GB in all)."""


class NextToken(Objective):
    """Cross-entropy of the tokens that the model gives to the truth."""

    divides_samples = True

    def __init__(self, chunk: int | None = None):
        """
        :param chunk: positions whose logits are held at once; None = as many as suit the device.
        """
        self._chunk = chunk

    def loss(self, model: nn.Module, mini_batch: MiniBatch, head: nn.Module) -> Result:
        """See :class:`Objective`; the head is applied at the truth positions only, a chunk at a time.

        What it has to say about later tokens (:class:`lmplay.modules.heads.LinearHead`) is added to the gradient, and not to what is reported.
        """
        lengths = mini_batch.seq_lens
        hidden_BTD: Tensor = model(mini_batch.tokens_BT) if lengths is None else model(mini_batch.tokens_BT, lengths=lengths)
        hidden_ND = hidden_BTD.flatten(0, 1).index_select(0, mini_batch.positions_N)
        judge: JudgeChunk | None = getattr(model, "judge_chunk", None)  # of compiled models
        host_N = (mini_batch.host or mini_batch).targets_N
        loss_sum, losses_N, predictions_N = self._judge(head, hidden_ND, mini_batch.targets_N, host_N, judge)
        if torch.is_grad_enabled():
            weight: float = getattr(head, "ahead_weight", 1.0)
            for distance, module in enumerate(getattr(head, "ahead", ()), 1):
                here, later = find_later(mini_batch, distance)
                of_later, later_targets = host_N[later], mini_batch.targets_N.index_select(0, to_device(later, hidden_ND.device))
                ahead_sum, *_ = self._judge(head, module(hidden_ND.index_select(0, to_device(here, hidden_ND.device))), later_targets, of_later, judge)
                loss_sum = add_gradient(loss_sum, ahead_sum * weight)
        return Result(loss_sum, losses_N, predictions_N)

    def _judge(self, head: nn.Module, hidden_ND: Tensor, targets_N: Tensor, host_N: Tensor, judge: JudgeChunk | None) -> tuple[Tensor, Tensor, Tensor]:
        """Give the loss sum, the losses and the predictions of positions; `host_N` are the targets on the CPU."""
        terms = _linear_terms(head)
        if terms is None:
            return _any_head(head, hidden_ND, targets_N, self._chunk or CHUNK)
        if not (terms.candidates and torch.is_grad_enabled()):
            return linear_cross_entropy(hidden_ND, terms, targets_N, self._chunk, judge)
        terms, places_N, ids = choose_candidates(terms, host_N)
        loss_sum, losses_N, predictions_N = linear_cross_entropy(hidden_ND, terms, places_N, self._chunk)
        return loss_sum, losses_N, ids[predictions_N]


def _linear_terms(head: nn.Module) -> LinearTerms | None:
    """Ask a head how it computes its logits; None = it doesn't say."""
    if hasattr(head, "linear_terms"):
        terms: LinearTerms = head.linear_terms()  # type: ignore[operator]
        return terms
    # not isinstance: a subclass (an adapter, say) computes something else
    return LinearTerms(head.weight) if type(head) is nn.Linear and head.bias is None else None


def _any_head(head: nn.Module, hidden_ND: Tensor, targets_N: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the cross-entropy of any head; its logits are computed again in the backward pass."""
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
