"""Reading in shares: of several ranks each reads, tokenizes and cuts a part of the rows, and tells the others how long its pieces are.  Data floor, no torch.

1. Every rank draws the places of the next rows, a chunk of them. Which sources and row numbers they are follows from plan, seed and position alone.
2. The rows of the chunk are dealt to the ranks. Each reads and cuts its own, and tells all what has come of them: the lengths of pieces, or why there are none.
3. Every rank fills the same batches by these lengths.
4. When it is known which rank trains a piece, the rank that has cut it sends its tokens there (:meth:`Shares.bring`).

What is told goes by the order of the rows, in one thread of each rank, apart from what the ranks do together while they train.
"""
from __future__ import annotations

import gc
import pickle
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar
from zlib import crc32

from ..errors import StoppedWaiting, TrainingError
from .batcher import Cutting, Halted
from .continuation import Piece
from .mixing import Mix
from .outlines import CutSample, Outline, contents, filled, measures, outlines
from .permutation import Permutation
from .samples import Reading, Sample
from .sources import BadRow, IndexedSource, Row
from .turns import Skipped
from .workers import Trace, portable

# Rows of a chunk for each rank, at least: few, so that the first batch comes soon and little is read again after a stop.
ROWS_EACH = 8
# New objects for each rank after which Python looks for garbage; up to 35 ranks that is not rarer than by default.
_NEW_OBJECTS_EACH = 20
_T = TypeVar("_T")
# The place of a chunk at which a rank has failed, with what, and its trace.
Failure = tuple[int, Exception, str]


class Peers(Protocol):
    """The ranks that read together.  All make the same calls in the same order."""

    rank: int
    size: int
    reading: AbstractContextManager[Any]
    """Held by the thread that reads: one that outlives its stage ends before that of the next stage begins, on all ranks."""

    def swap(self, parts: Sequence[bytes] | None) -> list[bytes] | None:
        """Give each rank its part, and return what each has given to this one, in order.

        :param parts: one for each rank; None = this rank comes to its end.
        :return: None where any rank has come to its end; then none calls this again.
        """


class Later(IndexedSource):
    """The rows of a source as functions that read them."""

    def __init__(self, source: IndexedSource):
        """
        :param source: whose rows these are.
        """
        self.name, self.columns, self.fingerprint, self.n_rows = source.name, source.columns, source.fingerprint, source.n_rows
        self._source = source

    def __getitem__(self, index: int) -> Any:
        """Give a function that reads the row, and raises BadRow when it cannot be parsed."""
        return lambda: self._source[index]


@dataclass
class _Outcome:
    """What has come of a row: pieces (told to others as their measures) and the source's -ln p of the text, or why it gives none; and characters replaced."""

    pieces: list[Any]
    nats: float | None = None
    skipped: str | BadRow | None = None
    replaced: int = 0


@dataclass
class _Told:
    """What a rank tells of a chunk: a checksum of the rows drawn, what has come of its own by their places, and where it has failed, if it has."""

    drawn: int
    outcomes: dict[int, _Outcome]
    failed: Failure | None


