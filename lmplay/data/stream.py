"""The samples of a stage: a mix of sources, read for a length, rows that cannot be samples skipped and counted.  Data floor, no torch."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from ..errors import UserError
from ..words import counted
from .samples import Sample
from .sources import BadRow, Row, Source
from .turns import Skipped

# Rows that are named for each reason why rows are skipped.
NAMED_ROWS = 3


@dataclass(frozen=True)
class Length:
    """How much of a mix is read: `epochs` over it (may be fractional) or `samples`; neither = without end."""

    epochs: float | None = None
    samples: int | None = None


class Rows(Protocol):
    """Where rows come from: a :class:`lmplay.data.mixing.Mix`, or what stands for one."""

    epoch: int
    rows_in_epoch: int

    @property
    def endless(self) -> bool:
        """Whether an epoch never ends."""

    @property
    def rows_per_epoch(self) -> int | None:
        """How many rows an epoch has; None where nobody knows."""

    def rows_left(self) -> int | None:
        """Count the rows up to the end of this epoch; None where nobody knows."""

    def next(self) -> tuple[int, int, dict[str, Any]] | None:
        """Give number of the source, ordinal number of the row in it, and the row; None at the end of an epoch. Raises BadRow for one that cannot be read."""

    def state(self) -> dict[str, Any]:
        """Give the position."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position."""


