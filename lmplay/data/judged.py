"""What is known of an answer that the model has written.  Data floor, no torch."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Judged:
    """Rewards of an answer, and what an objective has made of them.

    `rewards` are those of the plan in order, `reward` is their weighted sum. `advantage` is what it is better by than the others of its group, and `deviation`
    that of the group's rewards; both None for an answer that is judged and not learned from. `limit` is the most tokens that it could have, and `is_cut` says
    that it was not at its end there. Of its N tokens, `before` are the log-probabilities by the model that has written it and `reference` those by the model at
    the stage's start, both (N,), None where the objective does not need them. `between` is what stands before and behind a thought, as
    texts, and `behind` the tokens that are read behind it: its mark, unless it has written that, and those that it is judged by, the last `n_ahead` of them.
    """

    rewards: tuple[float, ...]
    reward: float
    limit: int
    is_cut: bool
    advantage: float | None = None
    deviation: float | None = None
    before: np.ndarray | None = None
    reference: np.ndarray | None = None
    between: tuple[str, str] | None = None
    behind: np.ndarray | None = None
    n_ahead: int = 0
