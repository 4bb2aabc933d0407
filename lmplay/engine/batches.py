"""The batches of a stage with their mini-batches, made ahead of the step in a thread of their own.  Engine floor."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from ..data.batcher import Batch, Batcher, Cutting, Halted, ShuffledBatcher
from ..data.collate import MiniBatch, Said, collate, fill
from ..data.continuation import Cutter, Piece, Prepare
from ..data.prefetch import Prefetch
from ..data.samples import Sample
from ..data.sentences import Cut
from ..data.shares import ROWS_EACH, Shares
from ..data.stream import SampleStream
from ..data.workers import Workers
from ..device.ranks import Ranks
from ..errors import ElsewhereError, UserError
from ..objectives.base import Objective
from .run import OpenStage

if TYPE_CHECKING:
    import numpy as np

# Batches made ahead of the step: enough to even out short and long ones.
_AHEAD = 4
_T = TypeVar("_T")


@dataclass(frozen=True)
class Grouping:
    """How pieces are put into mini-batches: `mini_batch_size` pieces (where there is no token budget), with lengths rounded up to a `multiple`, or `packed`.

    Where there are fewer mini-batches than `ranks`, they are smaller, so that more ranks have one. `reference` gives the log-probability of a piece's truth by
    the reference, where the objective compares with one, and `teacher` what a teacher says of its tokens, where it has one.
    """

    mini_batch_size: int
    multiple: int
    context_len: int
    packed: bool
    ranks: int = 1
    reference: Callable[[Piece], float] | None = None
    teacher: Callable[[Piece], Said] | None = None

    def alone(self) -> Grouping:
        """Give the same without what other models say of the pieces."""
        return replace(self, reference=None, teacher=None)

    def mini_batches(self, pieces: Sequence[Piece], token_budget: int, outlined: bool = False) -> list[MiniBatch]:
        """Make mini-batches of at most `token_budget` tokens, 0 = by pieces; see :func:`lmplay.data.collate.collate`."""
        size = min(self.mini_batch_size, -(-len(pieces) // self.ranks))
        if token_budget and self.ranks > 1:
            token_budget = min(token_budget, -(-sum(len(piece.tokens) - 1 for piece in pieces) // self.ranks))
        return collate(pieces, size, self.multiple, self.context_len, token_budget, self.packed, self.reference, self.teacher, outlined)


def cost_of(mini_batch: MiniBatch) -> float:
    """Say what a mini-batch costs the rank that trains it: its positions, padding included."""
    return mini_batch.n_slots


@dataclass(frozen=True)
class TrainBatch:
    """A batch as a step takes it: with its mini-batches, which have at most `token_budget` tokens (0 = they go by pieces).

    Where several ranks read together, the mini-batches of others are there in outline only, and so are their pieces.

    `sources` are the numbers of the pieces' sources, none where losses are not measured by source; word accuracy is measured on the `accuracy_pieces`.
    """

    batch: Batch
    mini_batches: list[MiniBatch]
    token_budget: int
    sources: list[int]
    accuracy_pieces: range

    @property
    def longest(self) -> int:
        """The tokens that the model reads of the longest piece."""
        return max(len(piece.tokens) for piece in self.batch.pieces) - 1

    @property
    def n_slots(self) -> int:
        """The positions of all mini-batches, padding included."""
        return sum(mini_batch.n_slots for mini_batch in self.mini_batches)

    @property
    def n_padding(self) -> int:
        """How many of these are padding."""
        return sum(mini_batch.n_padding for mini_batch in self.mini_batches)

    def regrouped(self, token_budget: int, grouping: Grouping) -> TrainBatch:
        """Give the batch with mini-batches of another token budget."""
        if token_budget == self.token_budget:
            return self
        return replace(self, mini_batches=grouping.mini_batches(self.batch.pieces, token_budget), token_budget=token_budget)


@dataclass(frozen=True)
class End:
    """What is known at the end of the samples: their position, and how many after the last batch had no token."""

    reached: dict[str, Any]
    empty: int


@contextmanager
def position_of(stage: str) -> Iterator[None]:
    """Turn what a position of a damaged checkpoint leads to inside this block into a UserError; `stage` is the name."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"stage '{stage}': the checkpoint's position in its data is invalid ({type(error).__name__}: {error}); "
                        "it is damaged. --resume FILE continues from another checkpoint, --reset-history starts over.") from error