class SampleStream:
    """Gives samples until the length is reached."""

    def __init__(self, mix: Rows, readings: Sequence[Callable[[dict[str, Any], int, int], Sample]], length: Length, sources: Sequence[Source] = (),
                 strict: Collection[int] = ()):
        """
        :param mix: where rows come from.
        :param readings: one a source: how its rows are read.
        :param length: when to stop.
        :param sources: say where rows are that give no sample; none = they are counted only.
        :param strict: numbers of the sources of which no row may be skipped.
        :raises UserError: when an epoch never ends, or when part of one is asked for and nobody knows how long it is.
        """
        self._mix = mix
        self._readings = readings
        self._length = length
        self._samples = 0
        self._told: int | None = None  # the total of a stage whose data has changed
        self.skipped: Counter[str] = Counter()
        self.locations: dict[str, list[str]] = {}  # where the first rows are that were skipped, by reason
        self.replaced: Counter[str] = Counter()  # rows that had bytes that are not UTF-8, and characters that stand for them
        self._sources, self._strict = sources, strict
        if length.epochs and length.samples is None and mix.endless:
            raise UserError(f"epochs {length.epochs:g}: an epoch of a source that has no end never ends; give samples, tokens or steps.")
        whole, part = divmod(length.epochs or 0, 1)
        self._last_epoch, self._rows_of_last = int(whole), 0
        if part:
            if mix.rows_per_epoch is None:
                raise UserError(f"epochs {length.epochs:g}: the number of rows is not known, so part of one cannot be read; give samples, tokens or steps.")
            self._rows_of_last = round(part * mix.rows_per_epoch) or int(not whole)  # never nothing at all

    @property
    def total(self) -> int | None:
        """The number of rows that will be read (samples, but for skipped rows); None where unknown."""
        return self._planned if self._told is None else self._told

    @cached_property
    def _planned(self) -> int | None:
        """The same of data that has not changed since the stage began."""
        if self._length.samples is not None or self._length.epochs is None:
            return self._length.samples
        per_epoch = self._mix.rows_per_epoch
        return self._last_epoch * per_epoch + self._rows_of_last if per_epoch is not None else None

    @cached_property
    def rows_per_epoch(self) -> int | None:
        """The number of rows of an epoch; None where unknown or endless."""
        return self._mix.rows_per_epoch

    @property
    def endless(self) -> bool:
        """Whether there is always a next sample."""
        return self._length == Length() and self._mix.endless

    @property
    def progress(self) -> float | None:
        """The share of the length that has been read, 0 to 1."""
        total = self._planned
        if not total:
            return None
        if self._length.samples is not None:
            return self._samples / total
        return min(1.0, (self._mix.epoch * (self.rows_per_epoch or 0) + self._mix.rows_in_epoch) / total)

    def next(self) -> Sample | None:
        """Give the next sample, or None when the length is reached."""
        epochs_ended = 0
        while not self._is_done():
            try:
                found = self._mix.next()
            except BadRow as bad:
                self._skip(bad.source, bad.row, bad.reason, bad)
                continue
            if found is None:
                epochs_ended += 1
                if epochs_ended == 2:
                    raise UserError(f"no row of a whole epoch gave a sample ({describe_skipped(self.skipped)}).")
                continue
            source, index, row = found
            try:
                sample = self._readings[source](row, source, index)
            except Skipped as reason:
                self._skip(source, index, str(reason))
                continue
            if isinstance(row, Row):
                self.replaced.update(rows=1, characters=row.replaced)
            self._samples += 1
            return sample
        return None

    def count_anew(self, trained: int) -> None:
        """Count the samples again, from a position that has been carried over to other data.

        :param trained: the samples that have been given and will not be given again, whatever the position says.
        """
        self._samples = trained
        if self._length.samples is None and self._length.epochs is not None and (left := self._mix.rows_left()) is not None:
            epochs, per_epoch = self._last_epoch - self._mix.epoch, self._mix.rows_per_epoch or 0
            left = min(left, max(0, self._rows_of_last - self._mix.rows_in_epoch)) if not epochs else left + (epochs - 1) * per_epoch + self._rows_of_last
            self._told = trained + self.skipped.total() + left

    def state(self) -> dict[str, Any]:
        """Give the position: a small plain value."""
        told = {} if self._told is None else {"total": self._told}
        return {"mix": self._mix.state(), "samples": self._samples, "skipped": dict(self.skipped), "replaced": dict(self.replaced),
                "places": {reason: list(named) for reason, named in self.locations.items()}, **told}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position."""
        self._mix.restore(state["mix"])
        self._samples, self._told = state["samples"], state.get("total")
        self.skipped, self.replaced = Counter(state["skipped"]), Counter(state["replaced"])
        self.locations = {reason: list(named) for reason, named in state["places"].items()}

    def _skip(self, source: int, index: int, reason: str, bad: BadRow | None = None) -> None:
        """Count a row that gives no sample, and remember where the first few are; of a strict source it is the end."""
        if source in self._strict:
            faults = bad.faults if bad else [f"{self._sources[source].location(index)}: gives no sample ({reason}); mend or delete it."]
            raise refused_row(faults)
        self.skipped[reason] += 1
        named = self.locations.setdefault(reason, [])
        if len(named) < NAMED_ROWS and self._sources:
            named.append(bad.location if bad else self._sources[source].location(index))

    def _is_done(self) -> bool:
        """Tell whether the length is reached."""
        if self._length.samples is not None:
            return self._samples >= self._length.samples
        return self._length.epochs is not None and (self._mix.epoch, self._mix.rows_in_epoch) >= (self._last_epoch, self._rows_of_last)


def refused_row(faults: Sequence[str]) -> UserError:
    """Make the error for a row that gives no sample, of a source that is to have none.

    :param faults: what is wrong with it.
    """
    return UserError(*(f"{fault} (\"on_bad_row\": \"skip\" leaves such rows out.)" for fault in faults))


def describe_skipped(skipped: Counter[str]) -> str:
    """Say how many rows were skipped and why.

    :param skipped: counts by reason.
    :return: for example "3 rows skipped: 2 null, 1 empty".
    """
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(skipped.items()))
    return f"{counted(sum(skipped.values()), 'row')} skipped: {reasons}" if skipped else "no rows skipped"


def nothing_to_train_on(stage: str, skipped: Counter[str]) -> UserError:
    """Make the error for a stage of which every row was skipped."""
    return UserError(f"stage '{stage}': there was nothing to train on ({describe_skipped(skipped)}).")


def describe_losses(state: dict[str, Any]) -> list[str]:
    """Say what of the rows did not become samples as it stood in the files.

    :param state: what :meth:`SampleStream.state` gave.
    :return: a line for each reason why rows were skipped, with where the first of them are, and one for bytes that were replaced.
    """
    lines = []
    for reason, count in sorted(state["skipped"].items()):
        named = state["places"].get(reason, [])
        where = f" ({'; '.join(named)}{'; …' if count > len(named) else ''})" if named else ""
        lines.append(f"{counted(count, 'row')} skipped: {reason}{where}")
    if state["replaced"]:
        rows, characters = (counted(state["replaced"][f"{name}s"], name) for name in ("row", "character"))
        lines.append(f"{rows} with bytes that are not UTF-8 ({characters} replaced)")
    return lines
