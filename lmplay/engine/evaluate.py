"""Evaluation: the loss and word accuracy of samples that are not trained on, without gradients.  Engine floor."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import log
from zlib import crc32

import numpy as np
import torch
from torch import nn

from ..data.collate import MiniBatch
from ..data.continuation import Piece
from ..device.arrival import Arrival
from ..device.model import DeviceModel
from ..objectives.base import Objective
from ..objectives.losses import token_losses
from ..report.records import ValidationDone
from ..stats.accuracy import count_edits, count_right
from ..stats.figures import BY_NAME, SPREAD, SampleLoss, SourceLoss, values
from ..tokenizer import Tokenizer
from .accord import Accord
from .held_out import identify

# Samples whose pieces are held, and sorted by length, at once.
_AT_ONCE = 256


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation says: sums by the names of :mod:`lmplay.stats.figures`, those of each source in a stage with several, the loss of each sample, and
    the first piece."""

    sums: dict[str, float]
    by_source: dict[str, SourceLoss]
    samples: list[SampleLoss]
    example: tuple[str, str, str]
    """Its prompt, truth and what was predicted."""

    @property
    def loss(self) -> float:
        """In nats per token."""
        return self.sums["loss_sum"] / self.sums["n_tokens"]

    def plus(self, other: Evaluation | None) -> Evaluation:
        """Give the evaluation of these samples and others (None = there are none), by the same model."""
        if other is None:
            return self
        sums = {**_add(self.sums, other.sums), "steps": 1.0}
        if "judged" not in other.sums or "judged" not in self.sums:
            sums = {name: value for name, value in sums.items() if name not in SPREAD}
        return Evaluation(sums, _add_sources(self.by_source, other.by_source), self.samples + other.samples, self.example)


_NOTHING = SourceLoss(0.0, 0)


def evaluate(model: DeviceModel, objective: Objective, tokenizer: Tokenizer, units: Iterable[list[Piece]],
             to_mini_batches: Callable[[Sequence[Piece]], list[MiniBatch]], interrupted: Callable[[], bool], names: Sequence[str] = (),
             accord: Accord | None = None) -> Evaluation | None:
    """Judge a model by samples; of several ranks each judges its share of the mini-batches, and all find the same.

    :param units: the pieces of each sample, at least one sample.
    :param to_mini_batches: makes of pieces what goes through the device at once.
    :param interrupted: asked before each mini-batch.
    :param names: of the sources, by the numbers in the samples; none = losses are not wanted by source.
    :param accord: of the ranks; None = a single process.
    :return: None when interrupted, and without samples; predictions are each token's given all the truth before it.
    """
    found: Evaluation | None = None
    samples: list[SampleLoss] = []
    units, accord = iter(units), accord or Accord()
    was_training = model.raw.training
    model.raw.eval()
    try:
        with torch.no_grad():
            while some := accord.alike(lambda: list(islice(units, _AT_ONCE))):
                parts = accord.gather(partial(_judge_share, model, objective, tokenizer, some, to_mini_batches, interrupted, names, accord))
                if None in parts:
                    return None
                judged = _join(some, [part for part in parts if part is not None])
                samples += judged.samples
                found = replace(judged if found is None else found.plus(judged), samples=samples[:0])
    finally:  # memory may have run out
        model.raw.train(was_training)
    return replace(found, samples=samples) if found is not None else None


def log_probs(model: DeviceModel, pieces: Sequence[Piece], mini_batches: Sequence[MiniBatch]) -> list[float]:
    """Compute the log-probability of each piece's truth (nats, summed over its tokens), without dropout."""
    return [float(one.sum()) for one in token_log_probs(model, pieces, mini_batches)]


def token_log_probs(model: DeviceModel, pieces: Sequence[Piece], mini_batches: Sequence[MiniBatch], head: nn.Module | None = None) -> list[torch.Tensor]:
    """Compute the log-probabilities of the truth tokens of each piece (N,), in nats, float64, without dropout.

    :param head: another head than the model's.
    """
    found = [torch.zeros(0)] * len(pieces)
    was_training = model.raw.training
    model.raw.eval()
    try:
        with torch.no_grad():
            for mini_batch in mini_batches:
                with model.runtime.autocast():
                    losses_N, _ = token_losses(model.wrapped, mini_batch.to(model.runtime.device), head or model.head)
                losses = losses_N.cpu().double()  # Apple's GPUs have no float64
                for number, where in mini_batch.rows:
                    found[number] = -losses[where]
    finally:  # memory may have run out
        model.raw.train(was_training)
    return found


@dataclass(frozen=True)
class _Part:
    """What a rank says of its share of samples: sums, those of each source, loss sum, tokens and bytes of each sample (3, samples), and the first piece."""

    sums: dict[str, float]
    by_source: dict[str, SourceLoss]
    of_sample: np.ndarray
    example: tuple[str, str, str] | None


