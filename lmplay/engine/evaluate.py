"""Validation: the loss and word accuracy of held-out samples, without gradients.  Engine floor."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..data.collate import MiniBatch
from ..data.continuation import Cutter, Piece
from ..data.samples import Sample
from ..device.runtime import Runtime
from ..objectives.next_token import next_token
from ..stats.accuracy import count_right
from ..stats.figures import SourceLoss
from ..tokenizer import Tokenizer
from .by_source import Sums


@dataclass(frozen=True)
class Example:
    """One piece as the model sees it."""

    prompt: str
    truth: str
    predicted: str


@dataclass(frozen=True)
class Evaluation:
    """What a validation says: raw values (see `stats.figures`), loss sum and tokens of each source where they are told apart, and the first piece."""

    sums: dict[str, float]
    by_source: Sums
    example: Example


def evaluate(raw: nn.Module, wrapped: nn.Module, runtime: Runtime, tokenizer: Tokenizer, cutter: Cutter, samples: Sequence[Sample],
             to_mini_batches: Callable[[Sequence[Piece]], list[MiniBatch]], interrupted: Callable[[], bool], names: Sequence[str] = ()) -> Evaluation | None:
    """Judge a model by samples.

    :param samples: held-out ones, at least one.
    :param to_mini_batches: makes of pieces what goes through the device at once.
    :param interrupted: asked before each mini-batch.
    :param names: of the sources, by the numbers in the samples, where they are to be told apart.
    :return: None when interrupted, else what was found; predictions are each token's given all the truth before it.
    """
    pieces = [piece for sample in samples for piece in cutter.cut(sample)]
    known = [sample.nats is not None for sample in samples]
    sums = {"steps": 1.0, "loss_sum": 0.0, "n_tokens": 0.0, "n_bytes": 0.0, "words_right": 0.0, "words": 0.0,
            "nats_sum": sum(sample.nats or 0.0 for sample in samples),
            "nats_tokens": float(sum(piece.n_truth for piece in pieces)) if all(known) else 0.0}
    by_source: Sums = {}
    example: Example | None = None
    was_training = raw.training
    raw.eval()
    try:
        with torch.no_grad():
            for mini_batch in to_mini_batches(pieces):
                if interrupted():
                    break
                there = mini_batch.to(runtime.device)
                with runtime.autocast():
                    result = next_token(wrapped, there.tokens, there.positions, there.targets, head=raw.get_submodule("head"), lengths=there.lengths)
                sums["loss_sum"] += float(result.loss_sum)
                sums["n_tokens"] += result.count
                losses, predictions = result.losses_N.cpu(), result.predictions_N.cpu().numpy()
                for number, where in there.rows:
                    piece = pieces[number]
                    add_words(sums, piece, predictions[where])
                    sums["n_bytes"] += len(piece.truth.encode("utf-8", "surrogatepass"))
                    if names:
                        _add_loss(by_source, names[piece.sample.source], float(losses[where].sum()), where.stop - where.start)
                    if number == 0:
                        example = Example(tokenizer.decode(piece.tokens[:piece.n_prompt].tolist()), piece.truth, tokenizer.decode(predictions[where].tolist()))
    finally:  # memory may have run out
        raw.train(was_training)
    # The first piece's example is missing, or some tokens are, when the loop was left early.
    return Evaluation(sums, by_source, example) if example is not None and sums["n_tokens"] == sum(piece.n_truth for piece in pieces) else None


def add_words(sums: dict[str, float], piece: Piece, predicted: np.ndarray) -> None:
    """Add a piece's words to sums.

    :param predicted: the token ids at the places of those to be learned.
    """
    truth = piece.tokens[piece.n_prompt:]
    right, all_words = count_right(piece.truth, piece.borders, predicted == (truth if piece.learned is None else truth[piece.learned]))
    sums["words_right"] = sums.get("words_right", 0.0) + right
    sums["words"] = sums.get("words", 0.0) + all_words


def _add_loss(by_source: Sums, name: str, loss_sum: float, n_tokens: int) -> None:
    """Add a piece's loss to its source."""
    before = by_source.get(name, SourceLoss(0.0, 0))
    by_source[name] = SourceLoss(before.loss_sum + loss_sum, before.n_tokens + n_tokens)