class StageSizes:
    """The sizes of a stage whose batch size or context length changes, see :class:`lmplay.data.batcher.Sizes`."""

    def __init__(self, stage: OpenStage, cutter: Cutter):
        """
        :param cutter: for the longest context.
        """
        self._settings, self._objective = stage.settings, stage.objective
        self._cutters = {cutter.context_len: cutter}

    def batch_size(self, progress: float) -> int:
        """See :class:`lmplay.data.batcher.Sizes`."""
        chain = self._settings.batch_size_schedule
        return whole_units(self._settings.batch_size if chain is None else round(chain.at(progress)), self._objective)

    def context_len(self, progress: float) -> int:
        """Give the most tokens of a piece."""
        chain = self._settings.context_len_schedule
        return self._settings.context_len if chain is None else round(chain.at(progress))

    def prepare(self, sample: Sample, progress: float) -> list[Piece]:
        """See :class:`lmplay.data.batcher.Sizes`."""
        length = self.context_len(progress)
        if length not in self._cutters:
            longest = max(self._cutters)
            self._cutters = {longest: self._cutters[longest], length: self._cutters[longest].with_context(length)}
        return self._objective.prepare(sample, self._cutters[length])


def whole_units(batch_size: int, objective: Objective) -> int:
    """Give the most pieces of a batch: with preference pairs an even number."""
    return batch_size - batch_size % 2 if objective.reads_pairs else batch_size


def pieces_to_time(tokens: np.ndarray, objective: Objective) -> list[Piece]:
    """Make pieces of given tokens (pieces, length), to measure how long an objective takes; for preference pairs an even number."""
    return [Piece(Sample("", ""), row, 1, "", Cut.END, 0, True, preferred=number % 2 == 0 if objective.reads_pairs else None, starts=row[:0], cuttable=row[:0])
            for number, row in enumerate(tokens)]


def open_batcher(stage: OpenStage, samples: SampleStream, cutter: Cutter, **options: Any) -> Batcher:
    """Make what fills a stage's batches, from the beginning of the samples on.

    :param cutter: for the stage's context length.
    :param options: those of :class:`lmplay.data.batcher.Batcher`.
    """
    pieces = stage.data.pieces if stage.objective.divides_samples else "together"
    settings, most_tokens = stage.settings, stage.stage.tokens
    size, prepare = whole_units(settings.batch_size, stage.objective), partial(stage.objective.prepare, cutter=cutter)
    if settings.batch_size_schedule is not None or settings.context_len_schedule is not None:
        options["sizes"] = StageSizes(stage, cutter)
    if pieces == "shuffled":
        return ShuffledBatcher(samples, prepare, size, most_tokens, **options)
    return Batcher(samples, prepare, size, most_tokens, spread=pieces == "spread", **options)


def batches_of(stage: OpenStage, cutter: Cutter) -> Iterator[Batch]:
    """Give the batches of a stage from its beginning to its end, as they are when it is not stopped."""
    batcher, progress, steps = open_batcher(stage, stage.data.open_samples(), cutter), 0.0, stage.stage.steps
    for number in count(1):
        batch = batcher.next(progress) if steps is None or number <= steps else None
        if batch is None:
            return
        progress = (batch.progress or 0.0) if steps is None else number / steps
        yield batch


