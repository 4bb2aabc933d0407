"""Distillation: the next token, mixed with what another model, the teacher, thinks of it.  Math floor.

Shapes: N positions whose next token is truth, C of them in a chunk, D width, V vocabulary, K tokens that the teacher thinks likeliest.
"""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..data.collate import MiniBatch, Taught
from ..stats.figures import Figure
from .base import Objective, Result, Teaching, add_gradient
from .losses import CHUNK, hidden_states


class Distill(Objective):
    """Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network": (1 - weight) times the cross-entropy of the truth, plus weight · T² times
    the divergence KL(teacher ‖ model), both at the temperature T. T² keeps the size of the gradient.

    Of the teacher the K likeliest tokens of each position are known. All other tokens are one bucket: its probability is what the K leave over, both of the
    teacher and of the model. So the divergence is that of two distributions over K + 1 outcomes. It is never below 0, at most the divergence over all tokens,
    and equal to it where K is the whole vocabulary.

    What is reported as the loss is the cross-entropy of the truth, so that it compares with that of any other stage. What a head predicts of later tokens, its
    z-loss and its sampled tokens are left out. Where nothing is known of a teacher (a stage that is only timed), the model itself is the teacher.
    """

    divides_samples = True
    figures = (
        Figure("teacher_kl", "divergence from the teacher", "mean", "teacher_kl_sum", "taught", "nats per token", False, progress=True),
        Figure("teacher_agreement", "share of tokens on which model and teacher agree", "mean", "agreed", "taught", "share", True, progress=True),
        Figure("teacher_loss", "loss of the teacher", "mean", "teacher_loss_sum", "taught", "nats per token"),
    )
    teaching: Teaching

    def __init__(self, teacher: str, top_k: int = 32, temperature: float = 1.0, weight: float = 0.5, chunk: int = CHUNK):
        """
        :param teacher: names it, see :class:`.base.Teaching`.
        :param top_k: K.
        :param temperature: divides the logits of both.
        :param weight: from above 0 to 1.
        :param chunk: positions whose logits are held at once.
        """
        self.teaching = Teaching(teacher, top_k, temperature)
        self._weight, self._chunk = weight, chunk

    def loss(self, model: nn.Module, mini_batch: MiniBatch, head: nn.Module) -> Result:
        """See :class:`Objective`; the head is applied at the truth positions only, a chunk at a time, and again in the backward pass."""
        hidden, taught = hidden_states(model, mini_batch).split(self._chunk), mini_batch.taught  # with no position there is an empty chunk
        known = [None] * len(hidden) if taught is None else [Taught(*parts) for parts in zip(*(part.split(self._chunk) for part in taught), strict=True)]
        chunks = zip(hidden, mini_batch.targets_N.split(self._chunk), known, strict=True)
        judged = [checkpoint(self._judge, head, *chunk, use_reentrant=False) for chunk in chunks]
        losses_N, divergences_N, predictions_N, agreed_N, teacher_N = (torch.cat(parts) for parts in zip(*judged, strict=True))
        temperature = self.teaching.temperature
        minimised = (1 - self._weight) * losses_N.sum() + self._weight * temperature ** 2 * divergences_N.sum()
        figures = {"teacher_kl_sum": divergences_N.detach().sum(), "agreed": agreed_N.sum(), "teacher_loss_sum": teacher_N.sum(),
                   "taught": losses_N.new_full((), float(len(losses_N)))}
        return Result(add_gradient(losses_N.detach().sum(), minimised), losses_N.detach(), predictions_N, figures)

    def _judge(self, head: nn.Module, hidden_CD: Tensor, targets_C: Tensor, taught: Taught | None) -> tuple[Tensor, ...]:
        """Give losses, divergences, predictions, whether the teacher has the same ones, and the teacher's losses, of one chunk."""
        logits_CV = head(hidden_CD)
        logits_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
        if taught is None:
            taught = ask(logits_CV.detach(), targets_C, self.teaching)
        scaled_CV = logits_CV / self.teaching.temperature
        divergences_C = _divergences(taught.log_probs_CR[:, :-1].to(scaled_CV), _parts(scaled_CV, taught.ids_CK))
        predictions_C = logits_CV.detach().argmax(1)
        return (functional.cross_entropy(logits_CV, targets_C, reduction="none"), divergences_C, predictions_C, predictions_C == taught.ids_CK[:, 0],
                -taught.log_probs_CR[:, -1].to(scaled_CV))


def ask(logits_CV: Tensor, targets_C: Tensor, teaching: Teaching) -> Taught:
    """Say what a teacher thinks of positions.

    :param logits_CV: its own, at least float32.
    :param targets_C: the truth.
    """
    scaled_CV = logits_CV / teaching.temperature
    ids_CK = scaled_CV.topk(min(teaching.top_k, scaled_CV.shape[1])).indices
    truth_C1 = -functional.cross_entropy(logits_CV, targets_C, reduction="none")[:, None]
    return Taught(ids_CK, torch.cat([_parts(scaled_CV, ids_CK), truth_C1], 1))


def _parts(scaled_CV: Tensor, ids_CK: Tensor) -> Tensor:
    """Give the log-probabilities of K tokens and of all others together (C, K + 1); minus infinity where there are no others."""
    chosen_CK = scaled_CV.gather(1, ids_CK)
    if ids_CK.shape[1] == scaled_CV.shape[1]:  # the gradient of the logarithm of an empty sum would be no number
        others_C1 = scaled_CV.new_full((len(scaled_CV), 1), -torch.inf)
    else:
        others_C1 = scaled_CV.scatter(1, ids_CK, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat([chosen_CK, others_C1], 1) - scaled_CV.logsumexp(1, keepdim=True)


def _divergences(teacher_CP: Tensor, model_CP: Tensor) -> Tensor:
    """Compute KL(teacher ‖ model) of log-probabilities (C,); what is impossible for the teacher adds nothing."""
    possible = teacher_CP > -torch.inf
    terms_CP = teacher_CP.exp() * (teacher_CP.masked_fill(~possible, 0) - model_CP.masked_fill(~possible, 0))
    return terms_CP.sum(1)
