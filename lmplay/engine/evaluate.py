"""Validation: the loss and word accuracy of held-out samples, without gradients.  Engine floor."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..data.collate import collate
from ..data.continuation import Cutter, Piece
from ..data.samples import Sample
from ..objective import next_token
from ..stats.accuracy import count_right
from ..tokenizer import Tokenizer
from .runtime import Runtime


@dataclass(frozen=True)
class Example:
    """One piece as the model sees it."""

    prompt: str
    truth: str
    predicted: str


def evaluate(raw: nn.Module, wrapped: nn.Module, runtime: Runtime, tokenizer: Tokenizer, cutter: Cutter, samples: Sequence[Sample],
             mini_batch_size: int, interrupted: Callable[[], bool]) -> tuple[dict[str, float], Example] | None:
    """Judge a model by samples.

    :param samples: held-out ones, at least one.
    :param mini_batch_size: pieces at once on the device.
    :param interrupted: asked before each mini-batch.
    :return: None when interrupted, else sums (see `stats.modelstats`) and the first piece as an example; predictions are each
        token's given all the truth before it.
    """
    pieces = [piece for sample in samples for piece in cutter.cut(sample)]
    known = [sample.nats is not None for sample in samples]
    sums = {"steps": 1.0, "loss_sum": 0.0, "n_tokens": 0.0, "n_bytes": 0.0, "words_right": 0.0, "words": 0.0,
            "nats_sum": sum(sample.nats or 0.0 for sample in samples),
            "nats_tokens": float(sum(piece.n_truth for piece in pieces)) if all(known) else 0.0}
    example: Example | None = None
    was_training = raw.training
    raw.eval()
    with torch.no_grad():
        for mini_batch in collate(pieces, mini_batch_size, runtime.length_multiple, cutter.context_len - 1):
            if interrupted():
                break
            there = mini_batch.to(runtime.device)
            with runtime.autocast():
                result = next_token(wrapped, there.tokens, there.positions, there.targets, head=raw.get_submodule("head"))
            sums["loss_sum"] += float(result.loss_sum)
            sums["n_tokens"] += result.count
            predictions = result.predictions_N.cpu()
            for number, where in there.rows:
                predicted = tokenizer.decode(predictions[where].tolist())
                add_words(sums, pieces[number], predicted)
                sums["n_bytes"] += len(pieces[number].truth.encode("utf-8", "surrogatepass"))
                if number == 0:
                    example = Example(tokenizer.decode(pieces[0].tokens[:pieces[0].n_prompt].tolist()), pieces[0].truth, predicted)
    raw.train(was_training)
    # The first piece's example is missing, or some tokens are, when the loop was left early.
    return (sums, example) if example is not None and sums["n_tokens"] == sum(piece.n_truth for piece in pieces) else None


def add_words(sums: dict[str, float], piece: Piece, predicted: str) -> None:
    """Add a piece's words to sums."""
    right, all_words = count_right(piece.truth, predicted)
    sums["words_right"] = sums.get("words_right", 0.0) + right
    sums["words"] = sums.get("words", 0.0) + all_words
