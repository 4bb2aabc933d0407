"""What objectives that learn from preference pairs have in common: the log-probabilities of both answers, and figures.  Math floor.

Shapes: P pairs, N truth tokens of their answers; of the 2 the first is the answer that is chosen, the second the one that is rejected.
"""
from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data.collate import MiniBatch, to_device
from ..data.preparing import cut_pair
from ..stats.figures import Figure
from .base import Objective, Result
from .losses import token_losses


class Answers(NamedTuple):
    """What is known of the answers of P pairs: their log-probabilities (nats, summed over the tokens), the same by the reference, and their tokens.

    `reference_P2` is None where there is no reference.
    """

    log_probs_P2: Tensor
    reference_P2: Tensor | None
    lengths_P2: Tensor

    @property
    def means_P2(self) -> Tensor:
        """The log-probabilities per token."""
        return self.log_probs_P2 / self.lengths_P2


class PreferenceObjective(Objective):
    """A loss of pairs; the loss of a batch is the mean over its pairs."""

    reads_pairs = True
    prepare = staticmethod(cut_pair)
    loss_unit = "per pair"
    figures = (
        Figure("preference_accuracy", "preference accuracy", "mean", "preferred", "pairs", "share", True, progress=True),
        Figure("margin", "margin of the rewards", "mean", "margin_sum", "pairs", "", True, progress=True),
        Figure("reward_chosen", "reward of chosen answers", "mean", "chosen_sum", "pairs", "", True),
        Figure("reward_rejected", "reward of rejected answers", "mean", "rejected_sum", "pairs", "", False),
    )

    def count(self, mini_batch: MiniBatch) -> float:
        """See :class:`Objective`; the number of pairs."""
        return len(mini_batch.rows) // 2

    def loss(self, model: nn.Module, mini_batch: MiniBatch, head: nn.Module) -> Result:
        """See :class:`Objective`."""
        losses_N, predictions_N = token_losses(model, mini_batch, head)
        answers = answers_of(losses_N, mini_batch)
        losses_P, rewards_P2 = self.judge(answers)
        chosen_P, rejected_P = rewards_P2.detach().unbind(1)
        figures = {"preferred": (chosen_P > rejected_P).sum(), "margin_sum": (chosen_P - rejected_P).sum(), "chosen_sum": chosen_P.sum(),
                   "rejected_sum": rejected_P.sum(), "pairs": losses_P.new_full((), len(losses_P))}
        return Result(losses_P.sum(), losses_N.detach(), predictions_N, figures)

    @abstractmethod
    def judge(self, answers: Answers) -> tuple[Tensor, Tensor]:
        """Give the losses of pairs (P,), differentiable, and the rewards of their answers (P, 2)."""


def answers_of(losses_N: Tensor, mini_batch: MiniBatch) -> Answers:
    """Add up the losses of the tokens of each answer."""
    lengths = [where.stop - where.start for _, where in mini_batch.rows]
    # not index_add: on a GPU its order is another each time
    log_probs_P2 = -torch.stack([part.sum() for part in losses_N.split(lengths)]).view(-1, 2)
    reference = mini_batch.reference_R
    device, dtype = log_probs_P2.device, log_probs_P2.dtype
    return Answers(log_probs_P2, None if reference is None else to_device(reference.to(dtype), device).view(-1, 2),
                   to_device(torch.tensor(lengths, dtype=dtype), device).view(-1, 2))


def smoothed(logits_P: Tensor, smoothing: float) -> Tensor:
    """Compute the cross-entropy of preferences of which a share is the wrong way round (Mitchell 2023, "A note on DPO with noisy preferences").

    :param logits_P: log-odds of the answer that is chosen.
    :param smoothing: the share, 0 to below 0.5.
    """
    return -functional.logsigmoid(logits_P) * (1 - smoothing) - functional.logsigmoid(-logits_P) * smoothing
