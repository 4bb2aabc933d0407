"""Validation: the loss and word accuracy of held-out samples, without gradients.  Engine floor."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import torch

from ..data.collate import MiniBatch
from ..data.continuation import Piece
from ..data.samples import Sample
from ..device.model import DeviceModel
from ..objectives.base import Objective
from ..report.records import ValidationDone
from ..stats.accuracy import count_right
from ..stats.figures import SourceLoss
from ..tokenizer import Tokenizer


@dataclass(frozen=True)
class Evaluation:
    """What a validation says: sums by the names of :mod:`lmplay.stats.figures`, those of each source in a stage with several, and the first piece."""

    sums: dict[str, float]
    by_source: dict[str, SourceLoss]
    example: tuple[str, str, str]
    """Its prompt, truth and what was predicted."""


def evaluate(model: DeviceModel, objective: Objective, tokenizer: Tokenizer, samples: Sequence[Sample], prepare: Callable[[Sample], list[Piece]],
             to_mini_batches: Callable[[Sequence[Piece]], list[MiniBatch]], interrupted: Callable[[], bool], names: Sequence[str] = ()) -> Evaluation | None:
    """Judge a model by held-out samples, at least one.

    :param prepare: makes the pieces of a sample.
    :param to_mini_batches: makes of pieces what goes through the device at once.
    :param interrupted: asked before each mini-batch.
    :param names: of the sources, by the numbers in the samples; none = losses are not wanted by source.
    :return: None when interrupted; predictions are each token's given all the truth before it.
    """
    pieces = [piece for sample in samples for piece in prepare(sample)]
    sums = {"steps": 1.0, "loss_sum": 0.0, "n_tokens": 0.0, "n_bytes": 0.0, "words_right": 0.0, "words": 0.0,
            "nats_sum": sum(sample.nats or 0.0 for sample in samples),
            "nats_tokens": float(sum(piece.n_truth for piece in pieces)) if all(sample.nats is not None for sample in samples) else 0.0}
    by_source: dict[str, SourceLoss] = {}
    example: tuple[str, str, str] | None = None
    was_training = model.raw.training
    model.raw.eval()
    try:
        with torch.no_grad():
            for mini_batch in to_mini_batches(pieces):
                if interrupted():
                    return None
                mini_batch = mini_batch.to(model.runtime.device)
                with model.runtime.autocast():
                    result = objective.loss(model.wrapped, mini_batch, model.head)
                sums["loss_sum"] += float(result.loss_sum)
                sums["n_tokens"] += objective.count(mini_batch)
                for name, value in result.figures.items():
                    sums[name] = sums.get(name, 0.0) + float(value)
                losses, predictions = result.losses_N.cpu(), result.predictions_N.cpu().numpy()
                for number, where in mini_batch.rows:
                    piece = pieces[number]
                    add_words(sums, piece, predictions[where])
                    sums["n_bytes"] += len(piece.truth.encode("utf-8", "surrogatepass"))
                    if names:
                        _add_loss(by_source, names[piece.sample.source], float(losses[where].sum()), where.stop - where.start)
                    if number == 0:
                        example = (tokenizer.decode(piece.tokens[:piece.n_prompt].tolist()), piece.truth, tokenizer.decode(predictions[where].tolist()))
    finally:  # memory may have run out
        model.raw.train(was_training)
    return Evaluation(sums, by_source, example) if example is not None else None


def add_words(sums: dict[str, float], piece: Piece, predicted: np.ndarray) -> None:
    """Add a piece's words to sums.

    :param predicted: the token ids at the positions of those to be learned.
    """
    truth = piece.tokens[piece.n_prompt:]
    right, all_words = count_right(piece.truth, piece.borders, predicted == (truth if piece.learned is None else truth[piece.learned]))
    sums["words_right"] = sums.get("words_right", 0.0) + right
    sums["words"] = sums.get("words", 0.0) + all_words


def _add_loss(by_source: dict[str, SourceLoss], name: str, loss_sum: float, n_tokens: int) -> None:
    """Add a piece's loss to its source."""
    before = by_source.get(name, SourceLoss(0.0, 0))
    by_source[name] = SourceLoss(before.loss_sum + loss_sum, before.n_tokens + n_tokens)


def validation_done(found: Evaluation, final: bool) -> ValidationDone:
    """Say what a validation found."""
    sums = found.sums
    loss = sums["loss_sum"] / sums["n_tokens"]
    return ValidationDone(final, loss, sums["loss_sum"] / sums["n_bytes"] / log(2) if sums["n_bytes"] else None,
                          sums["words_right"] / sums["words"] if sums["words"] else 0.0,
                          sums["nats_sum"] / sums["nats_tokens"] if sums["nats_tokens"] else None, *found.example)
