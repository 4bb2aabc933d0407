"""DPO: preference by what training has added to the log-probability of an answer.  Math floor."""
from __future__ import annotations

from torch import Tensor

from .preference import Answers, PreferenceObjective, smoothed


class Dpo(PreferenceObjective):
    """Rafailov et al. 2023, "Direct Preference Optimization", equation 7, and losses of the same kind.

    `hinge`: Zhao et al. 2023, "SLiC-HF". `ipo`: Azar et al. 2023, "A General Theoretical Paradigm to Understand Learning from Human Preferences", equation 17,
    with log-probabilities per token, as its authors recommend for answers of different lengths. Where the log-probabilities of the reference are not known
    (a stage that is only looked at), the model itself is the reference, as it is at the beginning.
    """

    needs_reference = True

    def __init__(self, loss: str = "sigmoid", beta: float = 0.1, label_smoothing: float = 0.0):
        """
        :param loss: sigmoid, ipo or hinge.
        :param beta: how near to the reference the model stays; of ipo the regularisation.
        :param label_smoothing: of sigmoid: share of the pairs that are taken to be the wrong way round.
        """
        self._loss, self._beta, self._smoothing = loss, beta, label_smoothing

    def judge(self, answers: Answers) -> tuple[Tensor, Tensor]:
        """See :class:`PreferenceObjective`."""
        reference_P2 = answers.log_probs_P2.detach() if answers.reference_P2 is None else answers.reference_P2
        added_P2 = answers.log_probs_P2 - reference_P2
        rewards_P2 = self._beta * added_P2
        margins_P = rewards_P2[:, 0] - rewards_P2[:, 1]
        if self._loss == "hinge":
            return (1 - margins_P).relu(), rewards_P2
        if self._loss == "ipo":
            means_P2 = added_P2 / answers.lengths_P2
            return (means_P2[:, 0] - means_P2[:, 1] - 1 / (2 * self._beta)).square(), rewards_P2
        return smoothed(margins_P, self._smoothing), rewards_P2