def _judge_share(model: DeviceModel, objective: Objective, tokenizer: Tokenizer, units: Sequence[list[Piece]],
                 to_mini_batches: Callable[[Sequence[Piece]], list[MiniBatch]], interrupted: Callable[[], bool], names: Sequence[str], accord: Accord) \
        -> _Part | None:
    """Judge a model by this rank's share of samples; where ranks do it in unison, a request to stop waits for its end."""
    with accord.in_unison(model.raw) as in_unison:
        found = _judge(model, objective, tokenizer, units, to_mini_batches, (lambda: False) if in_unison else interrupted, names)
    return None if in_unison and interrupted() else found


def _judge(model: DeviceModel, objective: Objective, tokenizer: Tokenizer, units: Sequence[list[Piece]],
           to_mini_batches: Callable[[Sequence[Piece]], list[MiniBatch]], interrupted: Callable[[], bool], names: Sequence[str]) -> _Part | None:
    """Judge a model by this rank's share of samples that are held at once; see :func:`evaluate`.

    What a mini-batch has given is looked at while the device works on the next one.
    """
    notes = _Notes(tokenizer, units, names)
    before: tuple[list[tuple[int, slice]], torch.Tensor | None, float, list[str], Arrival] | None = None
    for _, mini_batch, counts in model.runtime.ranks.rounds(to_mini_batches(notes.pieces), lambda mini_batch: mini_batch.n_slots):
        if interrupted():
            return None
        mini_batch = mini_batch.to(model.runtime.device)
        with model.runtime.autocast():
            result = objective.loss(model.wrapped, mini_batch, model.head)
        if not counts:
            continue
        arrival = Arrival([result.loss_sum, result.losses_N, result.predictions_N, *result.figures.values()])
        if before is not None:
            notes.add(*before)
        before = mini_batch.rows, mini_batch.weights_N, objective.count(mini_batch), list(result.figures), arrival
    if before is not None:
        notes.add(*before)
    return notes.part()


class _Notes:
    """What is found in mini-batches, added up."""

    def __init__(self, tokenizer: Tokenizer, units: Sequence[list[Piece]], names: Sequence[str]):
        self.pieces = [piece for unit in units for piece in unit]
        self._tokenizer, self._names = tokenizer, names
        self._sample_of = [number for number, unit in enumerate(units) for _ in unit]
        self._sums = dict.fromkeys(("loss_sum", "n_tokens", "n_bytes", "bytes_lost", "words_right", "words", "edits_right", "edit_words"), 0.0)
        self._by_source: dict[str, SourceLoss] = {}
        self._of_sample = np.zeros((3, len(units)))
        self._example: tuple[str, str, str] | None = None

    def add(self, rows: Sequence[tuple[int, slice]], weights_N: torch.Tensor | None, count: float, figures: Sequence[str], arrival: Arrival) -> None:
        """Add a mini-batch.

        :param rows: of the :class:`MiniBatch`, as are the weights.
        :param count: what its loss sum goes over.
        :param figures: the names of the objective's sums.
        :param arrival: of the loss sum, the losses (N,), the most probable token ids (N,) and the objective's sums.
        """
        loss_sum, losses, predictions, *own = arrival.wait()
        self._sums["loss_sum"] += float(loss_sum)
        self._sums["n_tokens"] += count
        for name, value in zip(figures, own, strict=True):
            self._sums[name] = self._sums.get(name, 0.0) + float(value)
        for number, where in rows:
            self._add_piece(number, losses[where], predictions.numpy()[where], None if weights_N is None else weights_N[where])

    def part(self) -> _Part:
        """Give the sums."""
        return _Part(self._sums, self._by_source, self._of_sample, self._example)

    def _add_piece(self, number: int, losses: torch.Tensor, predicted: np.ndarray, weights: torch.Tensor | None) -> None:
        """Add a piece: the losses and the most probable token ids at the positions of its tokens to be learned, and what these count."""
        piece, tokenizer = self.pieces[number], self._tokenizer
        answers = [tokenizer.decode([token for token in part.tolist() if token != tokenizer.end_id])
                   for part in np.split(predicted, piece.answer_starts)]  # where the model has written them, these are its own
        add_words(self._sums, piece, predicted)
        if piece.preferred is not False and piece.judged is None:
            for name, words in zip(("edits_right", "edit_words"), count_edits("\n".join(piece.answers), "\n".join(answers)), strict=True):
                self._sums[name] += words
        said = float(losses.double().sum()), len(losses), len(piece.truth.encode("utf-8", "surrogatepass")) - piece.bytes_lost
        self._of_sample[:, self._sample_of[number]] += said
        self._sums["n_bytes"] += said[2]
        self._sums["bytes_lost"] += piece.bytes_lost
        if self._names:
            name, part = self._names[piece.sample.source], _part_of_source(piece, losses.double(), weights)
            self._by_source[name] = SourceLoss(*map(sum, zip(self._by_source.get(name, _NOTHING), part, strict=True)))
        if number == 0:
            judged = piece.judged
            truth = "\n".join(piece.answers) if judged is None else piece.sample.truth if judged.between is None else judged.between[1]
            self._example = (tokenizer.decode(piece.tokens[:piece.n_prompt].tolist()), truth, "\n".join(answers))


