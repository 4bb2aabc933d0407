"""The data of a stage: its sources opened, its training samples and its validation samples.  Data floor, no torch."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import Any
from zlib import crc32

from ..errors import UserError
from ..plan.curriculum import DATA_RULES
from ..plan.schema import SourceSpec, Stage
from .fingerprints import same_data
from .look import describe_reading, look_at, unread_fields
from .mixing import Mix
from .permutation import hash64
from .reader import DEFAULT_BUFFER, Order, Reader, open_reader
from .samples import Reading, choose_reading, text_field
from .shares import Later, Shares
from .sources import AnySource, IndexedSource, open_source, opener_of
from .sources.articles import join_articles
from .sources.index import Index
from .stream import Length, SampleStream

# Fields that are named where they are not read; the others are counted.
_NAMED = 6
# How pieces are divided among batches, by the rules of the stage.
_PIECES = {1: "together", 2: "spread", 3: "spread"}
# By default this share of a source's rows is held out, but no more rows than this.
DEFAULT_HELD_OUT, MOST_HELD_OUT = 0.1, 5000


class StageData:
    """Opens what a stage reads, so that everything that is wrong with it is known before training.

    Validation rows are, source by source: the stage's `validation` data set or split, else the source's own validation split, else a
    seeded fraction of its rows, which training then never sees.
    """

    def __init__(self, stage: Stage, folder: Path, seed: int, validation_seed: int = 0, rules: int = DATA_RULES, pairs: bool = False, tasks: bool = False):
        """
        :param stage: a stage of a plan.
        :param folder: where data sets are kept.
        :param seed: the run's seed; the stage's `shuffle` may name another for the order.
        :param validation_seed: names the choice of held-out rows.
        :param rules: those by which the stage began, see :data:`lmplay.plan.curriculum.DATA_RULES`.
        :param pairs: rows are read as preference pairs; those of named sets are texts in any case.
        :param tasks: rows are read as tasks, a prompt and an answer to judge by; those of named sets are texts in any case.
        :raises UserError: one line a fault, for all sources together.
        """
        self._stage = stage
        self._seed, self._validation_seed = seed, validation_seed
        self._rules, self._kind = rules, {"pairs": pairs, "tasks": tasks}
        self.sources: list[AnySource] = []
        self._readings: list[Reading] = []
        self._forms: list[dict[str, Any]] = []
        self._held_out: list[float] = []  # the share that is held out of each source
        self._own: list[tuple[AnySource, Reading, SourceSpec]] = []  # validation rows of their own
        self.names: list[str] = []  # of the sources, no two alike
        self._own_names: list[str] = []  # the source that they belong to, or their own
        self.reads: list[str] = []  # what is read as what, a line for each source and for what there is to say of its files
        self.warnings: list[str] = []  # of rows that will be skipped
        faults: list[str] = []
        for spec in stage.dataset:
            try:
                self._open(spec, folder)
            except UserError as error:
                faults += error.faults
        if stage.validation is not None and stage.validation.dataset is not None:
            try:
                self._open_own(stage.validation.dataset, "train", folder)
            except UserError as error:
                faults += error.faults
        self._sets: dict[str, tuple[AnySource, Reading, SourceSpec]] = {}
        for name, one in stage.sets.items():
            try:
                self._open_set(name, one.dataset, folder)
            except UserError as error:
                faults += (f"evaluate.{name}: {fault}" for fault in error.faults)
        if faults:
            raise UserError(*(f"stage '{stage.name}': {fault}" for fault in faults))
        if stage.dataset:  # of a wrong plan that is only checked a stage may have lost them
            self.open_samples()  # refuses now what can't be read for the length asked for

    @property
    def pieces(self) -> str:
        """How the pieces of a long sample are divided among batches: together, spread or shuffled."""
        return self._stage.pieces or _PIECES[self._rules]

    @property
    def length_is_known(self) -> bool:
        """Whether it is known how long the stage is."""
        return self._stage.tokens is not None or self._stage.steps is not None or self.open_samples().total is not None

    def forms(self) -> list[dict[str, Any]]:
        """Say of each source how its texts begin (`form`, see :data:`.samples.FORMS`), and how its chats are written out (`chat`)."""
        return [{"source": name, **form} for name, form in zip(self.names, self._forms, strict=True)]

    def open_samples(self, shares: Shares | None = None) -> SampleStream:
        """Give the training samples from the start of the stage.

        :param shares: reads and cuts them together with other ranks; None = this process reads them by itself.
        """
        sources = [Later(source) if shares is not None and isinstance(source, IndexedSource) else source for source in self.sources]
        readers = [open_reader(source, self._order(number, validation=False)) for number, source in enumerate(sources)]
        for source, reader in zip(self.sources, readers, strict=True):
            if reader.rows_per_epoch == 0:
                raise UserError(f"stage '{self._stage.name}': source {source.name} has no rows to train on.")
        weights = [spec.weight for spec in self._stage.dataset]
        mixed = Mix(readers, [w for w in weights if w is not None] or None, self._stage.stopping or "all_exhausted")
        length, strict = Length(self._stage.epochs, self._stage.samples), _strict(self._stage.dataset)
        try:
            if shares is None:
                return SampleStream(mixed, self._readings, length, self.sources, strict)
            rows = shares.rows(mixed, self._readings)
            return SampleStream(rows, rows.readings, length, self.sources, strict)
        except UserError as error:
            raise UserError(*(f"stage '{self._stage.name}': {fault}" for fault in error.faults)) from None

    def rows_per_epoch(self) -> list[int | None]:
        """Give the number of training rows of each source; None where it is unknown or endless."""
        return [open_reader(source, self._order(number, validation=False)).rows_per_epoch for number, source in enumerate(self.sources)]

    def held_out_rows(self) -> list[int | None]:
        """Give the number of rows that are held out of each source; None where it is unknown or endless."""
        return [open_reader(source, self._order(number, validation=True)).rows_per_epoch for number, source in enumerate(self.sources)]

    def validation_names(self) -> list[str]:
        """Name the source of each number that validation samples carry."""
        return [name for name, *_ in self._validation_readers()]

    def open_validation(self) -> SampleStream | None:
        """Give the validation samples once, mixed as the training samples are; without end where a source has none, and None where there are no samples."""
        chosen = self._validation_readers()
        if not chosen:
            return None
        _, readers, readings, sources, specs = zip(*chosen, strict=True)
        weights = [spec.weight for spec in specs]
        mix = Mix(readers, None if None in weights else weights)
        return SampleStream(mix, readings, Length(None if mix.endless else 1.0), sources, _strict(specs))

    def open_set(self, name: str) -> SampleStream:
        """Give the samples of a named set once, in the order of its rows."""
        source, reading, spec = self._sets[name]
        return SampleStream(Mix([open_reader(source, Order(shuffle=False))], None), [reading], Length(1.0), (source,), _strict([spec]))

    def rows_of_set(self, name: str) -> int | None:
        """Give the number of rows of a named set; None where it is unknown."""
        return self._sets[name][0].n_rows

    def fingerprints(self) -> list[dict[str, Any]]:
        """Give the fingerprints of the sources, then those of separate validation rows, so that a resume can tell what has changed."""
        found = (*zip(self.sources, self._readings, strict=True), *((source, reading) for source, reading, _ in self._own))
        return [{"name": source.name, **source.fingerprint, "reads": reading.summary} for source, reading in found]

    def carry_over(self, position: dict[str, Any], before: list[dict[str, Any]], trained: int) -> dict[str, Any]:
        """Adapt a position to data that have changed since.

        A changed source whose rows have numbers keeps its epoch and the number of rows read in it. With another number of rows the shuffled order is
        another, so until the epoch ends some rows come twice and some not at all. A stream that has changed begins its epoch again. The samples that
        waited for a batch are read again.

        :param position: of the training samples, as :class:`Batcher` gave it.
        :param before: the fingerprints it belongs to.
        :param trained: the samples that have been trained on; of those that waited some may be among them.
        :return: a position from which reading goes on without an error.
        """
        mixed = position["samples"]["mix"]
        readers = [state if same_data(old, now) else _carried(state, source)
                   for state, old, now, source in zip(mixed["readers"], before, self.fingerprints(), self.sources, strict=False)]
        samples = self.open_samples()
        samples.restore({**position["samples"], "mix": {**mixed, "readers": readers}})
        samples.count_anew(trained)
        return {**position, "samples": samples.state(), "until": position["read"], "ended": False, "waiting": [], "given": 0}

    def texts(self, characters: int) -> Iterator[str]:
        """Give the texts of the first training samples, for a tokenizer to learn from.

        :param characters: about how many to give.
        """
        stream = self.open_samples()
        while characters > 0 and (sample := stream.next()) is not None:
            characters -= len(sample.prompt) + len(sample.truth)
            yield sample.prompt + sample.truth

    def _validation_readers(self) -> list[tuple[str, Reader, Reading, AnySource, SourceSpec]]:
        """Open the readers of validation rows, but for those that have none."""
        chosen: list[tuple[str, Reader, Reading, AnySource, SourceSpec]] = [
            (name, open_reader(source, Order(hash64(self._validation_seed), self._rules >= 3 and isinstance(source, IndexedSource))), reading, source, spec)
            for name, (source, reading, spec) in zip(self._own_names, self._own, strict=True)]
        for number, source in enumerate(self.sources):
            if self._held_out[number]:
                reader = open_reader(source, self._order(number, validation=True))
                chosen.append((self.names[number], reader, self._readings[number], source, self._stage.dataset[number]))
        return [found for found in chosen if found[1].rows_per_epoch != 0]

    def _open(self, spec: SourceSpec, folder: Path) -> None:
        """Open one source, with the validation rows that it has of its own, and decide how its rows are read."""
        if spec.encoding_errors is not None and not opener_of(spec.path).of_files:
            raise UserError(f"source {spec.path}: 'encoding_errors' is for local files; leave it out.")
        opened = open_source(spec, "train", folder)
        assert opened is not None
        source = _joined(opened, spec, folder)
        self._readings.append(self._choose_reading(source, spec))
        self.sources.append(source)
        self._forms.append({"form": self._readings[-1].begins, "chat": spec.chat})
        alike = sum(other.name == source.name for other in self.sources)
        self.names.append(source.name if alike == 1 else f"{source.name} ({alike})")
        settings = self._stage.validation
        if self._holds_out_by_default():
            has_own = opened.may_have_own and self._open_own(spec, "validation", folder, self.names[-1])
            self._held_out.append(0.0 if has_own else DEFAULT_HELD_OUT)
        elif settings is not None:
            if settings.split is not None:
                self._open_own(spec.model_copy(update={"split": settings.split}), "train", folder, self.names[-1])
            self._held_out.append(settings.fraction or 0.0)

    def _holds_out_by_default(self) -> bool:
        """Tell whether the plan leaves it to the program which rows are held out."""
        settings = self._stage.validation
        return settings is None or (settings.fraction is None and settings.split is None and settings.dataset is None)

    def _open_own(self, spec: SourceSpec, split: str, folder: Path, name: str | None = None) -> bool:
        """Open validation rows that stand apart, under their source's name if they belong to one; tell whether there are any."""
        source = open_source(spec, split, folder)
        if source is not None:
            source = _joined(source, spec, folder)
            self._own.append((source, self._choose_reading(source, spec, " (validation rows)"), spec))
            self._own_names.append(name or source.name)
        return source is not None

    def _open_set(self, name: str, spec: SourceSpec, folder: Path) -> None:
        """Open a named set: the split that is asked for, else its own validation rows, else all there is."""
        found = None if spec.split is not None else open_source(spec, "validation", folder)
        source = found or open_source(spec, "train", folder)
        assert source is not None
        source = _joined(source, spec, folder)
        self._sets[name] = source, self._choose_reading(source, spec, f" (evaluate.{name})", as_texts=True), spec
        if open_reader(source, Order(shuffle=False)).endless:
            raise UserError(f"source {source.name} never ends; give a data set that ends.")
        if self.open_set(name).next() is None:
            raise UserError(f"source {source.name}: no row gives a sample.")
        if any(source.fingerprint == other.fingerprint for other in self.sources):
            self.warnings.append(f"evaluate.{name} reads {source.name}, which the stage is trained on; a split may be what is meant.")

    def _choose_reading(self, source: AnySource, spec: SourceSpec, whose: str = "", as_texts: bool = False) -> Reading:
        """Decide how the rows of a source become samples, after a look at some of them, and note what there is to say about it."""
        look, roles = look_at(source), None if spec.rows == "articles" else spec.columns
        columns = list(dict.fromkeys((*(source.columns or ()), *look.fields)))
        if source.columns is None and not columns and not look.bad:
            raise UserError(f"source {source.name}: it is empty.")
        certain = look.whole or not (source.columns is None or source.rows_differ)
        reading = choose_reading(source.name, columns, roles, spec.chat, source.has_nats, list(look.rows.values()), certain,
                                 **({} if as_texts else self._kind))
        reads, warnings = describe_reading(source, reading, look, (roles or {}).values())
        self.reads.append(f"{source.name}{whose}: {reads}")
        unread = [name for name in unread_fields(reading, look, columns) if not (source.has_nats and name == "nats")]
        if unread:
            more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
            self.reads.append(f"{source.name}{whose}: not read: {', '.join(unread[:_NAMED])}{more}")
        self.reads += [f"{source.name}{whose}: {note}" for note in source.notes]
        self.warnings += warnings
        reading.summary = reads
        return reading

    def _order(self, number: int, validation: bool) -> Order:
        """Say how a source is read: sources of one mix get orders of their own, and a source has the same rows held out wherever it is read."""
        spec, shuffle = self._stage.dataset[number], self._stage.shuffle
        given = shuffle if shuffle is not None and shuffle is not False else None
        seed = given.seed if given is not None and given.seed is not None else self._seed
        buffer = given.buffer if given is not None and given.buffer is not None else DEFAULT_BUFFER
        # Not by the path of local files: a folder that has been moved has the same rows held out. A `?` (`builtin:tales?seed=1`) counts as a glob, as in the
        # files of all versions.
        identity = 0 if opener_of(spec.path).of_files or has_magic(spec.path) else crc32("\n".join(filter(None, (spec.path, spec.config, spec.split))).encode())
        most = MOST_HELD_OUT if self._rules >= 2 and self._holds_out_by_default() else None
        return Order(hash64(seed, number), shuffle is not False, buffer, self._held_out[number], validation, hash64(self._validation_seed, identity), most,
                     spread=self._rules >= 3)


def _joined(source: AnySource, spec: SourceSpec, folder: Path) -> AnySource:
    """Join the rows of a source, if that is asked for."""
    if spec.row_bytes is not None and "block" not in source.fingerprint:
        raise UserError(f"source {spec.path}: 'row_bytes' is for text files, which have no rows of their own; leave it out.")
    if spec.rows != "articles":
        return source
    return join_articles(source, text_field(source.name, source.columns or look_at(source).fields, spec.columns), Index(folder))


def _carried(state: dict[str, Any], source: AnySource) -> dict[str, Any]:
    """Turn a reader's position in one source into one in another."""
    if isinstance(source, IndexedSource):
        return {"epoch": state["epoch"], "offset": state.get("ordinal", 0) + state["offset"]}
    return {"epoch": state["epoch"], "ordinal": 0, "block": None, "offset": 0}


def _strict(specs: Sequence[SourceSpec]) -> set[int]:
    """Number the sources of which no row may be skipped."""
    return {number for number, spec in enumerate(specs) if spec.on_bad_row == "stop"}
