"""The named sets of a stage (`evaluate` in a plan): their samples, and when the model is to be judged by each.  Engine floor, no torch."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..cadence import Cadence, intervals
from ..data.continuation import Piece
from ..data.samples import Sample
from ..words import rows_in_words
from .run import OpenStage


class NamedSets:
    """Gives the samples of named sets as units, and notes in the stage's state which sets are due."""

    def __init__(self, stage: OpenStage, prepare: Callable[[Sample], list[Piece]], counts: Mapping[str, float]):
        """
        :param prepare: makes the pieces of a sample.
        :param counts: how far the run is, from where the intervals of sets count that the state does not know.
        """
        self._data, self._state, self._prepare = stage.data, stage.state, prepare
        self.skipped: dict[str, dict[str, int]] = {}  # rows of a set that gave no sample in the newest evaluation, by reason
        self.cadences = {name: Cadence(intervals(one.interval or 0, {})) for name, one in stage.stage.sets.items()}
        self._state.evaluated = {name: self._state.evaluated.get(name, dict(counts)) for name in self.cadences}
        self._state.evaluation_due = [name for name in self._state.evaluation_due if name in self.cadences]

    @property
    def names(self) -> list[str]:
        """The names, in the order of the plan."""
        return list(self.cadences)

    def units(self, name: str) -> Iterator[list[Piece]]:
        """Give the pieces of each sample of a set."""
        stream = self._data.open_set(name)
        yield from filter(None, map(self._prepare, iter(stream.next, None)))
        self.skipped[name] = dict(stream.skipped)

    def due(self, counts: Mapping[str, float]) -> list[str]:
        """Tell which sets are due after a step."""
        return [name for name, cadence in self.cadences.items() if cadence.due(self._state.evaluated[name], counts)]

    def note_done(self, name: str, counts: Mapping[str, float]) -> None:
        """Note that the model has been judged by a set."""
        self._state.evaluated[name] = dict(counts)
        self._state.evaluation_due = [other for other in self._state.evaluation_due if other != name]

    def in_words(self) -> list[str]:
        """Say of each set how long it is, and when the model is judged by it."""
        return [f"{name} ({rows_in_words(self._data.rows_of_set(name), None)}) " + (f"{cadence.in_words()}, and " if any(cadence.every.values()) else "")
                + "at the end of the stage" for name, cadence in self.cadences.items()]
