"""Tables in text files as rows: JSON lines, JSON, CSV and TSV, by number.  Data floor, no torch."""
from __future__ import annotations

import csv
import json
import os
from array import array
from collections.abc import Iterable, Iterator
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError, printable
from .base import BadRow, Row, Table
from .contents import head_of, separator_of
from .json_values import NotRead, as_row, no_object, parse, parse_all
from .progress import shown
from .spans import Spans, decoded, line_number, text_start, unreadable

if TYPE_CHECKING:
    import numpy as np

# What JSON allows between two values.
_BLANKS = b" \t\r\n"
# The scan for line ends reads this many bytes at a time.
_SCAN = 1 << 24
# Of a CSV field, in characters: the csv module refuses longer ones, and its own 131072 is less than a long article. The most a C long holds everywhere.
_FIELD_LIMIT = 2**31 - 1
# Stands for NUL, which the csv module of Python 3.10 refuses: half a character, which no text read from UTF-8 can hold.
_NUL = "\udc00"


class JsonLines(Table):
    """A file with one JSON object a line; blank lines are skipped. Holds 8 bytes a row."""

    columns = None

    def __init__(self, path: Path, label: str, spans: Spans):
        """
        :param path: the file.
        :param label: what the user calls it.
        :param spans: reads it.
        :raises UserError: when it cannot be read, or is UTF-16.
        """
        self._path, self._label, self._spans = path, label, spans
        spans.watch(path)
        begin = text_start(path, label)
        try:
            bounds = spans.index.get(path, "lines", lambda: _line_bounds(path, begin))
        except OSError as error:
            raise unreadable(path, error) from None
        count = int(bounds[0])
        self._starts, self._blank_lines = bounds[1:count + 1], bounds[count + 1:]

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`Table`."""
        text, replaced = decoded(self._spans.read(self._path, int(self._starts[index]), int(self._starts[index + 1])))
        row = as_row(text.lstrip("\ufeff"), lambda: self.location(index))  # files that begin with a mark may have been joined
        return Row(row, replaced) if replaced else row

    def location(self, index: int) -> str:
        """See :class:`Table`."""
        import numpy as np

        # Blank lines are known by their numbers, less the blank lines before each: the number of rows before it.
        return f"{self._label}, line {index + 1 + int(np.searchsorted(self._blank_lines, index, side='right'))}"


class JsonArray(Table):
    """The values of one array, held in memory: objects, and strings, which are texts."""

    columns = None

    def __init__(self, values: list[Any], label: str, replaced: bool = False):
        """
        :param values: the array.
        :param label: what the user calls the file.
        :param replaced: whether some of its bytes were not UTF-8.
        """
        self._values, self._label, self._replaced = values, label, replaced

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`Table`."""
        value = self._values[index]
        row = {"text": value} if isinstance(value, str) else value
        if not isinstance(row, dict):
            raise no_object(self.location(index))
        replaced = json.dumps(row, ensure_ascii=False).count("\ufffd") if self._replaced else 0
        return Row(row, replaced) if replaced else row

    def location(self, index: int) -> str:
        """See :class:`Table`."""
        return f"{self._label}, object {index + 1}"


