"""Parquet and JSON lines read over the network while training, from any row on.  Data floor, no torch; pyarrow is imported when a file is opened.

The library's own streams read again what comes before a position in the same file, and retry without listening to a request to stop; these do not.
"""
from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from ...hub import first_line
from .base import BadRow, Row, Stream, StreamedSource
from .json_values import as_row
from .remote import File
from .spans import decoded
from .written_out import WrittenOut

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import FileMetaData

# The last bytes of a Parquet file that are read first: most footers fit.
_FOOTER = 2**16
# Rows that are decoded together.
_BATCH_ROWS = 512
# Rows whose keys are the columns of JSON lines.
_FIRST_ROWS = 100
# Bytes read at a time; of JSON lines a small part first, as often only the first rows are wanted.
_FIRST_PART, _PART = 2**18, 2**22
# Columns that are no further from each other are fetched together: a request takes about as long as reading this many bytes.
_GAP = 2**20
# The most files whose rows are counted at the start when no description states their number, and how many are asked at once.
_MOST_COUNTED, _COUNTED_TOGETHER = 64, 8
# Chooses among the names of columns.
Choose = Callable[[list[str]], list[str]]


class _ShardStream(Stream):
    """One reading: the position is the number of the file, and two numbers in it."""

    def __init__(self, files: Sequence[File], state: Any):
        """
        :param files: the files in order.
        :param state: see :meth:`Stream.state`.
        """
        self._files = files
        position: tuple[int, int, int] = state or (0, 0, 0)
        self._file, self._major, self._minor = position
        self._rows: Iterator[dict[str, Any]] | None = None

    def __next__(self) -> dict[str, Any]:
        try:
            if self._rows is None:
                self._rows = self._read()
            return next(self._rows)
        except StopIteration:
            raise
        except BaseException:
            self._rows = None  # the next try continues from the position, not from the end of a broken loop
            raise

    def state(self) -> Any:
        """See :class:`Stream`."""
        position = [self._file, self._major, self._minor]
        return position if any(position) else None

    def _read(self) -> Iterator[dict[str, Any]]:
        """Give the rows from the position on, which is past a row when it is given."""
        while self._file < len(self._files):
            yield from self._read_file(self._files[self._file])
            self._file, self._major, self._minor = self._file + 1, 0, 0

    @abstractmethod
    def _read_file(self, file: File) -> Iterator[dict[str, Any]]:
        """Give the rows of one file from the position in it on."""


class _ParquetStream(_ShardStream):
    """Reads Parquet; the two numbers are the row group, and the row in it."""

    def __init__(self, files: Sequence[File], state: Any, choose: Choose):
        """
        :param files: the files in order.
        :param state: see :meth:`Stream.state`.
        :param choose: chooses among the names of a file's columns; only those are fetched.
        """
        super().__init__(files, state)
        self._choose = choose

    def _read_file(self, file: File) -> Iterator[dict[str, Any]]:
        footer, window = _footer(file), _Window(file)
        with _Reading(file):
            table = WrittenOut(window, file.label, file.size, footer)
        columns = self._choose(table.schema.names)
        while self._major < footer.num_row_groups:
            if self._minor < footer.row_group(self._major).num_rows:
                window.hold(_stretches(footer, self._major, columns))
                yield from self._read_group(file, table, columns)
            self._major, self._minor = self._major + 1, 0

    def _read_group(self, file: File, table: WrittenOut, columns: list[str]) -> Iterator[dict[str, Any]]:
        """Give the rows of a row group from the position in it on."""
        skip = self._minor
        with _Reading(file):
            batches = table.batches(self._major, columns, _BATCH_ROWS)
        while True:
            with _Reading(file):
                batch = next(batches, None)
            if batch is None:
                return
            parts = table.write_out(batch.slice(min(skip, batch.num_rows)))
            while True:
                with _Reading(file):
                    part = next(parts, None)
                    rows = [] if part is None else part.to_pylist()
                if part is None:
                    break
                for row in rows:
                    self._minor += 1
                    yield row
            skip = max(0, skip - batch.num_rows)


class _LinesStream(_ShardStream):
    """Reads JSON lines; the two numbers are the byte where the next line begins, and the number of lines before it."""

    def _read_file(self, file: File) -> Iterator[dict[str, Any]]:
        for line in _lines(file, self._major):
            self._major, self._minor = self._major + len(line), self._minor + 1
            row = _row_of(line, file, self._minor)
            if row is not None:
                yield row


class ShardedSource(StreamedSource):
    """Files of one data set, read over the network while training; a reading continues from any row at the cost of a row group or less."""

    def __init__(self, name: str, form: str, files: Sequence[File], n_rows: int | None, fingerprint: dict[str, Any], choose: Choose = list):
        """
        :param name: what it is called.
        :param form: "parquet" or "lines".
        :param files: the files in order.
        :param n_rows: the number of rows that the data set's description states, if it does; few Parquet files are counted.
        :param fingerprint: what tells it apart from others.
        :param choose: chooses among the names of a Parquet file's columns; only those are fetched.
        :raises UserError: when a file cannot be had or is damaged.
        :raises Unavailable: when it is not to be had now.
        """
        self.name, self._form, self._files, self._choose = name, form, files, choose
        self.fingerprint = {**fingerprint, "files": len(files)}
        self.columns = tuple(choose(parquet_schema(files[0]).names)) if form == "parquet" else _first_keys(files)
        self.rows_differ = form == "lines"
        self.n_rows = n_rows if n_rows is not None or form != "parquet" else _count_rows(files)

    def good_lines(self) -> Iterator[bytes | BadRow]:
        """Give the lines of JSON lines that are rows, as they are and with their ends; of others what is wrong with them. Blank lines are left out."""
        for file in self._files:
            for number, line in enumerate(_lines(file, 0), 1):
                try:
                    if _row_of(line, file, number) is not None:
                        yield line.removesuffix(b"\n") + b"\n"
                except BadRow as bad:
                    yield bad

    def open(self, state: Any = None) -> Stream:
        """See :class:`StreamedSource`."""
        return _ParquetStream(self._files, state, self._choose) if self._form == "parquet" else _LinesStream(self._files, state)