class Batches:
    """Gives a stage's batches from where its state says."""

    def __init__(self, stage: OpenStage, cutter: Cutter, grouping: Grouping, token_budget: Callable[[], int], workers: int,
                 accuracy_pieces: int, ranks: Ranks | None = None, steps_done: int = 0, progress: float = 0.0):
        """
        :param cutter: for the stage's context length.
        :param token_budget: asked for each batch when it is made.
        :param workers: 0 = each batch is made when it is asked for (of several ranks, in a thread), 1 = in a thread, N = in a thread and N processes.
        :param accuracy_pieces: the first pieces of each batch, on which word accuracy is measured: cheap where they are few, and enough for a curve.
        :param ranks: those that train together; each reads its share where that is known ahead of the batch. None = there is one.
        :param steps_done: of a stage whose length is in steps.
        :param progress: of the stage so far, where its sizes change with it.
        """
        fixed = stage.settings.context_len_schedule is None  # else how samples are cut is not known ahead of the batch
        self._workers = workers if fixed else min(workers, 1)
        # a batch's rows at least, and the same on all ranks, which may have different numbers of processes
        rows_each = max(ROWS_EACH, -(-stage.settings.batch_size // ranks.size)) if ranks is not None else ROWS_EACH
        self._shares = Shares(ranks, rows_each) if ranks is not None and ranks.size > 1 and fixed else None
        self._ranks = ranks
        self.stream = stage.data.open_samples(self._shares)
        self._stage, self._cutter, self._grouping, self._token_budget = stage, cutter, grouping, token_budget
        self._position = stage.state.position  # what is made ahead and not trained on is made again by the run that goes on
        self._accuracy_pieces = range(accuracy_pieces)
        self._steps, self._steps_done, self._progress = stage.stage.steps, steps_done, progress
        self._told_apart = len(stage.data.sources) > 1
        self._prefetch = Prefetch(self._make, _AHEAD if workers or self._shares else 0)
        self.start, self.close = self._prefetch.start, self._prefetch.close
        self.end: End | None = None

    def next(self, stop_waiting: Callable[[], bool]) -> TrainBatch | None:
        """Give the next batch; None at the end (then :attr:`end` is set), when told to stop waiting, or when another rank does not go on.

        :param stop_waiting: asked now and then while the batch isn't there.
        """
        try:
            made = self._prefetch.next(stop_waiting)
        except Halted:
            return None
        except ElsewhereError:
            if self._ranks is not None:
                self._ranks.end_alone()
            raise
        if isinstance(made, End):
            self.end = made
            return None
        return made

    def _make(self, halted: Callable[[], bool]) -> Iterator[TrainBatch | End]:
        """Make the batches, beside training and validation.

        What is shared with them is only read: sources, tokenizer and cutter; no random numbers are drawn.
        """
        progress: float | None = self._progress
        prepare = partial(self._stage.objective.prepare, cutter=self._cutter)
        with ExitStack() as closing:
            cutting: Cutting | None = closing.enter_context(Workers(prepare, self._workers)).cut if self._workers > 1 else None
            if self._shares is not None:
                cutting = closing.enter_context(self._shares.reading(cutting or partial(_cut, prepare), halted)).cut
            batcher = open_batcher(self._stage, self.stream, self._cutter, cutting=cutting, halted=halted)
            if self._position is not None:
                with position_of(self._stage.stage.name):
                    batcher.restore(self._position)
            for number in count(self._steps_done + 1):
                batch = batcher.next(progress or 0.0) if self._steps is None or number <= self._steps else None
                if batch is None:
                    break
                if self._steps is not None:
                    batch = replace(batch, progress=number / self._steps)
                progress = batch.progress
                budget = self._token_budget()
                sources = [piece.sample.source for piece in batch.pieces] if self._told_apart else []
                if self._shares is None:
                    mini_batches = self._grouping.mini_batches(batch.pieces, budget)
                else:
                    batch, mini_batches = self._bring(self._shares, batch, budget)
                yield TrainBatch(batch, mini_batches, budget, sources, self._accuracy_pieces)
            yield End(batcher.reached, batcher.empty)

    def _bring(self, shares: Shares, batch: Batch, budget: int) -> tuple[Batch, list[MiniBatch]]:
        """Bring the pieces of a batch to the ranks that train them, and the texts of those whose words are counted to rank 0.

        All ranks need all where the model writes answers to them, or another model has judged them.
        """
        assert self._ranks is not None
        objective, pieces = self._stage.objective, batch.pieces
        if objective.needs_reference or objective.teaching is not None or objective.writing is not None:
            pieces = shares.bring(pieces, [range(shares.size)] * len(pieces), range(len(pieces)), samples=True)
            return replace(batch, pieces=pieces), self._grouping.mini_batches(pieces, budget)
        mini_batches = self._grouping.mini_batches(pieces, budget, outlined=True)
        takers = self._ranks.deal(mini_batches, cost_of)
        needed: list[set[int]] = [{0} if number in self._accuracy_pieces else set() for number in range(len(pieces))]
        for taker, mini_batch in zip(takers, mini_batches, strict=True):
            for number, _ in mini_batch.rows:
                needed[number].add(taker)
        pieces = shares.bring(pieces, needed, self._accuracy_pieces)
        mine = [fill(mini_batch, pieces) if taker == shares.rank else mini_batch for taker, mini_batch in zip(takers, mini_batches, strict=True)]
        return replace(batch, pieces=pieces), mine


def _cut(prepare: Prepare, samples: Iterator[tuple[Sample, _T]]) -> Iterator[tuple[list[Piece], _T]]:
    """Cut samples one by one; see :class:`lmplay.data.batcher.Cutting`."""
    return ((prepare(sample), tag) for sample, tag in samples)

