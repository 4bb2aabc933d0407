"""RLP: the model writes thoughts before predictions of plain text, and those that help most become likelier.  Math floor."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev

import numpy as np
import torch
from torch import nn

from ..data.collate import MiniBatch, to_device
from ..data.judged import Judged
from ..data.preparing import cut_thoughts
from ..stats.figures import NATS, Figure
from .base import Result, Thoughts
from .grpo import Grpo, cooled, is_validation, lengths_of
from .losses import token_losses


class Rlp(Grpo):
    """Hatamizadeh et al. 2025, "RLP: Reinforcement as a Pretraining Objective" (arXiv:2510.01265).

    In each piece of text there is one place where the model writes a group of thoughts. The reward of a thought is what it adds to the log-probability of the
    tokens that follow, mean over these tokens: with the thought by the model, less without a thought by the teacher, a running average of the weights. So
    there is no verifier, and any text will do. An advantage is the reward less the mean of the other thoughts of the group. The tokens of thoughts are
    learned by the clipped ratio of :class:`.grpo.Grpo`, mean over the tokens of a thought. With a `text_weight` the tokens behind thoughts are learned, too: so
    a model that has never read the marks learns to predict behind them. How the paper chooses places, the size of a group and the decay was not at hand: these
    defaults are ours, as is `text_weight`.

    In validation the model writes one thought at each place, always the most probable token, and the loss is the mean reward with a minus sign.
    """

    divides_samples = True

    def __init__(self, group: int = 8, thought_tokens: int | None = None, temperature: float = 1.0, horizon: int = 1, teacher_decay: float = 0.999,
                 thought_start: str = "<think>", thought_end: str = "</think>", text_weight: float = 0.0, clip: float = 0.2, clip_high: float | None = None,
                 updates: int = 1):
        """
        :param group: thoughts at each place, at least 2.
        :param thought_tokens: the most tokens of a thought; None = a quarter of the context.
        :param temperature: at which they are drawn; the probabilities of the loss are those at this temperature, those of the rewards not.
        :param horizon: the most tokens behind a thought that are predicted.
        :param teacher_decay: the share of the teacher's weights that it keeps in each step; see :attr:`lmplay.plan.settings.StageSettings.teacher_decay`.
        :param thought_start: what the model reads before a thought; a special token where the tokenizer has it.
        :param thought_end: what ends a thought.
        :param text_weight: weight of the cross-entropy of the tokens behind a thought, mean over them; 0 = they are not learned.
        :param clip: how far below 1 the ratio of probabilities counts.
        :param clip_high: how far above 1; None = as far.
        :param updates: of the weights with each batch of thoughts; with one the ratio is 1, and nothing is clipped.
        """
        super().__init__((), group, thought_tokens, temperature, "grpo", False, clip, clip_high, 0.0, updates)
        self.prepare = partial(cut_thoughts, most_tokens=thought_tokens, start=thought_start, end=thought_end, horizon=horizon)
        self.writing = replace(self.writing, thoughts=Thoughts(thought_start, thought_end, horizon, text_weight > 0))
        self._text_weight = text_weight

    def advantages(self, rewards: Sequence[float]) -> tuple[list[float], float]:
        """See :class:`.base.Objective`: what each is better by than the mean of the others, which does not depend on it."""
        mean, others = fmean(rewards), len(rewards) - 1
        return [(reward - mean) * len(rewards) / others for reward in rewards], stdev(rewards)

    def loss(self, model: nn.Module, mini_batch: MiniBatch, head: nn.Module) -> Result:
        """See :class:`.base.Objective`."""
        judged = mini_batch.judged
        if not self._text_weight or judged is None or is_validation(mini_batch):
            return super().loss(model, mini_batch, head)
        device, totals = mini_batch.targets_N.device, lengths_of(mini_batch)
        cooled_N, predictions_N = token_losses(model, mini_batch, cooled(head, self.writing.temperature))
        losses_N = cooled_N if self.writing.temperature == 1 else token_losses(model, mini_batch, head)[0]
        lengths = [total - one.n_ahead for total, one in zip(totals, judged, strict=True)]
        # of each piece first the tokens of the thought, then those behind it; the weight of a token makes means of sums
        is_thought_N = np.concatenate([np.arange(total) < length for total, length in zip(totals, lengths, strict=True)])
        shares_N = np.concatenate([(np.arange(total) >= total - one.n_ahead) / one.n_ahead for total, one in zip(totals, judged, strict=True)])
        places_N = to_device(torch.from_numpy(np.flatnonzero(is_thought_N)), device)
        known = [one if one.before is None else replace(one, before=one.before[:length]) for one, length in zip(judged, lengths, strict=True)]
        loss_sum, sums = self._policy(known, lengths, -cooled_N.index_select(0, places_N))
        text_sum = (losses_N * to_device(torch.from_numpy(shares_N).to(losses_N.dtype), device)).sum()
        return Result(loss_sum + self._text_weight * text_sum, losses_N.detach(), predictions_N, sums)

    def _figures(self) -> list[Figure]:
        """List the figures: those of :class:`.grpo.Grpo`, and what the rewards are made of."""
        own = [Figure("helpful_share", "share of thoughts that help", "mean", "helpful_sum", "answers", "share", True),
               Figure("loss_with_thought", "loss with a thought", "mean", "with_thought_sum", "answers", NATS, False),
               Figure("loss_of_teacher", "loss of the teacher, without a thought", "mean", "of_teacher_sum", "answers", NATS, False)]
        first, *others = (replace(figure, name="thought_tokens", title="tokens of a thought") if figure.name == "answer_tokens" else figure
                          for figure in super()._figures())
        return [first, *own, *others]

    def _sums(self, judged: Sequence[Judged], lengths: Sequence[int]) -> dict[str, float]:
        """Add up what is known of thoughts before the model reads them; `rewards` are both log-probabilities, the one of the teacher with a minus sign."""
        known = [one.rewards for one in judged if len(one.rewards) == 2]
        return {**super()._sums(judged, lengths), "helpful_sum": float(sum(one.reward > 0 for one in judged)),
                "with_thought_sum": -sum(own for own, _ in known), "of_teacher_sum": sum(other for _, other in known)}
