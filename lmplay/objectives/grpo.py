"""GRPO: the model writes answers, and those with more reward than others to the same prompt become likelier.  Math floor.

Shapes: R answers, N their tokens.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.collate import MiniBatch, to_device
from ..data.judged import Judged
from ..data.preparing import cut_task
from ..stats.figures import REWARD, Figure
from .base import Objective, Result, Writing
from .losses import token_losses

# What is added to the deviation of a group's rewards, as in TRL.
_EPSILON = 1e-4


class Grpo(Objective):
    """Shao et al. 2024, "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", equations 3 and 4.

    Its losses differ in how the tokens of the answers are added up. `grpo` is the mean over the tokens of an answer, then over the answers. `dr_grpo` divides
    by the most tokens that an answer can have instead (Liu et al. 2025, "Understanding R1-Zero-Like Training: A Critical Perspective"), and its advantages are
    not divided by the deviation. `dapo` is the mean over the tokens of all answers (Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at
    Scale", equation 12, whose `clip_high` is 0.28). The divergence from the reference is left out by default, as both leave it out; Shao et al. have 0.04.
    It is weighted by the ratio, so that its gradient is that of the reverse divergence (DeepSeek-AI 2025, "DeepSeek-V3.2", section 3.1).

    In validation the model writes one answer to each prompt, always the most probable token, and the loss is the mean reward with a minus sign. Pieces that
    the model has not written (a stage that is only timed) count as answers with an advantage of 1.
    """

    loss_unit = REWARD
    writing: Writing

    def __init__(self, rewards: Sequence[Mapping[str, Any]] = ({"name": "exact"},), group: int = 8, answer_tokens: int | None = None, temperature: float = 1.0,
                 loss: str = "grpo", scale_rewards: bool | None = None, clip: float = 0.2, clip_high: float | None = None, kl: float = 0.0, updates: int = 1):
        """
        :param rewards: what answers are judged by, see :class:`.base.Writing`.
        :param group: answers to each prompt, at least 2.
        :param answer_tokens: the most tokens of an answer; None = half of the context.
        :param temperature: at which they are drawn; the probabilities of the loss are those at this temperature.
        :param loss: grpo, dr_grpo or dapo.
        :param scale_rewards: divide by the deviation of the group's rewards; None = unless the loss is dr_grpo.
        :param clip: how far below 1 the ratio of probabilities counts.
        :param clip_high: how far above 1; None = as far.
        :param kl: weight of the divergence from the model at the stage's start.
        :param updates: of the weights with each batch of answers; with one the ratio is 1, and nothing is clipped.
        """
        self.prepare = partial(cut_task, most_tokens=answer_tokens)
        self.writing = Writing(group, answer_tokens, temperature, rewards, updates, kl > 0)
        self._loss, self._kl = loss, kl
        self._scales = loss != "dr_grpo" if scale_rewards is None else scale_rewards
        self._clip, self._clip_high = clip, clip if clip_high is None else clip_high
        names = [str(reward["name"]).rpartition(":")[2] for reward in rewards]
        self._names = [name if names.count(name) == 1 else f"{name}_{number}" for number, name in enumerate(names, 1)]
        self.figures = tuple(self._figures())

    def advantages(self, rewards: Sequence[float]) -> tuple[list[float], float]:
        """See :class:`Objective`."""
        mean, deviation = fmean(rewards), stdev(rewards)
        divisor = deviation + _EPSILON if self._scales else 1.0
        return [(reward - mean) / divisor for reward in rewards], deviation

    def count(self, mini_batch: MiniBatch) -> float:
        """See :class:`Objective`; of `dapo` the tokens of the answers, else the answers."""
        return len(mini_batch.targets_N) if self._loss == "dapo" and not is_validation(mini_batch) else len(mini_batch.rows)

    def loss(self, model: nn.Module, mini_batch: MiniBatch, head: nn.Module) -> Result:
        """See :class:`Objective`."""
        device = mini_batch.targets_N.device
        lengths = lengths_of(mini_batch)
        judged = mini_batch.judged or [Judged((0.0,) * len(self._names), 0.0, length, False, 1.0, 0.0) for length in lengths]
        if is_validation(mini_batch):
            rewards_R, lengths_R = torch.tensor([one.reward for one in judged]), torch.tensor(lengths)
            losses_N = to_device(-(rewards_R / lengths_R).repeat_interleave(lengths_R), device)
            return Result(to_device(-rewards_R.sum(), device), losses_N, mini_batch.targets_N, _on(device, self._sums(judged, lengths)))
        losses_N, predictions_N = token_losses(model, mini_batch, cooled(head, self.writing.temperature))
        loss_sum, sums = self._policy(judged, lengths, -losses_N)
        return Result(loss_sum, losses_N.detach(), predictions_N, sums)

    def _policy(self, judged: Sequence[Judged], lengths: Sequence[int], log_probs_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Give the loss of answers, and the sums of the figures.

        :param lengths: the tokens of each answer.
        :param log_probs_N: by the model, of the tokens of all of them.
        """
        device = log_probs_N.device
        advantages_N = to_device(_spread([one.advantage or 0.0 for one in judged], lengths).to(log_probs_N.dtype), device)
        before_N = _joined([one.before for one in judged], log_probs_N)
        ratios_N = (log_probs_N - before_N).exp()
        clipped_N = ratios_N.clamp(1 - self._clip, 1 + self._clip_high)
        policy_N = -torch.minimum(ratios_N * advantages_N, clipped_N * advantages_N)
        sums = _on(device, self._sums(judged, lengths))
        sums["clipped_sum"] = (((ratios_N < 1 - self._clip) & (advantages_N < 0)) | ((ratios_N > 1 + self._clip_high) & (advantages_N > 0))).sum()
        if self._kl:
            added_N = _joined([one.reference for one in judged], log_probs_N) - log_probs_N
            divergences_N = added_N.exp() - added_N - 1  # Schulman 2020, "Approximating KL Divergence": k3
            policy_N = policy_N + self._kl * ratios_N * divergences_N
            sums["kl_sum"] = divergences_N.detach().sum()
        if self._loss != "dapo":
            divisors = lengths if self._loss == "grpo" else [one.limit for one in judged]
            policy_N = policy_N / to_device(_spread(divisors, lengths).to(policy_N.dtype), device)
        return policy_N.sum(), sums

    def _figures(self) -> list[Figure]:
        """List the figures: of several rewards each has one."""
        several = [Figure(f"reward_{name}", f"reward {name}", "mean", f"reward_{name}_sum", "answers", "", True) for name in self._names]
        divergence = Figure("kl", "divergence from the reference", "mean", "kl_sum", "answer_tokens_sum", "nats per token", validate=False)
        return [
            Figure("reward", "reward", "mean", "reward_sum", "answers", "", True, progress=True),
            *(several if len(several) > 1 else []),
            Figure("reward_deviation", "deviation of rewards in a group", "mean", "deviation_sum", "answers", "", validate=False),
            Figure("answer_tokens", "tokens of an answer", "mean", "answer_tokens_sum", "answers", "", progress=True),
            Figure("cut_share", "share of answers without an end", "mean", "cut_sum", "answers", "share", False),
            Figure("clipped_share", "share of clipped tokens", "mean", "clipped_sum", "answer_tokens_sum", "share", validate=False),
            *([divergence] if self._kl else []),
            Figure("writing_share", "share of time writing answers", "mean", "writing_seconds", "step_seconds", "share", validate=False, clock=True)]

    def _sums(self, judged: Sequence[Judged], lengths: Sequence[int]) -> dict[str, float]:
        """Add up what is known of answers before the model reads them."""
        several = {f"reward_{name}_sum": sum(one.rewards[number] for one in judged) for number, name in enumerate(self._names)} if len(self._names) > 1 else {}
        return {"reward_sum": sum(one.reward for one in judged), **several, "deviation_sum": sum(one.deviation or 0.0 for one in judged),
                "answer_tokens_sum": float(sum(lengths)), "cut_sum": float(sum(one.is_cut for one in judged)), "answers": float(len(judged))}


def lengths_of(mini_batch: MiniBatch) -> list[int]:
    """Count the tokens to be learned of each piece."""
    return [where.stop - where.start for _, where in mini_batch.rows]


def cooled(head: nn.Module, temperature: float) -> nn.Module:
    """Make a head whose logits are divided by a temperature."""
    return head if temperature == 1 else _Cooled(head, temperature)


class _Cooled(nn.Module):
    """See :func:`cooled`."""

    def __init__(self, head: nn.Module, temperature: float):
        super().__init__()
        self._head, self._temperature = head, temperature

    def forward(self, hidden: Tensor) -> Tensor:
        """Give the logits."""
        logits: Tensor = self._head(hidden)
        return logits / self._temperature


def is_validation(mini_batch: MiniBatch) -> bool:
    """Tell whether answers are only judged."""
    return mini_batch.judged is not None and mini_batch.judged[0].advantage is None


def _spread(values: Sequence[float], lengths: Sequence[int]) -> Tensor:
    """Repeat the value of each answer for its tokens (N,)."""
    return torch.from_numpy(np.repeat(np.array(values, dtype=np.float64), lengths))


def _joined(parts: Sequence[np.ndarray | None], like_N: Tensor) -> Tensor:
    """Join log-probabilities of answers; where one is not known, those of the model itself, without gradient."""
    known = [part for part in parts if part is not None]
    return to_device(torch.from_numpy(np.concatenate(known)).to(like_N.dtype), like_N.device) if len(known) == len(parts) else like_N.detach()


def _on(device: torch.device, sums: Mapping[str, float]) -> dict[str, Tensor]:
    """Make scalars of numbers, by one copy."""
    return dict(zip(sums, to_device(torch.tensor(list(map(float, sums.values()))), device).unbind(), strict=True))