def _part_of_source(piece: Piece, losses_N: torch.Tensor, weights_N: torch.Tensor | None) -> SourceLoss:
    """Give what a piece adds to the loss of its source, and what that is divided by: an answer that the model has written counts as one, and others by their
    tokens, or by what the objective says that these count."""
    if piece.judged is not None:
        return SourceLoss(float(losses_N.sum()), 1.0)
    return SourceLoss(float(losses_N.sum()), float(len(losses_N))) if weights_N is None else SourceLoss(float(losses_N @ weights_N), float(weights_N.sum()))


def _join(units: Sequence[list[Piece]], parts: Sequence[_Part]) -> Evaluation:
    """Add up what the ranks say of samples."""
    nats = [unit[0].sample.nats for unit in units]
    sums: dict[str, float] = {}
    by_source: dict[str, SourceLoss] = {}
    for part in parts:
        sums, by_source = _add(sums, part.sums), _add_sources(by_source, part.by_source)
    has_floor = None not in nats and units[0][0].judged is None
    sums |= {"steps": 1.0, "nats_sum": sum(one or 0.0 for one in nats),
             "nats_tokens": float(sum(piece.n_truth for unit in units for piece in unit)) if has_floor else 0.0}
    of_sample = sum((part.of_sample for part in parts[1:]), start=parts[0].of_sample)
    example = next((part.example for part in parts if part.example is not None), ("", "", ""))
    if of_sample[1].sum() == sums["n_tokens"] and units[0][0].judged is None:
        sums |= _spread(of_sample[0], of_sample[1])
    else:  # the loss is not one of tokens: it has no spread over the samples in these terms, and neither bits per byte nor a perplexity
        sums["n_bytes"] = 0.0
    samples = [SampleLoss(crc32(identify(unit).encode("utf-8", "surrogatepass")), *said) for unit, said in zip(units, of_sample.T.tolist(), strict=True)]
    return Evaluation(sums, by_source, samples, example)


def add_words(sums: dict[str, float], piece: Piece, predicted: np.ndarray) -> None:
    """Add a piece's words to sums; those of an answer that is rejected, or that the model itself has written, do not count.

    :param predicted: the token ids at the positions of those to be learned.
    """
    if piece.preferred is False or piece.judged is not None:
        return
    truth = piece.tokens[piece.n_prompt:]
    right, all_words = count_right(piece.truth, piece.borders, predicted == (truth if piece.learned is None else truth[piece.learned]), piece.answer_starts)
    sums["words_right"] = sums.get("words_right", 0.0) + right
    sums["words"] = sums.get("words", 0.0) + all_words


def _spread(losses: np.ndarray, tokens: np.ndarray) -> dict[str, float]:
    """Add up what the standard error of the loss per token needs of the samples."""
    return {"judged": float(len(losses)), "loss_squares": float(losses @ losses), "loss_by_tokens": float(losses @ tokens),
            "token_squares": float(tokens @ tokens)}


def _add(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Add values by name."""
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def _add_sources(one: Mapping[str, SourceLoss], other: Mapping[str, SourceLoss]) -> dict[str, SourceLoss]:
    """Add losses by source."""
    return {name: SourceLoss(*map(sum, zip(one.get(name, _NOTHING), other.get(name, _NOTHING), strict=True))) for name in {**one, **other}}


def validation_done(found: Evaluation, final: bool, objective: Objective) -> ValidationDone:
    """Say what a validation found, with the objective's own figures."""
    sums, shown = found.sums, [figure for figure in objective.figures if figure.progress and figure.validate]
    said = {figure.name: (figure.title, value, figure.unit) for figure, value in zip(shown, values(shown, sums).values(), strict=True) if value is not None}
    error, edits, written = values([BY_NAME[name] for name in ("standard_error", "edit_accuracy", "written_accuracy")], sums).values()
    return ValidationDone(final, found.loss, objective.loss_unit, error, sums["loss_sum"] / sums["n_bytes"] / log(2) if sums["n_bytes"] else None,
                          sums["words_right"] / sums["words"] if sums["words"] else None, edits, written,
                          sums["nats_sum"] / sums["nats_tokens"] if sums["nats_tokens"] else None, *found.example, said)
