"""What is measured while a run goes on.  Stats floor, no torch."""
from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """How far a run is: optimizer steps, samples and tokens learned, and seconds of training."""

    step: int
    samples: int
    tokens: int
    seconds: float


class SourceLoss(NamedTuple):
    """What a source contributed to a step or validation: sum of the losses (nats) and tokens to be learned."""

    loss_sum: float
    n_tokens: float