class Shares:
    """The share of one rank in reading a stage."""

    def __init__(self, ranks: Peers, rows_each: int = ROWS_EACH):
        """
        :param ranks: those that read together.
        :param rows_each: rows of a chunk for each rank.
        """
        self.rank, self.size, self.chunk = ranks.rank, ranks.size, rows_each * ranks.size
        self._peers = ranks
        self._cutting: Cutting = lambda samples: iter(())
        self._halted: Callable[[], bool] = lambda: False
        self._over = False

    @contextmanager
    def reading(self, cutting: Cutting, halted: Callable[[], bool]) -> Iterator[Shares]:
        """Make a context manager around reading, in the thread that reads; afterwards the other ranks know that this one does not go on.

        It waits for the thread of an earlier stage that is still at work, as what both tell would be mixed up.

        :param cutting: cuts the samples of this rank.
        :param halted: asked before each row of this rank; once it says True, :class:`Halted` is raised.
        """
        self._cutting, self._halted = cutting, halted
        with self._peers.reading, _rare_collections(_NEW_OBJECTS_EACH * self.size):
            try:
                yield self
            finally:
                if not self._over:
                    self._over = True
                    with suppress(Exception):  # they have gone: whoever waits for them next says so
                        self._peers.swap(None)

    def rows(self, mix: Mix, readings: Sequence[Reading]) -> SharedRows:
        """Give the rows of a mix, read and cut.

        :param mix: whose indexed sources are :class:`Later`.
        :param readings: one a source: how its rows become samples.
        """
        return SharedRows(self, mix, readings)

    def cut(self, samples: Iterator[tuple[Sample, _T]]) -> Iterator[tuple[list[Piece], _T]]:
        """Give the pieces of samples that have been cut; see :class:`lmplay.data.batcher.Cutting`."""
        for sample, tag in samples:
            assert isinstance(sample, CutSample)
            yield sample.pieces, tag

    def bring(self, pieces: Sequence[Piece], takers: Sequence[Collection[int]], whole: Collection[int] = (), samples: bool = False) -> list[Piece]:
        """Send the pieces of a batch to the ranks that need them.

        :param pieces: of the batch; the same on all ranks, but for what is only outlined.
        :param takers: the ranks that need each piece.
        :param whole: the numbers of pieces of which the text is needed, too, not only the tokens.
        :param samples: and their samples.
        :return: the pieces; what this rank needs is there.
        """
        parts: list[list[tuple[int, Any]]] = [[] for _ in range(self.size)]
        for number, piece in enumerate(pieces):
            if not isinstance(piece, Outline) and (others := [rank for rank in takers[number] if rank != self.rank]):
                stub = piece.sample if samples else Sample("", "", piece.sample.source, piece.sample.row, piece.sample.nats)
                sent = replace(piece, sample=stub) if number in whole else contents(piece)
                for rank in others:
                    parts[rank].append((number, sent))
        found = list(pieces)
        for part in self._exchange([pickle.dumps(part, pickle.HIGHEST_PROTOCOL) if part else b"" for part in parts]):
            for number, sent in pickle.loads(part) if part else ():
                found[number] = sent if isinstance(sent, Piece) else filled(found[number], sent)
        return found

    def read(self, places: Sequence[Any], readings: Sequence[Reading], failed: Failure | None, seed: int) \
            -> tuple[dict[int, _Outcome], tuple[int, Exception] | None]:
        """Read the rows of a chunk together.

        :param places: what the mix gave; a tuple is a row.
        :param readings: how the rows of each source become samples.
        :param failed: where the mix failed, if it did.
        :param seed: of the deal.
        :return: what has come of the rows by their places; and the place and the error of the first that failed on any rank, if any.
        :raises Halted: when any rank comes to its end.
        :raises TrainingError: when the ranks have not drawn the same.
        """
        mine, content = self.tell(places, readings, failed, seed)
        return self.hear(self._exchange([content] * self.size), places, mine)

    def tell(self, places: Sequence[Any], readings: Sequence[Reading], failed: Failure | None, seed: int) -> tuple[dict[int, _Outcome], bytes]:
        """Read and cut this rank's rows of a chunk; gives what has come of them, and what the others are told. See :meth:`read`."""
        mine = [number for number in self._deal(len(places), seed) if isinstance(places[number], tuple)]
        outcomes, failed_here = self._read_mine(mine, places, readings)
        drawn = crc32(repr([place[:2] if isinstance(place, tuple) else type(place) for place in places]).encode())
        told = {number: _Outcome(measures(one.pieces), one.nats, one.skipped, one.replaced) for number, one in outcomes.items()}
        first = min(filter(None, (failed_here, failed)), key=lambda failure: failure[0], default=None)
        return outcomes, pickle.dumps(_Told(drawn, told, first), pickle.HIGHEST_PROTOCOL)

    def hear(self, contents: Sequence[bytes], places: Sequence[Any], mine: dict[int, _Outcome]) -> tuple[dict[int, _Outcome], tuple[int, Exception] | None]:
        """Put together what all ranks have told of a chunk, see :meth:`read`; `mine` is what has come of this rank's rows."""
        all_told: list[_Told] = [pickle.loads(content) for content in contents]
        failures = [(one.failed[0], rank) for rank, one in enumerate(all_told) if one.failed is not None]
        if not failures and len({one.drawn for one in all_told}) > 1:
            raise TrainingError("the processes do not read the same rows; all need the same files, and the same version of lmplay.")
        found = {number: outcome for one in all_told for number, outcome in one.outcomes.items() if number < len(places)} | mine
        for number in found.keys() - mine.keys():
            (source, index, _), outcome = places[number], found[number]
            outcome.pieces = outlines(Sample("", "", source, index, outcome.nats), outcome.pieces)
        if not failures:
            return found, None
        place, rank = min(failures)
        failure = all_told[rank].failed
        assert failure is not None
        if rank != self.rank:
            failure[1].__cause__ = Trace(failure[2])
        return found, (place, failure[1])

    def _deal(self, count: int, seed: int) -> Iterator[int]:
        """Number the places of a chunk that are this rank's: one of each N that follow each other, at random, as sources may take turns."""
        firsts = range(0, count, self.size)
        mine = (first + Permutation(self.size, seed, first).index(self.rank) for first in firsts)
        return (number for number in mine if number < count)

    def _read_mine(self, mine: Sequence[int], places: Sequence[Any], readings: Sequence[Reading]) \
            -> tuple[dict[int, _Outcome], Failure | None]:
        """Read and cut this rank's rows of a chunk, up to the first that fails."""
        found: dict[int, _Outcome] = {}

        def samples() -> Iterator[tuple[Sample, tuple[int, _Outcome]]]:
            for number in mine:
                if self._halted():
                    raise Halted
                source, index, row = places[number]
                outcome = _Outcome([])
                try:
                    row = row() if callable(row) else row
                    sample = readings[source](row, source, index)
                except BadRow as bad:
                    bad.source, outcome.skipped = source, bad
                except Skipped as reason:
                    outcome.skipped = str(reason)
                else:
                    outcome.nats, outcome.replaced = sample.nats, row.replaced if isinstance(row, Row) else 0
                    yield sample, (number, outcome)
                    continue
                found[number] = outcome

        try:
            for pieces, (number, outcome) in self._cutting(samples()):
                outcome.pieces = pieces
                found[number] = outcome
        except StoppedWaiting as stopped:
            raise Halted from stopped
        except Exception as error:
            return found, (next(number for number in mine if number not in found), *portable(error))
        return found, None

    def _exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """Give each rank its part; raises Halted when any rank comes to its end."""
        found = self._peers.swap(parts)
        if found is None:
            self._over = True
            raise Halted
        return found


