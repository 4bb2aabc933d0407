"""The held-out samples of a stage: which a validation judges, and the lowest loss that they allow.  Engine floor, no torch.

Every validation of a stage judges the same samples, the first of the held-out ones, so that two validations differ by the model alone. The end of a stage
judges more of them in addition.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import accumulate, islice
from zlib import crc32

from ..cadence import VALIDATION_SHARE, VALIDATION_TOKEN
from ..data.continuation import Piece
from ..data.samples import Sample
from .run import OpenStage

# The end of a stage judges this many times the samples of a validation.
FINAL_FACTOR = 16
# But on average no more than this many characters each: whatever the tokenizer, the same samples. So do validations whose number of samples is the default.
MOST_CHARACTERS = 2000
# Where the number is the default, a stage has at least the work for 10 validations in 5 % of its own, a token that is only read counting as a third of one that
# is learned from (the backward pass takes twice as long as the forward pass), and no fewer than 4 samples.
_SHARE, _LEAST = VALIDATION_SHARE / VALIDATION_TOKEN / 10, 4
# With all samples, those that identify them, and from which the floor is worked out; without validation, the training samples that it is worked out from.
_FIRST = 64


class HeldOut:
    """Gives a stage's validations their samples, as units: the pieces of each."""

    def __init__(self, stage: OpenStage, prepare: Callable[[Sample], list[Piece]]):
        """
        :param prepare: makes the pieces of a sample.
        """
        self._stage, self._prepare = stage, prepare
        self._count = stage.settings.validation_samples
        count = self._count or _FIRST
        self._samples = list(_bounded(self._read(), count, MOST_CHARACTERS * count if stage.settings.validation_is_bounded else None))
        if stage.settings.validation_is_bounded:
            self._samples = self._samples[:self._affordable()]
        self._units = [pieces for sample in self._samples if (pieces := prepare(sample))]

    @property
    def is_there(self) -> bool:
        """Whether there is anything to judge a model by."""
        return bool(self._units)

    @property
    def n_samples(self) -> int | None:
        """The samples of a validation; None = all that are held out."""
        return None if self._count is None else len(self._units)

    @cached_property
    def n_tokens(self) -> int:
        """The tokens to be learned of a validation's samples."""
        return sum(piece.n_truth for unit in self.regular() for piece in unit)

    @property
    def identity(self) -> str:
        """What differs when validations judge other samples."""
        texts = "\n".join(sample.prompt + sample.truth for sample in self._samples)
        return f"{self.n_samples or 'all'}:{crc32(texts.encode('utf-8', 'surrogatepass')):08x}"

    def regular(self) -> Iterator[list[Piece]]:
        """Give what each validation judges."""
        return iter(self._units) if self._count is not None else filter(None, map(self._prepare, self._read()))

    def rest(self) -> Iterator[list[Piece]]:
        """Give what the end of the stage judges in addition: up to `FINAL_FACTOR` times as many samples, fewer where texts are long, or it would take longer
        than the stage."""
        if self._count is None:
            return iter(())
        count = FINAL_FACTOR * len(self._samples)
        more = islice(_bounded(self._read(), count, MOST_CHARACTERS * count), len(self._samples), None)
        return filter(None, map(self._prepare, more))

    def floors(self) -> dict[str, float | None]:
        """Work out the lowest loss that any model can reach, where the sources know it: on the samples of the validations; without, on training samples.

        :return: `floor_nats_per_token` and `floor_bits_per_byte`; None where unknown.
        """
        chosen = self._samples if self.is_there else islice(iter(self._stage.data.open_samples().next, None), _FIRST)
        samples, nats = [], 0.0
        for sample in chosen:
            if sample.nats is None:
                return {"floor_nats_per_token": None, "floor_bits_per_byte": None}
            samples.append(sample)
            nats += sample.nats
        tokens = sum(piece.n_truth for sample in samples for piece in self._prepare(sample))
        if not tokens:
            return {"floor_nats_per_token": None, "floor_bits_per_byte": None}
        n_bytes = sum(len(sample.truth.encode()) for sample in samples)
        return {"floor_nats_per_token": nats / tokens, "floor_bits_per_byte": nats / n_bytes / math.log(2)}

    def _affordable(self) -> int:
        """Count the samples for which the stage is long enough; all where its length is not known."""
        stage, data = self._stage.stage, self._stage.data
        if stage.tokens is not None:
            tokens = accumulate(sum(piece.n_truth for piece in self._prepare(sample)) for sample in self._samples)
            return max(_LEAST, sum(count <= _SHARE * stage.tokens for count in tokens))
        total = data.open_samples().total
        return len(self._samples) if total is None else max(_LEAST, int(_SHARE * total))

    def _read(self) -> Iterator[Sample]:
        """Read the held-out samples from the first on, each once."""
        stream, seen = self._stage.data.open_validation(), set()
        for sample in iter(stream.next, None) if stream is not None else ():
            if (key := (sample.source, sample.row)) not in seen:  # a weighted mix repeats the rows of its small sources
                seen.add(key)
                yield sample


def _bounded(samples: Iterator[Sample], count: int, most_characters: int | None) -> Iterator[Sample]:
    """Give the first samples, at least one, until these many characters are reached (None = however many)."""
    characters = 0
    for sample in islice(samples, count):
        yield sample
        characters += len(sample.truth)
        if most_characters is not None and characters >= most_characters:
            return
