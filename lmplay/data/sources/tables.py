"""Tables in text files as rows: JSON lines, JSON, CSV and TSV, by number.  Data floor, no torch."""
from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from .base import Table
from .spans import Spans, line_number, text_start, unreadable

if TYPE_CHECKING:
    import numpy as np

# What JSON allows between two values.
_BLANKS = b" \t\r\n"
# The scan for line ends holds this many bytes of masks at a time.
_SCAN = 1 << 24
# Of a CSV field, in characters: the csv module refuses longer ones, and its own 131072 is less than a long article. The most a C long holds everywhere.
_FIELD_LIMIT = 2**31 - 1


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
        self._starts = _line_starts(path, text_start(path, label))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`Table`."""
        start = int(self._starts[index])
        line = self._spans.read(self._path, start, int(self._starts[index + 1]))
        try:
            return as_row(json.loads(line.decode("utf-8", "replace")))
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            where = f"{self._label}, line {line_number(self._path, start)}"
            raise UserError(f"{where}: not valid JSON ({reason}); each line must be one whole JSON object: mend or delete it.") from None


class JsonArray(Table):
    """The objects of one array, held in memory."""

    columns = None

    def __init__(self, values: list[Any]):
        """
        :param values: the array.
        """
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`Table`."""
        return as_row(self._values[index])


class CsvTable(Table):
    """A file of comma or tab separated values with a header row; all values are strings, missing ones None. Holds 8 bytes a row."""

    columns: tuple[str, ...]

    def __init__(self, path: Path, label: str, spans: Spans, delimiter: str):
        """
        :param path: the file.
        :param label: what the user calls it.
        :param spans: reads it.
        :param delimiter: what stands between two values.
        :raises UserError: when it cannot be read, is UTF-16, or its header has a name twice.
        """
        self._path, self._label, self._spans, self._delimiter = path, label, spans, delimiter
        csv.field_size_limit(_FIELD_LIMIT)
        self._starts = self._record_starts(text_start(path, label))
        header = self._record(0) if len(self._starts) > 1 else []
        self.columns = tuple(header)
        twins = sorted({name for name in header if header.count(name) > 1})
        if twins:
            raise UserError(f"{label}: the header has the column '{twins[0]}' twice; rename one.")

    def __len__(self) -> int:
        return max(0, len(self._starts) - 2)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`Table`."""
        values = self._record(index + 1)
        if len(values) > len(self.columns):
            where = f"{self._label}, line {line_number(self._path, int(self._starts[index + 1]))}"
            raise UserError(f"{where}: {len(values)} values under a header of {len(self.columns)}; put values that contain '{self._delimiter}' in quotes.")
        return dict(zip_longest(self.columns, values))

    def _record(self, number: int) -> list[str]:
        """Parse a record; 0 is the header."""
        data = self._spans.read(self._path, int(self._starts[number]), int(self._starts[number + 1]))
        return next(csv.reader(_decoded(data.splitlines(keepends=True)), delimiter=self._delimiter), [])

    def _record_starts(self, begin: int) -> np.ndarray:
        """Find the first byte of the header and of each record, and the end of the file; int64."""
        import numpy as np

        starts, position = array("q"), begin
        try:
            with open(self._path, "rb") as file:
                file.seek(begin)

                def lines() -> Iterator[bytes]:
                    nonlocal position
                    for line in file:
                        position += len(line)
                        yield line

                records = csv.reader(_decoded(lines()), delimiter=self._delimiter)
                start = position
                for record in records:
                    if record:  # an empty line is no record
                        starts.append(start)
                    start = position
        except OSError as error:
            raise unreadable(self._path, error) from None
        except csv.Error as error:
            raise UserError(f"{self._label}, line {line_number(self._path, position)}: cannot be read as a table ({error}); mend it.") from None
        starts.append(position)
        return np.frombuffer(starts, dtype=np.int64)


def open_json(path: Path, label: str, spans: Spans) -> Table:
    """Open a .json file: an array of objects, one object that holds exactly one array, or JSON lines under another name.

    :param path: the file.
    :param label: what the user calls it.
    :param spans: reads it.
    :return: its rows.
    :raises UserError: when it cannot be read or is none of these.
    """
    text_start(path, label)
    try:
        value = json.loads(path.read_text("utf-8-sig", "replace"))
    except OSError as error:
        raise unreadable(path, error) from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # a whole value is followed by another
            return JsonLines(path, label, spans)
        raise UserError(f"{label}, line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}).") from None
    arrays = [value] if isinstance(value, list) else [part for part in value.values() if isinstance(part, list)] if isinstance(value, dict) else []
    if len(arrays) != 1:
        raise UserError(f"{label}: holds {len(arrays)} arrays; it must be an array of objects, or one object that holds exactly one array.")
    return JsonArray(arrays[0])


def as_row(value: Any) -> dict[str, Any]:
    """Make a row of a JSON value: an object is one, a string is its text, and anything else is an empty row, which is counted and skipped later."""
    if isinstance(value, dict):
        return value
    return {"text": value} if isinstance(value, str) else {}


def _line_starts(path: Path, begin: int) -> np.ndarray:
    """Find the first byte of each line that is not blank, and the end of the file; int64."""
    import numpy as np

    try:
        size = path.stat().st_size
        if size == begin:
            return np.array([size], dtype=np.int64)
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise unreadable(path, error) from None
    ends = [np.flatnonzero(data[block:block + _SCAN] == ord("\n")) + block for block in range(0, size, _SCAN)]
    starts = np.concatenate([[begin], *ends]).astype(np.int64, copy=False)
    starts[1:] += 1
    starts = starts[starts < size]
    bounds = np.append(starts, size)
    perhaps_blank = np.flatnonzero(np.isin(data[starts], list(_BLANKS)))
    blank = [line for line in perhaps_blank if not data[bounds[line]:bounds[line + 1]].tobytes().strip(_BLANKS)]
    return np.delete(bounds, blank)


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    """Decode lines of UTF-8; what is not becomes U+FFFD."""
    return (line.decode("utf-8", "replace") for line in lines)