class CsvTable(Table):
    """A file of values separated by commas, tabs, semicolons or bars, with a header row; all values are strings, missing ones None. Holds 8 bytes a row."""

    columns: tuple[str, ...]

    def __init__(self, path: Path, label: str, spans: Spans, delimiter: str):
        """
        :param path: the file.
        :param label: what the user calls it.
        :param spans: reads it.
        :param delimiter: what usually stands between two values; another that fits better is taken instead.
        :raises UserError: when it cannot be read, is UTF-16, or its header has a name twice.
        """
        csv.field_size_limit(_FIELD_LIMIT)
        spans.watch(path)
        begin = text_start(path, label)
        self._path, self._label, self._spans, self._delimiter = path, label, spans, separator_of(head_of(path)[begin:], delimiter)
        delimiter = self._delimiter
        try:
            self._starts = spans.index.get(path, f"records {delimiter}", lambda: self._record_starts(begin))
        except OSError as error:
            raise unreadable(path, error) from None
        except csv.Error as error:
            raise UserError(f"{label}: cannot be read as a table ({error}); fix it.") from None
        self._check_closed()
        header = self._record(0)[0] if len(self._starts) > 1 else []
        self.columns = tuple(header)
        twins = sorted({name for name in header if header.count(name) > 1})
        if twins:
            raise UserError(f"{label}: the header has the column '{twins[0]}' twice; rename one.")

    def __len__(self) -> int:
        return max(0, len(self._starts) - 2)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`Table`."""
        values, replaced = self._record(index + 1)
        if len(self.columns) == 1:  # what would separate values is part of the text
            values = [self._delimiter.join(values)]
        if len(values) > len(self.columns):
            raise BadRow("too many values", self.location(index), f"{len(values)} values under a header of {len(self.columns)}; "
                                                               f"put values that contain '{self._delimiter}' in quotes.")
        row = dict(zip_longest(self.columns, values))
        return Row(row, replaced) if replaced else row

    def location(self, index: int) -> str:
        """See :class:`Table`."""
        return f"{self._label}, line {line_number(self._path, int(self._starts[index + 1]))}"

    def _record(self, number: int) -> tuple[list[str], int]:
        """Parse a record, 0 is the header; gives how many of its characters were replaced, too."""
        text, replaced = decoded(self._spans.read(self._path, int(self._starts[number]), int(self._starts[number + 1])))
        values = next(csv.reader(_without_nul(StringIO(text, newline="")), delimiter=self._delimiter), [])
        return [value.replace(_NUL, "\0") for value in values], replaced

    def _check_closed(self) -> None:
        """Refuse a file whose last record goes to its end because a quote was never closed: it may have swallowed thousands of rows."""
        if len(self._starts) < 2:
            return
        text, _ = decoded(self._spans.read(self._path, int(self._starts[-2]), int(self._starts[-1])))
        if not {"\n", "\r"} & {*text.rstrip("\r\n")}:
            return
        records = list(csv.reader(_without_nul(StringIO(text.rstrip("\r\n") + "\nx\n", newline="")), delimiter=self._delimiter))
        if len(records) == 1:  # what was added is in the quotes, too
            raise UserError(f"{self._label}, line {line_number(self._path, int(self._starts[-2]))}: a quote is opened here that is not closed before the "
                            "file ends, so that all that follows would be one row; close it, or write it twice inside a value in quotes.")

    def _record_starts(self, begin: int) -> np.ndarray:
        """Find the first byte of the header and of each record, and the end of the file; int64."""
        import numpy as np

        starts, position = array("q"), begin

        def lines() -> Iterator[str]:
            nonlocal position
            for line in file:
                for part in line.splitlines(keepends=True):
                    position += len(part)
                    yield part.decode("utf-8", "replace")

        size = os.stat(self._path).st_size
        with open(self._path, "rb") as file, shown(f"looking for the rows of {printable(self._path.name)}", size) as update:
            file.seek(begin)
            start = position
            for record in csv.reader(_without_nul(lines()), delimiter=self._delimiter):
                if record:  # an empty line is no record
                    starts.append(start)
                update(position - start)
                start = position
        starts.append(position)
        return np.frombuffer(starts, dtype=np.int64)


def open_json(path: Path, label: str, spans: Spans, lines: bool = False) -> Table:
    """Open JSON: an array of objects, one object that holds exactly one array, or values that follow one another.

    :param path: the file.
    :param label: what the user calls it.
    :param spans: reads it.
    :param lines: what is not valid as a whole is read as JSON lines.
    :return: its rows.
    :raises UserError: when it cannot be read or is none of these.
    """
    begin = text_start(path, label)
    try:
        text, replaced = decoded(path.read_bytes()[begin:])
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        value = parse(text) if text.strip() else []
    except NotRead as fault:
        if fault.error is None:
            raise UserError(f"{label}: {fault}; write each object on a line of its own, as JSON lines.") from None
        if fault.error.msg == "Extra data":  # a whole value is followed by another
            return _open_values(path, text, label, spans, replaced > 0)
        if lines:
            return JsonLines(path, label, spans)
        raise UserError(f"{label}, line {fault.error.lineno}, column {fault.error.colno}: {fault}.") from None
    arrays = [value] if isinstance(value, list) else [part for part in value.values() if isinstance(part, list)] if isinstance(value, dict) else []
    if len(arrays) != 1:
        raise UserError(f"{label}: holds {len(arrays)} arrays; it must be an array of objects, or one object that holds exactly one array.")
    return JsonArray(arrays[0], label, replaced > 0)


def _open_values(path: Path, text: str, label: str, spans: Spans, replaced: bool) -> Table:
    """Open JSON values that follow one another: in lines, or each on several lines."""
    try:
        parse(text.lstrip().partition("\n")[0])
        return JsonLines(path, label, spans)
    except NotRead:
        pass
    try:
        return JsonArray(parse_all(text), label, replaced)
    except NotRead as fault:
        raise UserError(f"{label}: {fault}; write each object on a line of its own, as JSON lines.") from None


def _line_bounds(path: Path, begin: int) -> np.ndarray:
    """Find the lines that are not blank.

    :return: how many numbers follow next; the first byte of each line and the end of the file; then for each blank line the rows before it.
    """
    import numpy as np

    found: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
    doubtful: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]  # lines that begin as a blank one does
    with open(path, "rb") as file, shown(f"looking for the rows of {printable(path.name)}", os.fstat(file.fileno()).st_size) as update:
        file.seek(begin)
        position, begins = begin, True
        while block := file.read(_SCAN):
            data = np.frombuffer(block, dtype=np.uint8)
            starts = np.flatnonzero(data == ord("\n")) + 1
            starts = np.concatenate([np.zeros(int(begins), dtype=np.int64), starts[starts < len(data)]])
            found.append(starts + position)
            doubtful.append(starts[np.isin(data[starts], list(_BLANKS))] + position)
            begins = data[-1] == ord("\n")
            position += len(block)
            update(len(block))
        bounds = np.append(np.concatenate(found), position)
        lines = np.searchsorted(bounds, np.concatenate(doubtful))
        blank = np.array([line for line in lines if not _read(file, bounds[line], bounds[line + 1]).strip(_BLANKS)], dtype=np.int64)
    starts = np.delete(bounds, blank)
    return np.concatenate([[len(starts)], starts, blank - np.arange(len(blank))]).astype(np.int64)


def _read(file: Any, start: Any, end: Any) -> bytes:
    """Read the bytes [start, end) of an open file."""
    file.seek(int(start))
    return bytes(file.read(int(end - start)))


def _without_nul(lines: Iterable[str]) -> Iterator[str]:
    """Replace NUL by what stands for it."""
    return (line.replace("\0", _NUL) if "\0" in line else line for line in lines)
