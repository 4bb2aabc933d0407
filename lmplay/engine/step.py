"""One optimizer step over a batch.  Engine floor."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from ..data.collate import MiniBatch, to_device
from ..device.model import DeviceModel
from ..device.ranks import Ranks
from ..objectives.base import Objective, Result
from ..optim.set import OptimizerSet
from .batches import TrainBatch, cost_of
from .update import update


@dataclass
class StepSums:
    """What a step adds up over its mini-batches; tensors are on the device."""

    count: float
    """What the loss sum goes over, see :meth:`Objective.count`."""
    loss_sum: torch.Tensor
    """Of the losses in nats, a scalar; where it or the gradient's norm is not finite, nothing has been updated."""
    source_sums: torch.Tensor
    """The loss sum of each source (sources,); empty for a stage with one source."""
    figures: dict[str, torch.Tensor] = field(default_factory=dict)
    """Sums of the objective's own figures, scalars."""
    predictions: dict[int, torch.Tensor] = field(default_factory=dict)
    """The most probable token ids (N,) of the pieces on which accuracy is measured, by their number in the batch."""
    grad_norm: torch.Tensor = field(init=False)
    """Of the whole gradient before clipping, a scalar."""
    updates: int = 1
    """Those that these are the sums of."""
    lost: torch.Tensor | None = None
    """How many of several updates have changed nothing, as their loss or gradient was not finite; of one it shows."""

    def __post_init__(self) -> None:
        self.grad_norm = torch.zeros_like(self.loss_sum)

    def plus(self, other: StepSums) -> StepSums:
        """Give the sums of updates with the same batch, without those that have changed nothing; the norm of the gradient is the largest one.

        Where all of them have changed nothing, loss or norm are not finite.
        """
        mine, theirs = self._is_finite(), other._is_finite()

        def join(one: torch.Tensor, another: torch.Tensor) -> torch.Tensor:
            return torch.where(mine | ~theirs, one, 0) + torch.where(theirs | ~mine, another, 0)

        found = StepSums(self.count + other.count, join(self.loss_sum, other.loss_sum), join(self.source_sums, other.source_sums),
                         {name: join(value, other.figures[name]) for name, value in self.figures.items()}, self.predictions)
        found.grad_norm = torch.maximum(torch.where(mine | ~theirs, self.grad_norm, 0), torch.where(theirs | ~mine, other.grad_norm, 0))
        found.updates, found.lost = self.updates + other.updates, self._lost() + other._lost()
        return found

    def _is_finite(self) -> torch.Tensor:
        """Tell whether the weights have been updated."""
        return self.loss_sum.isfinite() & self.grad_norm.isfinite()

    def _lost(self) -> torch.Tensor:
        """Give :attr:`lost`, of one update, too."""
        return (~self._is_finite()).float() if self.lost is None else self.lost

    def add(self, batch: TrainBatch, mini_batch: MiniBatch, result: Result, counts: bool) -> None:
        """Add a mini-batch, if it counts, without waiting for the device."""
        if not counts:
            return
        self.loss_sum += result.loss_sum.detach()
        if len(self.source_sums):
            losses_N, weights_N = result.losses_N.to(self.source_sums.dtype), mini_batch.weights_N
            weighted_N = losses_N if weights_N is None else losses_N * to_device(weights_N.to(losses_N.dtype), losses_N.device)
            self.source_sums.index_add_(0, _source_of_each(mini_batch, batch.sources, self.loss_sum.device), weighted_N)
        for name, value in result.figures.items():
            self.figures[name] = self.figures.get(name, 0) + value.detach().float()
        self.predictions.update((number, result.predictions_N[where]) for number, where in mini_batch.rows if number in batch.accuracy_pieces)


def train_step(model: DeviceModel, optimizers: OptimizerSet, objective: Objective, batch: TrainBatch, grad_clip: float, interrupted: Callable[[], bool]) \
        -> StepSums | None:
    """Do forward and backward of every mini-batch, then one update.

    Losses are summed over the truth tokens and divided by their number in the whole batch, so that neither the mini-batches nor their order matter for the
    gradient. A batch with nothing to learn, and one whose loss or gradient is not finite, change neither weights nor optimizers. Of several ranks each does its
    share of the mini-batches.

    :param grad_clip: the largest norm of the gradient, 0 = no limit.
    :param interrupted: asked before each mini-batch.
    :return: the sums, or None when interrupted on any rank: nothing has been updated then.
    :raises TrainingError: when there is no memory for the optimizers' state.
    """
    runtime, ranks = model.runtime, model.runtime.ranks
    count = sum(objective.count(mini_batch) for mini_batch in batch.mini_batches)
    zero = partial(torch.zeros, device=runtime.device)
    sums = StepSums(count, zero(()), zero(max(batch.sources, default=-1) + 1), {name: zero(()) for name in objective.sum_names})
    optimizers.zero_grad()
    rounds = _rounds(batch.mini_batches if count else (), ranks)
    with ranks.random_numbers() as begin, ranks.passing(model.raw):
        for left, (number, mini_batch, counts) in zip(range(len(rounds))[::-1], rounds, strict=True):
            if interrupted() or (ranks.shards and left == len(rounds) - 1 and ranks.step_is_off()):  # no pass begins that not all take part in
                return None
            begin(number)
            if mini_batch is not None:
                mini_batch = mini_batch.to(runtime.device)
                with runtime.autocast():
                    result = objective.loss(model.wrapped, mini_batch, model.head)
            if not left and not ranks.shards and ranks.step_is_off():
                return None
            with nullcontext() if left else ranks.summing(model.raw.parameters()):
                if mini_batch is not None:
                    runtime.scaler.scale(result.loss_sum / count if counts else result.loss_sum * 0).backward()
                    sums.add(batch, mini_batch, result, counts)
    _add_up(sums, batch, ranks)
    if count and len(optimizers):
        sums.grad_norm = update(model, optimizers, sums.loss_sum, grad_clip)
    return sums


def _rounds(mini_batches: Sequence[MiniBatch], ranks: Ranks) -> list[tuple[int, MiniBatch | None, bool]]:
    """List this rank's share, see :meth:`Ranks.rounds`; a rank without one has a round with nothing in it."""
    return [*ranks.rounds(mini_batches, cost_of)] or [(0, None, False)]


def _add_up(sums: StepSums, batch: TrainBatch, ranks: Ranks) -> None:
    """Add up what several ranks have found; the predictions of a piece are all from one of them."""
    if ranks.size == 1:
        return
    lengths = {number: where.stop - where.start for mini_batch in batch.mini_batches for number, where in mini_batch.rows if number in batch.accuracy_pieces}
    device, names = sums.loss_sum.device, list(sums.figures)
    found = [sums.predictions.get(number, torch.zeros(length, dtype=torch.int64, device=device)) for number, length in lengths.items()]
    sums.loss_sum, sums.source_sums, *rest = ranks.sum([sums.loss_sum, sums.source_sums, *sums.figures.values(), *found])
    sums.figures = dict(zip(names, rest, strict=False))
    sums.predictions = dict(zip(lengths, rest[len(names):], strict=True))


def _source_of_each(mini_batch: MiniBatch, sources: list[int], device: torch.device) -> torch.Tensor:
    """Give the source of each of a mini-batch's N positions, without waiting for the device."""
    lengths = [where.stop - where.start for _, where in mini_batch.rows]
    numbers_N = torch.from_numpy(np.repeat([sources[number] for number, _ in mini_batch.rows], lengths))
    return to_device(numbers_N, device)
