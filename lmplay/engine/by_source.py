"""Telling the sources of a stage apart in its statistics, where it has more than one.  Engine floor, no torch."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..data.batcher import Batch
from ..data.continuation import Piece
from ..data.stage import StageData
from ..stats.figures import SourceLoss
from ..stats.totals import ModelStats


class BySource:
    """Splits counts and losses of a stage by source; does nothing for a stage with one source."""

    def __init__(self, data: StageData, stats: ModelStats):
        """
        :param data: of the stage.
        :param stats: of the stage; count what each source gives.
        """
        several = len(data.sources) > 1
        self._stats = stats
        self._names = data.names if several else []
        self.validation_names = data.validation_names() if several else []
        if several:
            only_validated = dict.fromkeys(name for name in self.validation_names if name not in data.names)
            stats.begin_sources({**dict(zip(data.names, data.rows_per_epoch(), strict=True)), **only_validated})

    def count(self, batch: Batch) -> None:
        """Count samples and tokens of a step."""
        if self._names:
            samples = [sample.source for sample in batch.samples]
            for number, tokens in count_tokens(batch.pieces).items():
                self._stats.count_source(self._names[number], samples.count(number), tokens)

    def name(self, batch: Batch, loss_sums: Sequence[float]) -> dict[str, SourceLoss]:
        """Give loss sum and tokens of the sources in a batch; where pieces have weights, the tokens count by them.

        :param batch: the batch.
        :param loss_sums: by the number of the source; none for a stage with one source.
        """
        terms = count_terms(batch.pieces) if loss_sums else {}
        return {self._names[number]: SourceLoss(loss_sums[number], count) for number, count in terms.items() if count}


def count_tokens(pieces: Iterable[Piece]) -> dict[int, int]:
    """Count the tokens to be learned by the number of the source."""
    tokens: dict[int, int] = {}
    for piece in pieces:
        tokens[piece.sample.source] = tokens.get(piece.sample.source, 0) + piece.n_truth
    return tokens


def count_terms(pieces: Iterable[Piece]) -> dict[int, float]:
    """Count what losses by source are divided by, by the number of the source: tokens to be learned, each as often as its piece says."""
    terms: dict[int, float] = {}
    for piece in pieces:
        terms[piece.sample.source] = terms.get(piece.sample.source, 0.0) + piece.n_truth * (1.0 if piece.weight is None else piece.weight)
    return terms
