"""The held-out samples of a stage: which a validation judges, and the lowest loss that they allow.  Engine floor, no torch.

Every validation of a stage judges the same samples, the first of the held-out ones, so that two validations differ by the model alone. The end of a stage
judges more of them in addition.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import accumulate, chain, islice
from statistics import fmean
from zlib import crc32

from ..cadence import VALIDATION_SHARE, VALIDATION_TOKEN
from ..data.continuation import Piece
from ..data.samples import Sample
from ..stats.figures import NATS
from .run import OpenStage

# The end of a stage judges this many times the samples of a validation.
FINAL_FACTOR = 16
# But on average no more than this many characters each: whatever the tokenizer, the same samples. So do validations whose number of samples is the default.
MOST_CHARACTERS = 2000
# Where the number is the default, 5 % of the stage's work are enough for 10 validations (11, as each comes at the end of a step), a token that is only read
# counting as a third of one that is learned from (the backward pass takes twice as long as the forward pass). So of long samples the first pieces are
# judged, and there are fewer samples, but 4, where that is still too much.
_SHARE, _LEAST = VALIDATION_SHARE / VALIDATION_TOKEN / 11, 4
# With all samples, those that identify them, and from which the floor is worked out; without validation, the training samples that it is worked out from.
_FIRST = 64


class HeldOut:
    """Gives a stage's validations their samples, as units: the pieces of each."""

    def __init__(self, stage: OpenStage, prepare: Callable[[Sample], list[Piece]]):
        """
        :param prepare: makes the pieces of a sample.
        """
        self._stage, self._prepare = stage, prepare
        writing = stage.objective.writing
        self._thought = None if writing is None or writing.thoughts is None else writing.limit(stage.settings.context_len)
        self._count = stage.settings.validation_samples
        count, bounded = self._count or _FIRST, stage.settings.validation_is_bounded
        samples = list(_bounded(self._read(), count, MOST_CHARACTERS * count if bounded else None))
        read = [(number, pieces) for number, sample in enumerate(samples, 1) if (pieces := prepare(sample))]
        self._whole = [pieces for _, pieces in read]
        self.expected = self._expect()
        self._units = self._affordable() if bounded else self._whole
        self._samples = samples[:read[len(self._units) - 1][0]] if read else samples

    @property
    def is_there(self) -> bool:
        """Whether there is anything to judge a model by."""
        return bool(self._units)

    @property
    def n_samples(self) -> int | None:
        """The samples of a validation; None = all that are held out."""
        return None if self._count is None else len(self._units)

    @property
    def judges_parts(self) -> bool:
        """Whether a validation judges no more than the first pieces of some samples."""
        return any(not unit[-1].last for unit in self._units)

    @cached_property
    def n_tokens(self) -> int:
        """The tokens to be learned of a validation's samples."""
        return sum(map(self._tokens_of, chain.from_iterable(self.regular())))

    @property
    def identity(self) -> str:
        """What differs when validations judge other samples."""
        texts = "\n".join(map(identify, self._units))
        return f"{self.n_samples or 'all'}:{crc32(texts.encode('utf-8', 'surrogatepass')):08x}"

    def regular(self) -> Iterator[list[Piece]]:
        """Give what each validation judges."""
        return iter(self._units) if self._count is not None else filter(None, map(self._prepare, self._read()))

    def rest(self) -> Iterator[list[Piece]]:
        """Give what the end of the stage judges in addition: up to `FINAL_FACTOR` times as many samples, fewer where texts are long, and where validations
        judge parts of samples, those samples as a whole."""
        if self._count is None:
            return iter(())
        count = FINAL_FACTOR * len(self._samples)
        more = islice(_bounded(self._read(), count, MOST_CHARACTERS * count), len(self._samples), None)
        return chain(self._whole[:len(self._units)] if self.judges_parts else (), filter(None, map(self._prepare, more)))

    def floors(self) -> dict[str, float | None]:
        """Work out the lowest loss that any model can reach, where the sources know it: on the samples of the validations; without, on training samples.

        :return: `floor_nats_per_token` and `floor_bits_per_byte`; None where unknown, and where the loss of the stage is another.
        """
        unknown: dict[str, float | None] = {"floor_nats_per_token": None, "floor_bits_per_byte": None}
        if self._stage.objective.loss_unit != NATS:
            return unknown
        chosen = self._samples if self.is_there else islice(iter(self._stage.data.open_samples().next, None), _FIRST)
        samples, nats = [], 0.0
        for sample in chosen:
            if sample.nats is None:
                return unknown
            samples.append(sample)
            nats += sample.nats
        tokens = sum(piece.n_truth for sample in samples for piece in self._prepare(sample))
        if not tokens:
            return unknown
        n_bytes = sum(len(sample.truth.encode()) for sample in samples)
        return {"floor_nats_per_token": nats / tokens, "floor_bits_per_byte": nats / n_bytes / math.log(2)}

    def _expect(self) -> dict[str, float]:
        """Estimate how many samples, tokens and steps the stage has, where its length is known: a training sample is about as long as a held-out one."""
        stage, units = self._stage.stage, self._whole
        if not units:
            return {}
        tokens = fmean(map(self._count_tokens, units))
        batches = fmean(len(unit) for unit in units) / self._stage.settings.at_mean(stage.steps is not None).batch_size  # a sample's share of a batch
        total = self._stage.data.open_samples().total
        if total is None and stage.tokens is None and stage.steps is None:
            return {}
        samples = total if total is not None else stage.tokens / tokens if stage.tokens is not None else (stage.steps or 0) / batches
        return {"samples": samples, "tokens": stage.tokens if stage.tokens is not None else samples * tokens,
                "steps": stage.steps if stage.steps is not None else math.ceil(samples * batches)}

    def _affordable(self) -> list[list[Piece]]:
        """Choose what a validation judges, where that is not said: of long samples the first pieces, unless the floor of the whole text is known."""
        most = _SHARE * self.expected.get("tokens", math.inf)
        if sum(map(self._count_tokens, self._whole)) <= most:
            return self._whole
        share = most / len(self._whole)
        units = [unit if unit[0].sample.nats is not None or unit[0].preferred is not None else
                 unit[:max(1, sum(tokens <= share for tokens in accumulate(map(self._tokens_of, unit))))] for unit in self._whole]
        return units[:max(_LEAST, sum(tokens <= most for tokens in accumulate(map(self._count_tokens, units))))]

    def _tokens_of(self, piece: Piece) -> int:
        """Count the tokens to be learned of a piece, or of the thought that the model will write in it."""
        return piece.n_truth if self._thought is None else self._thought

    def _count_tokens(self, unit: list[Piece]) -> int:
        """Count those of a sample."""
        return sum(map(self._tokens_of, unit))

    def _read(self) -> Iterator[Sample]:
        """Read the held-out samples from the first on, each once."""
        stream, seen = self._stage.data.open_validation(), set()
        for sample in iter(stream.next, None) if stream is not None else ():
            if (key := (sample.source, sample.row)) not in seen:  # a weighted mix repeats the rows of its small sources
                seen.add(key)
                yield sample


def identify(unit: list[Piece]) -> str:
    """Give a text by which two runs know that they have judged the same: the sample, and which part of it, if not all."""
    sample = unit[0].sample
    part = "" if unit[-1].last else f"\n{sum(len(piece.truth) for piece in unit)}"
    other = "" if sample.rejected is None else f"\n{sample.rejected.truth}"
    return f"{sample.prompt}\n{sample.truth}{other}{part}"


def _bounded(samples: Iterator[Sample], count: int, most_characters: int | None) -> Iterator[Sample]:
    """Give the first samples, at least one, until these many characters are reached (None = however many)."""
    characters = 0
    for sample in islice(samples, count):
        yield sample
        characters += len(sample.truth)
        if most_characters is not None and characters >= most_characters:
            return
