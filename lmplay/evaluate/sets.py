"""The data sets that models are judged by.  No torch."""
from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from ..data.reader import Order, open_reader
from ..data.samples import Sample
from ..data.sources import BadRow, open_source
from ..data.stage import StageData
from ..data.stream import SampleStream, describe_skipped
from ..errors import UserError, value_fault
from ..plan.catalog import is_endless
from ..plan.load import source_named
from ..plan.schema import EvaluatedSet, SourceSpec, Stage, Validation

T = TypeVar("T")
_NAMED = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)=(.+)", re.DOTALL)
# `columns` that no row has: of a table all columns are read then, not only those that training needs.
_ALL_COLUMNS = {"text": "\0"}


@dataclass
class DataSet:
    """A data set as the command line names it; `label` is the beginning of messages, `most` the most documents that are read (None = all)."""

    label: str
    name: str
    spec: SourceSpec
    folder: Path
    most: int | None
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows that gave nothing, when it was read last, by reason."""

    @property
    def source(self) -> str:
        """What is read, with the keys that were given."""
        given = self.spec.model_dump(exclude_none=True)
        return str(given["path"]) if len(given) == 1 else json.dumps(given, ensure_ascii=False)

    @property
    def notes(self) -> list[str]:
        """Say what was skipped."""
        return [f"{self.name}: {describe_skipped(self.skipped)}"] if self.skipped else []

    def open_texts(self) -> TextSet:
        """Open it as texts; raises UserError where no row gives one."""
        return TextSet(self)

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Give the rows, each with where it is; raises UserError when it cannot be read."""
        spec = self.spec.model_copy(update={"columns": _ALL_COLUMNS})
        self.skipped = Counter()
        try:
            source = (None if spec.split is not None else open_source(spec, "validation", self.folder)) or open_source(spec, "train", self.folder)
            assert source is not None
            reader = open_reader(source, Order(shuffle=False))
            if reader.endless and self.most is None:
                raise _endless(self)
        except UserError as error:
            raise UserError(*(fault if fault.startswith(self.label) else f"{self.label}: {fault}" for fault in error.faults)) from None
        given = 0
        while self.most is None or given < self.most:
            try:
                found = reader.next()
            except BadRow as bad:
                self.skipped[bad.reason] += 1
                continue
            if found is None:
                break
            given += 1
            yield source.location(found[0]), found[1]


class TextSet:
    """The texts of a data set, read anew for each model."""

    def __init__(self, data: DataSet):
        """
        :raises UserError: when it cannot be read, never ends, or no row gives a text.
        """
        self._data, spec = data, data.spec
        self._endless = is_endless(spec.path)
        if self._endless and data.most is None:
            raise _endless(data)
        stage = Stage(name="data", dataset=[spec], samples=data.most or 1, shuffle=False, validation=Validation(fraction=0.0))
        if not self._endless:
            stage = stage.model_copy(update={"dataset": [], "evaluate": {data.name: EvaluatedSet(dataset=spec)}})
        try:
            self._stage = StageData(stage, data.folder, seed=0)
        except UserError as error:
            start = "stage 'data': "
            raise UserError(*(f"{data.label}: {fault.removeprefix(start).removeprefix(f'evaluate.{data.name}: ')}" for fault in error.faults)) from None
        self.reads = [line.replace(f" (evaluate.{data.name})", "") for line in (*(f"reads {one}" for one in self._stage.reads), *self._stage.warnings)]

    def samples(self) -> Iterator[Sample]:
        """Give the samples, each once, in the order of the rows."""
        stream: SampleStream = self._stage.open_samples() if self._endless else self._stage.open_set(self._data.name)
        yield from islice(iter(stream.next, None), self._data.most)
        self._data.skipped = stream.skipped


def read_set(flag: str, given: str, folder: Path, most: int | None) -> DataSet:
    """Read what a flag says of a data set.

    :param flag: `--set`, say.
    :param given: SOURCE or NAME=SOURCE; the source is a text, or a JSON object, as in a plan.
    :param folder: the data sets folder.
    :param most: the most documents that are read.
    :raises UserError: when it is no data set.
    """
    named = _NAMED.fullmatch(given)
    name, text = (named[1], named[2]) if named and not Path(given).exists() else (None, given)
    label = f"{flag} {given if len(given) < 80 else name or given[:60] + '…'}"
    raw: Any = text
    if text.lstrip().startswith("{"):
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise UserError(f"{label}: not valid JSON ({value_fault(error)}).") from None
    short, spec = source_named(raw, label)
    if spec.weight is not None:
        raise UserError(f"{label}: found a weight on a source that is not mixed; leave it out.")
    return DataSet(label, name or short, spec, folder, most)


def shown(documents: Iterable[T], model: str, data: DataSet, unit: str = " documents") -> Iterable[T]:
    """Show on a terminal how many documents of a set a model has been judged by."""
    from tqdm import tqdm

    progress: Iterable[T] = tqdm(documents, desc=f"{model}, {data.name}", unit=unit, leave=False, disable=None)
    return progress


def _endless(data: DataSet) -> UserError:
    """Make the error for a source without end."""
    return UserError(f"{data.label}: the data set is endless; give the number of documents to read with --documents.")
