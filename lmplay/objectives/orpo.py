"""ORPO: the chosen answers are learned, and their odds against the rejected ones, without a reference.  Math floor."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .preference import Answers, PreferenceObjective


class Orpo(PreferenceObjective):
    """Hong, Lee and Thorne 2024, "ORPO: Monolithic Preference Optimization without Reference Model", equations 6 and 7.

    The cross-entropy is that of the chosen answer per token, without the prompt.
    """

    def __init__(self, beta: float = 0.1):
        """
        :param beta: weight of the odds ratio beside the cross-entropy (the paper's lambda).
        """
        self._beta = beta

    def judge(self, answers: Answers) -> tuple[Tensor, Tensor]:
        """See :class:`PreferenceObjective`."""
        means_P2 = answers.means_P2
        log_odds_P2 = means_P2 - _log_of_rest(means_P2)
        losses_P = -means_P2[:, 0] - self._beta * functional.logsigmoid(log_odds_P2[:, 0] - log_odds_P2[:, 1])
        return losses_P, self._beta * means_P2


def _log_of_rest(log_probs: Tensor) -> Tensor:
    """Compute log(1 - exp(x)) for x below 0, without a loss of digits near either end (Maechler 2012, "Accurately Computing log(1 - exp(-|a|))")."""
    below = log_probs.clamp(max=-torch.finfo(log_probs.dtype).tiny)
    near = below > -0.6931471805599453
    # of the branch that is not taken neither value nor gradient may be infinite
    return torch.where(near, torch.log(-torch.expm1(torch.where(near, below, -0.5))), torch.log1p(-torch.exp(torch.where(near, -1.0, below))))
