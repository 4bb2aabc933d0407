"""SimPO: preference by the mean log-probability of a token, without a reference.  Math floor."""
from __future__ import annotations

from torch import Tensor

from .preference import Answers, PreferenceObjective, smoothed


class SimPo(PreferenceObjective):
    """Meng et al. 2024, "SimPO: Simple Preference Optimization with a Reference-Free Reward", equation 6; the defaults are near theirs."""

    def __init__(self, beta: float = 2.0, gamma: float = 1.0, label_smoothing: float = 0.0):
        """
        :param beta: factor of the rewards.
        :param gamma: the margin that the rewards shall have.
        :param label_smoothing: share of the pairs that are taken to be the wrong way round.
        """
        self._beta, self._gamma, self._smoothing = beta, gamma, label_smoothing

    def judge(self, answers: Answers) -> tuple[Tensor, Tensor]:
        """See :class:`PreferenceObjective`."""
        rewards_P2 = self._beta * answers.means_P2
        return smoothed(rewards_P2[:, 0] - rewards_P2[:, 1] - self._gamma, self._smoothing), rewards_P2