class SharedRows:
    """Gives the rows of a mix, each read and cut by one of the ranks, to a :class:`lmplay.data.stream.SampleStream`.  A position is one of the mix."""

    def __init__(self, shares: Shares, mix: Mix, readings: Sequence[Reading]):
        self._shares, self._mix, self._readings = shares, mix, readings
        self.readings: list[Callable[[dict[str, Any], int, int], Sample]] = [_take] * len(readings)
        self._start()

    @property
    def endless(self) -> bool:
        """See :class:`Mix`."""
        return self._mix.endless

    @property
    def rows_per_epoch(self) -> int | None:
        """See :class:`Mix`."""
        return self._mix.rows_per_epoch

    def rows_left(self) -> int | None:
        """See :class:`Mix`; before anything is read."""
        return self._mix.rows_left()

    def next(self) -> tuple[int, int, dict[str, Any]] | None:
        """See :class:`Mix`."""
        if not self._ahead and self._failed is None:
            self._read_chunk()
        if not self._ahead:
            assert self._failed is not None
            raise self._failed
        found, state = self._ahead.popleft()
        self._note(state)
        if isinstance(found, BadRow):
            raise found
        return found

    def state(self) -> dict[str, Any]:
        """See :class:`Mix`."""
        return self._state

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`Mix`."""
        self._mix.restore(state)
        self._start()

    def _start(self) -> None:
        """Begin to read from where the mix is."""
        self._ahead: deque[tuple[Any, dict[str, Any]]] = deque()  # what comes next, and the position after it
        self._failed: Exception | None = None  # comes after these
        self._chunks = 0
        self._note(self._mix.state())

    def _note(self, state: dict[str, Any]) -> None:
        """Take note of a position."""
        self._state = state
        self.epoch, self.rows_in_epoch = state["epoch"], state["rows_in_epoch"]

    def _read_chunk(self) -> None:
        """Read the next rows together."""
        places, states, failed = self._draw()
        self._chunks += 1
        outcomes, failure = self._shares.read(places, self._readings, failed, self._chunks)
        for number, state in enumerate(states[:None if failure is None else failure[0]]):
            place = places[number]
            self._ahead.append((_row_of(place, outcomes[number]) if isinstance(place, tuple) else place, state))
        self._failed = None if failure is None else failure[1]

    def _draw(self) -> tuple[list[Any], list[dict[str, Any]], Failure | None]:
        """Draw the next rows, at most to the end of the epoch; give what the mix gave, the positions after each, and the error that came next."""
        places: list[Any] = []
        states: list[dict[str, Any]] = []
        place: Any
        while len(places) < self._shares.chunk and (not places or places[-1] is not None):
            try:
                place = self._mix.next()
            except BadRow as bad:  # of a stream, which all ranks read
                place = bad
            except StoppedWaiting as stopped:
                raise Halted from stopped
            except Exception as error:
                return places, states, (len(places), *portable(error))
            places.append(place)
            states.append(self._mix.state())
        return places, states, None


@contextmanager
def _rare_collections(objects: int) -> Iterator[None]:
    """Let Python look for garbage only after N new objects, if that is rarer than before.

    What a rank knows of the pieces of all others are many objects that stay for some steps; to look through them as often as with one process takes longer
    than to make them.
    """
    before = gc.get_threshold()
    if before[0]:  # else it never does
        gc.set_threshold(max(before[0], objects), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _row_of(place: tuple[int, int, Any], outcome: _Outcome) -> Any:
    """Make the row that stands for one that has been read; of a bad one the error."""
    if isinstance(outcome.skipped, BadRow):
        return outcome.skipped
    source, index, _ = place
    fields = {"sample": CutSample("", "", source, index, outcome.nats, pieces=outcome.pieces), "skipped": outcome.skipped}
    return source, index, Row(fields, outcome.replaced) if outcome.replaced else fields


def _take(row: dict[str, Any], source: int, index: int) -> Sample:
    """Give the sample of a row that has been read; raises Skipped where it gives none."""
    if row["skipped"] is not None:
        raise Skipped(row["skipped"])
    sample: Sample = row["sample"]
    return sample
