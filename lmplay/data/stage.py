"""The data of a stage: its sources opened, its training samples and its validation samples.  Data floor, no torch."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..plan.schema import SourceSpec, Stage
from .mixing import Mix
from .reader import DEFAULT_BUFFER, Order, Reader, open_reader
from .samples import Reading, choose_reading
from .sources import IndexedSource, StreamedSource, open_source
from .stream import Length, SampleStream

DEFAULT_HELD_OUT = 0.1
AnySource = IndexedSource | StreamedSource


class StageData:
    """Opens what a stage reads, so that everything that is wrong with it is known before training.

    Validation rows are, source by source: the stage's `validation` data set or split, else the source's own validation split, else a
    seeded fraction of its rows, which training then never sees.
    """

    def __init__(self, stage: Stage, folder: Path, seed: int):
        """
        :param stage: a stage of a plan.
        :param folder: where data sets are kept.
        :param seed: the run's seed; the stage's `shuffle` may name another for the order.
        :raises UserError: one line a fault, for all sources together.
        """
        self._stage = stage
        self._seed = seed
        self.sources: list[AnySource] = []
        self._readings: list[Reading] = []
        self._validation: list[AnySource | None] = []  # a source of their own, or None: rows held out of the source
        self._validation_readings: list[Reading] = []
        faults: list[str] = []
        for spec in stage.dataset:
            try:
                self._open(spec, folder)
            except UserError as error:
                faults += [f"stage '{stage.name}': {fault}" for fault in error.faults]
        if faults:
            raise UserError(*faults)
        self.samples()  # an unknown number of rows is refused now

    @property
    def held_out(self) -> float:
        """The share of the rows that is held out of the sources that have no validation rows of their own."""
        settings = self._stage.validation
        if settings is None or (settings.fraction is None and settings.split is None and settings.dataset is None):
            return DEFAULT_HELD_OUT
        return settings.fraction or 0.0

    @property
    def length_is_known(self) -> bool:
        """Whether it is known how long the stage is."""
        return self._stage.tokens is not None or self.samples().total is not None

    def samples(self) -> SampleStream:
        """Give the training samples from the start of the stage."""
        readers = [open_reader(source, self._order(number, held_out=0.0 if own else self.held_out))
                   for number, (source, own) in enumerate(zip(self.sources, self._validation, strict=True))]
        for source, reader in zip(self.sources, readers, strict=True):
            if reader.rows_per_epoch == 0:
                raise UserError(f"stage '{self._stage.name}': source {source.name} has no rows to train on.")
        weights = [spec.weight for spec in self._stage.dataset]
        mix = Mix(readers, [w for w in weights if w is not None] or None, self._stage.stopping or "all_exhausted")
        try:
            return SampleStream(mix, self._readings, Length(self._stage.epochs, self._stage.samples))
        except UserError as error:
            raise UserError(*(f"stage '{self._stage.name}': {fault}" for fault in error.faults)) from None

    def validation_samples(self) -> SampleStream | None:
        """Give the validation samples, mixed as the training samples are, round and round without end; None where there are none."""
        chosen: list[tuple[Reader, Reading, float | None]] = []
        for number, (source, own) in enumerate(zip(self.sources, self._validation, strict=True)):
            if own is None and not self.held_out:
                continue
            order = self._order(number, held_out=0.0 if own else self.held_out, validation=own is None)
            reader = open_reader(own or source, order if own is None else Order(shuffle=False))
            if reader.rows_per_epoch != 0:
                chosen.append((reader, self._validation_readings[number], self._stage.dataset[number].weight))
        if not chosen:
            return None
        readers, readings, weights = zip(*chosen, strict=True)
        return SampleStream(Mix(readers, None if None in weights else weights), readings, Length())

    def fingerprints(self) -> list[dict[str, Any]]:
        """Say what the sources are, so that a resume can tell whether they have changed."""
        return [{"name": source.name, **source.fingerprint} for source in self.sources]

    def texts(self, characters: int) -> Iterator[str]:
        """Give the texts of the first training samples, for a tokenizer to learn from.

        :param characters: give about so many.
        """
        stream = self.samples()
        while characters > 0 and (sample := stream.next()) is not None:
            characters -= len(sample.prompt) + len(sample.truth)
            yield sample.prompt + sample.truth

    def _open(self, spec: SourceSpec, folder: Path) -> None:
        """Open one source with its validation rows, and decide how their rows are read."""
        source = open_source(spec, "train", folder)
        assert source is not None
        own = self._open_validation(spec, folder)
        reading = choose_reading(source.name, _columns(source), spec.columns)
        self.sources.append(source)
        self._readings.append(reading)
        self._validation.append(own)
        columns = self._stage.validation.dataset.columns if self._stage.validation and self._stage.validation.dataset else spec.columns
        self._validation_readings.append(reading if own is None else choose_reading(own.name, _columns(own), columns))

    def _open_validation(self, spec: SourceSpec, folder: Path) -> AnySource | None:
        """Open the validation rows that a source or the stage has of its own."""
        settings = self._stage.validation
        if settings is not None and settings.dataset is not None:
            return open_source(settings.dataset, "train", folder)
        if settings is not None and settings.split is not None:
            return open_source(spec.model_copy(update={"split": settings.split}), "train", folder)
        if settings is not None and settings.fraction is not None:
            return None
        return open_source(spec, "validation", folder)

    def _order(self, number: int, held_out: float, validation: bool = False) -> Order:
        """Say how a source is read; sources of one mix get orders of their own."""
        shuffle = self._stage.shuffle
        given = shuffle if shuffle is not None and shuffle is not False else None
        seed = given.seed if given is not None and given.seed is not None else self._seed
        buffer = given.buffer if given is not None and given.buffer is not None else DEFAULT_BUFFER
        return Order(seed * 1_000_003 + number, shuffle is not False, buffer, held_out, validation)


def _columns(source: AnySource) -> list[str]:
    """Give the columns of a source; those of its first row where it doesn't know them."""
    if source.columns is not None:
        return list(source.columns)
    row = source[0] if isinstance(source, IndexedSource) else next(source.open(None), None)
    if row is None:
        raise UserError(f"source {source.name}: it is empty.")
    return list(row)
