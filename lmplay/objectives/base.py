"""What an objective is: how a sample becomes a unit of pieces, and the loss of a mini-batch.  Math floor."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from ..data.collate import MiniBatch
from ..data.preparing import Preparing, answer_limit, cut_text, thought_limit
from ..stats.figures import NATS, NEWEST, SUMS, Figure


@dataclass(frozen=True)
class Result:
    """What an objective says about a mini-batch."""

    loss_sum: Tensor
    """Sum of the losses in nats, a scalar, at least float32; divided by :meth:`Objective.count` of the whole batch it is what is minimised.

    Its value is what is reported. Its gradient may be that of more (a z-loss, say), see :func:`add_gradient`."""
    losses_N: Tensor
    """The loss of each of these positions, without gradient: for sums over a part of them, a source's say."""
    predictions_N: Tensor
    """The most probable token ids at these positions, int64, on the model's device."""
    figures: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))
    """Sums that the objective's own figures are made of, by name: scalars without gradient."""


def add_gradient(loss_sum: Tensor, auxiliary_sum: Tensor) -> Tensor:
    """Let the gradient of another sum be minimised with a loss, and leave the value of the loss as it is, so that runs with and without it compare.

    :param auxiliary_sum: a scalar; like the loss a sum over the mini-batch, so that mini-batches make no difference.
    """
    return loss_sum + (auxiliary_sum - auxiliary_sum.detach())


@dataclass(frozen=True)
class Thoughts:
    """How thoughts are told from the text: `start` is read before one, `end` ends it; `horizon` tokens of the text behind it are predicted, and learned too
    where `learns_text` says so."""

    start: str
    end: str
    horizon: int
    learns_text: bool = False


@dataclass(frozen=True)
class Writing:
    """How the model writes the answers that an objective learns from, anew in each step.

    Each prompt gets `group` answers of at most `most_tokens` (None = half of the context, of thoughts a quarter), drawn at a `temperature`. They are judged by
    `rewards`, see :class:`lmplay.rewards.process.Rewards`; each has a `weight` (1) in the sum. The weights are updated `updates` times with the answers of a
    batch. With a `reference` it is known what the model at the stage's start thinks of them. With `thoughts` the answers are thoughts, and are judged by how
    probable they make the text behind them.
    """

    group: int
    most_tokens: int | None
    temperature: float
    rewards: Sequence[Mapping[str, Any]]
    updates: int = 1
    reference: bool = False
    thoughts: Thoughts | None = None

    def limit(self, context_len: int) -> int:
        """Give the most tokens of an answer."""
        return (answer_limit if self.thoughts is None else thought_limit)(self.most_tokens, context_len)


@dataclass(frozen=True)
class Teaching:
    """The model that an objective learns from, and what is asked of it: at each truth token its `top_k` likeliest tokens, at a `temperature`.

    `name` is that of a file of lmplay, a folder of transformers, or ``hf:`` and a name of the hub.
    """

    name: str
    top_k: int
    temperature: float


class Objective(ABC):
    """What is minimised on a batch.  Another package offers one by an entry point of the group ``lmplay.objectives``: ``name = "module:Class"``."""

    divides_samples = False
    """Whether the pieces of a sample may go into several batches, as the stage's `pieces` says; else they share one, as far as they fit in."""

    reads_pairs = False
    """Whether it learns from preference pairs: rows are read as such, and :attr:`prepare` makes two pieces of each, which are never divided."""

    needs_reference = False
    """Whether it compares with the model as it was at the start of the stage: mini-batches have the log-probabilities of that."""

    teaching: Teaching | None = None
    """The model that it learns from: mini-batches have what that says of their tokens (`taught`), in training and in validation. None = it has no teacher."""

    writing: Writing | None = None
    """How the model writes what it learns from: rows are read as tasks, :attr:`prepare` makes a piece of each, of which only the prompt counts, and
    mini-batches have what the model has written and how it was judged, in training and in validation. With thoughts rows are read as texts, and pieces are
    those of :func:`lmplay.data.preparing.cut_thoughts`. None = the model learns from what it reads."""

    loss_unit: str = NATS
    """The unit of its loss, for statistics, pictures and messages."""

    figures: Sequence[Figure] = ()
    """Figures of its own, beside loss and accuracy: kept in the statistics, drawn and tracked as those are."""

    prepare: Preparing = staticmethod(cut_text)
    """Makes a unit of a `sample` from the stage's sources: pieces that share a batch (as far as they fit in one), none where there is nothing to learn.

    The `cutter` cuts to the context length and must not be changed: it may be in another process. A function of :mod:`lmplay.data.preparing`, or a function or
    method of your own: what it imports is imported in each process that prepares data.
    """

    @property
    def reads_tasks(self) -> bool:
        """Whether rows are read as tasks."""
        return self.writing is not None and self.writing.thoughts is None

    @property
    def sum_names(self) -> list[str]:
        """The sums that its own figures are made of, beside those of the table."""
        return list(dict.fromkeys(name for figure in self.figures for name in figure.raw if name not in (*NEWEST, *SUMS)))

    def advantages(self, rewards: Sequence[float]) -> tuple[list[float], float]:
        """Say how much better each answer of a group is than the others, and the deviation of their rewards; for objectives that have a `writing`."""
        raise NotImplementedError

    def count(self, mini_batch: MiniBatch) -> float:
        """Give the number of terms in the loss sum of a mini-batch, before that is computed: by default N, its truth tokens.

        It is asked on the CPU, and for several mini-batches the counts are added up.
        """
        return len(mini_batch.targets_N)

    @abstractmethod
    def loss(self, model: nn.Module, mini_batch: MiniBatch, head: nn.Module) -> Result:
        """Judge a model by a mini-batch, for training and, under ``torch.no_grad()``, for validation.

        :param model: token ids (B, T) -> hidden states (B, T, D), see :mod:`lmplay.exp`; perhaps compiled.
        :param mini_batch: on the model's device.
        :param head: hidden states (…, D) -> logits (…, V).
        :return: sums over the mini-batch: what is minimised is the sum over the batch, divided by its count.
        """
