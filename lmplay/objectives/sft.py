"""Supervised fine-tuning: the next token of the answers, each token or each sample counting alike.  Math floor."""
from __future__ import annotations

from torch import nn

from ..data.collate import MiniBatch, to_device
from ..data.preparing import cut_weighed
from .base import Result
from .losses import token_losses
from .next_token import NextToken


class Sft(NextToken):
    """Cross-entropy of the truth.

    By token it is next-token prediction: a long answer counts more than a short one. By sample the loss is the mean over the tokens of each sample, all its
    answers and pieces together, and the mean of these over the samples. What a head has to say about later tokens is then left out.
    """

    def __init__(self, per: str = "token"):
        """
        :param per: token or sample.
        """
        super().__init__()
        if per == "sample":
            self.prepare = cut_weighed
            self.loss_unit = "nats per token, samples alike"

    def count(self, mini_batch: MiniBatch) -> float:
        """See :class:`Objective`; by sample the number of samples, one that is in several batches counting in parts."""
        return super().count(mini_batch) if mini_batch.weights_N is None else float(mini_batch.weights_N.sum())

    def loss(self, model: nn.Module, mini_batch: MiniBatch, head: nn.Module) -> Result:
        """See :class:`Objective`."""
        if mini_batch.weights_N is None:
            return super().loss(model, mini_batch, head)
        losses_N, predictions_N = token_losses(model, mini_batch, head)
        weights_N = to_device(mini_batch.weights_N.to(losses_N.dtype), losses_N.device)
        return Result((losses_N * weights_N).sum(), losses_N.detach(), predictions_N)
