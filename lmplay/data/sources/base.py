"""What a source is: rows by number or rows in order, and what both say about themselves.  Data floor, no torch; imports the ground only."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, Protocol

from ...errors import UserError

# What a source's own validation rows may be called, best first.
VALIDATION_NAMES = ("validation", "valid", "val", "dev")


class SourceSpec(Protocol):
    """What is asked for: the part of a plan's source object that opening it needs."""

    path: str
    config: str | None
    split: str | None
    revision: str | None
    streaming: bool | None
    encoding_errors: Literal["replace", "refuse"] | None
    on_bad_row: Literal["skip", "stop"] | None
    row_bytes: int | None
    columns: Any  # role to field, or None


class Row(dict[str, Any]):
    """A row in which some characters (`replaced`) stand for bytes that are not UTF-8; a row without such is a plain dict."""

    def __init__(self, fields: dict[str, Any], replaced: int):
        super().__init__(fields)
        self.replaced = replaced


class BadRow(UserError):
    """A row that cannot be read: `reason` is what it is counted under when it is skipped, `location` says where it is.

    `source` and `row` are its numbers in the mix, once the source and the mix have set them.
    """

    def __init__(self, reason: str, location: str, fault: str):
        super().__init__(f"{location}: {fault}")
        self.reason, self.location, self.fault = reason, location, fault
        self.source = self.row = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep all of it when it is pickled, on its way from another process."""
        return type(self), (self.reason, self.location, self.fault), {"source": self.source, "row": self.row}


class Source:
    """Where rows come from.

    `name` is short, for statistics and messages. `columns` are the names of a row's fields, None where they are not known before reading.
    `fingerprint` is a small plain value that differs when the rows, or their order, differ. `has_nats`: rows say in `nats` how likely their text is.
    `rows_differ`: a row may have fields that are not among `columns`. `notes` are lines for the user: which files are read, which are left out and why.
    `may_have_own`: it has to be looked whether there are validation rows beside these.
    """

    name: str
    columns: tuple[str, ...] | None
    fingerprint: dict[str, Any]
    has_nats = False
    rows_differ = False
    may_have_own = True
    notes: tuple[str, ...] = ()

    def location(self, index: int) -> str:
        """Say where a row is, for a message: "a.jsonl, line 7".

        :param index: its ordinal number, from 0.
        """
        return f"{self.name}, row {index + 1}"


class IndexedSource(Source, ABC):
    """Rows by number, each at the same cost; `n_rows` is None for an endless source."""

    n_rows: int | None

    @abstractmethod
    def __getitem__(self, index: int) -> dict[str, Any]:
        """Give a row.

        :param index: its number, from 0.
        :return: the row's fields.
        :raises IndexError: when there is no such row.
        :raises BadRow: when the row cannot be parsed.
        :raises UserError: when nothing more can be read.
        """

    def stamp(self) -> tuple[str, float]:
        """Give what differs when the contents may, beyond the fingerprint (of a big file that is of a part), and the time of the last change, in seconds."""
        return "", 0.0

    def block(self, start: int, end: int) -> list[dict[str, Any] | BadRow]:
        """Give the rows [start, end), or what is wrong with them; faster than one by one where rows are stored together."""
        rows: list[dict[str, Any] | BadRow] = []
        for index in range(start, end):
            try:
                rows.append(self[index])
            except BadRow as bad:
                rows.append(bad)
        return rows


class Table(ABC):
    """The rows of one local file; `columns` is None where rows may differ in them."""

    columns: tuple[str, ...] | None

    @abstractmethod
    def __len__(self) -> int:
        """Give the number of rows."""

    @abstractmethod
    def __getitem__(self, index: int) -> dict[str, Any]:
        """Give row `index`, in [0, len); raises BadRow, naming file and line, when it cannot be parsed."""

    @abstractmethod
    def location(self, index: int) -> str:
        """Say where row `index` is: file and line."""


class Stream(ABC, Iterator[dict[str, Any]]):
    """A reading of a streamed source: gives row after row and knows its position."""

    @abstractmethod
    def state(self) -> Any:
        """Give the position: a small plain value, from which `open` goes on with the very next row; None is the start.

        A row that cannot be read raises BadRow, and counts as given: the position is behind it.
        """


class StreamedSource(Source, ABC):
    """Rows in order only; `n_rows` is None where the number is not known before the end."""

    n_rows: int | None

    @abstractmethod
    def open(self, state: Any = None) -> Stream:
        """Begin a reading; it is independent of other readings of the source.

        :param state: what a stream's `state()` gave, or None for the first row.
        :return: the stream.
        """


AnySource = IndexedSource | StreamedSource


def refuse_hub_keys(spec: SourceSpec, *keys: str) -> None:
    """Refuse what only a hub data set has.

    :param spec: the source asked for.
    :param keys: names of its fields that must be left out.
    :raises UserError: one line for each that is there.
    """
    given = [key for key in keys if getattr(spec, key) is not None]
    if given:
        raise UserError(*(f"source {spec.path}: '{key}' is for data sets of the hub; leave it out." for key in given))
