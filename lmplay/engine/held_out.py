"""The held-out samples of a stage: which a validation takes, and the lowest loss that they allow.  Engine floor, no torch."""
from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate, islice

from ..data.continuation import Piece
from ..data.samples import Sample
from ..data.stream import SampleStream
from ..errors import UserError
from .run import OpenStage

# The validation that ends a stage takes this many times the samples of the others, from the first held-out row on: the same for every run.
FINAL_FACTOR = 16
# But on average no more than this many characters each: whatever the tokenizer, the same samples.
FINAL_CHARACTERS = 2000
# Samples from which the floor of a stage is worked out.
_FLOOR_SAMPLES = 32


class HeldOut:
    """Gives a stage's validations their samples, from where its state says."""

    def __init__(self, stage: OpenStage, prepare: Callable[[Sample], list[Piece]]):
        """
        :param prepare: makes the pieces of a sample.
        """
        self._stage, self._prepare = stage, prepare
        self.n_samples, self.n_tokens = self._count()  # of the first validation
        self.is_there = self.n_tokens > 0
        self._stream = stage.data.open_validation() if self.is_there else None
        if self._stream is not None and stage.state.validation_position is not None:
            self._stream.restore(stage.state.validation_position)

    def regular(self) -> list[Sample]:
        """Take the samples of the next regular validation, cyclically; :meth:`settle` stores the position after them."""
        return _take(self._stream, self._stage.settings.validation_samples) if self._stream is not None else []

    def settle(self) -> None:
        """Store the position after the samples that were taken."""
        if self._stream is not None:
            self._stage.state.validation_position = self._stream.state()

    def final(self) -> list[Sample]:
        """Take the samples of the validation that ends the stage: fewer where texts are long, or it would take longer than the stage."""
        stream = self._stage.data.open_validation() if self.is_there else None
        if stream is None:
            return []
        samples = _take(stream, FINAL_FACTOR * self._stage.settings.validation_samples)
        lengths = accumulate(len(sample.truth) for sample in samples)
        most = FINAL_CHARACTERS * len(samples)
        return samples[:1 + sum(length < most for length in lengths)]

    def floors(self) -> dict[str, float | None]:
        """Work out the lowest loss that any model can reach, where the sources know it.

        :return: `floor_nats_per_token` and `floor_bits_per_byte`; None where unknown.
        """
        stream = (self._stage.data.open_validation() if self.is_there else None) or self._stage.data.open_samples()
        first = stream.next()
        samples = [first, *_take(stream, _FLOOR_SAMPLES - 1)] if first is not None and first.nats is not None else []
        if not samples or any(sample.nats is None for sample in samples):
            return {"floor_nats_per_token": None, "floor_bits_per_byte": None}
        nats = sum(sample.nats or 0.0 for sample in samples)
        tokens = sum(piece.n_truth for sample in samples for piece in self._prepare(sample))
        n_bytes = sum(len(sample.truth.encode()) for sample in samples)
        return {"floor_nats_per_token": nats / tokens, "floor_bits_per_byte": nats / n_bytes / math.log(2)}

    def _count(self) -> tuple[int, int]:
        """Count the samples of the first validation, and the tokens that they have to learn."""
        stream = self._stage.data.open_validation()
        try:
            samples = _take(stream, self._stage.settings.validation_samples) if stream is not None else []
            return len(samples), sum(piece.n_truth for sample in samples for piece in self._prepare(sample))
        except UserError:
            return 0, 0


def _take(stream: SampleStream, count: int) -> list[Sample]:
    """Take samples for a validation, no row twice."""
    most = stream.rows_per_epoch
    return list(islice(iter(stream.next, None), count if most is None else min(count, most)))