class _Reading:
    """Turns an error of pyarrow about a damaged file into one line; errors of the network pass."""

    def __init__(self, file: File):
        self._file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        import pyarrow

        if isinstance(error, (pyarrow.ArrowException, OSError, ValueError)):
            raise UserError(f"{self._file.label}: is damaged, or no Parquet file ({first_line(error)}); {self._file.advice}.") from None


class _Window(io.RawIOBase):
    """A file as pyarrow reads it; the bytes of some stretches are held, others are requested."""

    def __init__(self, file: File):
        super().__init__()
        self._file, self._position = file, 0
        self._held: list[tuple[int, memoryview]] = []  # the first byte of each stretch, and its bytes

    def hold(self, stretches: Sequence[tuple[int, int]]) -> None:
        """Hold stretches, from their first byte to one past the last; where a single one has to be fetched, some of what follows it is fetched with it."""
        if all(self._find(*stretch) is not None for stretch in stretches):
            return
        self._held = []  # those of two row groups need not be in memory at once
        for start, end in stretches:
            self._held.append((start, memoryview(self._file.read(start, end if len(stretches) > 1 else max(end, start + _PART)))))

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be read anywhere."""
        return True

    def tell(self) -> int:
        """Give the position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position."""
        self._position = offset + (0 if whence == io.SEEK_SET else self._position if whence == io.SEEK_CUR else self._file.size)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Read from the position on."""
        start = self._position
        end = self._file.size if size is None or size < 0 else min(start + size, self._file.size)
        self._position = max(start, end)
        held = self._find(start, end)
        return self._file.read(start, end) if held is None else bytes(held)

    def _find(self, start: int, end: int) -> memoryview | None:
        """Give bytes that are held, None where they are not."""
        return next((data[start - first:end - first] for first, data in self._held if first <= start and end <= first + len(data)), None)


def parquet_schema(file: File) -> pyarrow.Schema:
    """Read the schema of a Parquet file.

    :param file: the file.
    :return: its schema, as Arrow's.
    :raises UserError: when it cannot be had or is damaged.
    """
    from pyarrow import parquet

    footer = _footer(file)
    with _Reading(file):
        return parquet.ParquetFile(_Window(file), metadata=footer).schema_arrow


@lru_cache(maxsize=8)  # every reading of a file needs it
def _footer(file: File) -> FileMetaData:
    """Read what a Parquet file says of its row groups."""
    from pyarrow import parquet

    window = _Window(file)
    window.hold([(max(0, file.size - _FOOTER), file.size)])
    with _Reading(file):
        return parquet.read_metadata(window)


def _stretches(footer: FileMetaData, number: int, columns: Sequence[str]) -> list[tuple[int, int]]:
    """Say where columns of a row group are: the first byte, and one past the last, of each stretch; those that are close to each other are one."""
    group = footer.row_group(number)
    every = [group.column(i) for i in range(group.num_columns)]
    chunks = [chunk for chunk in every if {chunk.path_in_schema, chunk.path_in_schema.partition(".")[0]} & {*columns}]
    starts = [min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset))) for chunk in chunks]
    found: list[tuple[int, int]] = []
    for start, end in sorted((start, start + chunk.total_compressed_size) for start, chunk in zip(starts, chunks, strict=True)):
        if found and start - found[-1][1] <= _GAP:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _lines(file: File, start: int) -> Iterator[bytes]:
    """Give the lines of a file with their ends, from the byte where one begins."""
    rest, part = b"", _FIRST_PART
    while found := file.read(start, start + part):
        start, part = start + len(found), _PART
        *whole, rest = (rest + found).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _row_of(line: bytes, file: File, number: int) -> dict[str, Any] | None:
    """Parse a line of JSON lines; None where it is blank. Raises BadRow when it is no row."""
    text, replaced = decoded(line)
    text = text.lstrip("\ufeff").strip()
    if not text:
        return None
    row = as_row(text, lambda: f"{file.label}, line {number}")
    return Row(row, replaced) if replaced else row


def _first_keys(files: Sequence[File]) -> tuple[str, ...] | None:
    """Name the columns of JSON lines: the keys of the first rows, up to a damaged one; None where there are no rows."""
    keys: dict[str, None] = {}
    try:
        for row in islice(_LinesStream(files, None), _FIRST_ROWS):
            keys |= dict.fromkeys(row)
    except UserError:
        if not keys:
            raise
    return tuple(keys) or None


def _count_rows(files: Sequence[File]) -> int | None:
    """Add up the rows that the footers state; None where there are too many files to ask them all."""
    if len(files) > _MOST_COUNTED:
        return None
    with ThreadPoolExecutor(_COUNTED_TOGETHER) as pool:
        return sum(pool.map(lambda file: _footer(file).num_rows, files))
