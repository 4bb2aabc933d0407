"""Parquet and Arrow files as rows, mapped into memory.  Data floor, no torch; pyarrow is imported when a file is opened."""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from zlib import crc32

from ...errors import UserError
from ...hub import first_line
from .base import BadRow, Row, Table
from .spans import Spans, decoded, made_once
from .written_out import WrittenOut

if TYPE_CHECKING:
    import pyarrow

# Rows that are converted together: about 3 MB of articles; fewer where rows are long, by the bytes that a batch should have at most.
_BATCH_ROWS, _BATCH_BYTES = 1000, 1 << 26
# Batches that are kept: mapped ones cost nothing, compressed ones would be decompressed for each row.
_BATCHES_HELD = 16


class ArrowTable(Table):
    """An Arrow file, a stream or one of random access, mapped into memory: a row costs the same wherever it is."""

    def __init__(self, path: Path, label: str, spans: Spans, refuse_bytes: bool = False):
        """
        :param path: the file.
        :param label: what the user calls it.
        :param spans: checks that it does not change.
        :param refuse_bytes: refuse strings that are not UTF-8, instead of replacing the bytes that are not.
        :raises UserError: when it cannot be read.
        """
        import pyarrow

        self._path, self._label, self._spans, self._refuse_bytes = path, label, spans, refuse_bytes
        spans.watch(path)
        try:
            schema, count, self._batch = _open_arrow(path)
            self.columns = tuple(schema.names)
            self._starts = [0, *accumulate(self._batch(i).num_rows for i in range(count))]
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise _damaged(label, "Arrow", error) from None

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`Table`."""
        import pyarrow

        self._spans.check(self._path)  # reading mapped bytes that are gone would kill the process
        number = bisect_right(self._starts, index) - 1
        try:
            batch = self._batch(number).slice(index - self._starts[number], 1)
        except (pyarrow.ArrowException, OSError) as error:
            raise _damaged(self._label, "Arrow", error) from None
        try:
            return batch.to_pylist()[0]
        except UnicodeDecodeError:
            if self._refuse_bytes:
                raise UserError(f"{self.location(index)}: holds bytes that are not UTF-8; fix them, or let them be replaced with "
                                "\"encoding_errors\": \"replace\".") from None
            return self._replaced(batch, index)
        except (pyarrow.ArrowException, ValueError, OverflowError) as error:
            raise BadRow("not readable", self.location(index), f"cannot be read ({error}).") from None

    def location(self, index: int) -> str:
        """See :class:`Table`."""
        return f"{self._label}, row {index + 1}"

    def _replaced(self, batch: pyarrow.RecordBatch, index: int) -> Row:
        """Make a row of which some strings are not UTF-8."""
        import pyarrow

        row: dict[str, Any] = {}
        total = 0
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
                data = column.cast(pyarrow.large_binary())[0].as_py()
                row[name], count = decoded(data) if data is not None else (None, 0)
                total += count
                continue
            try:
                row[name] = column[0].as_py()
            except UnicodeDecodeError:
                raise BadRow("not UTF-8", self.location(index), f"'{name}' holds bytes that are not UTF-8.") from None
        return Row(row, total)


def open_parquet(path: Path, label: str, folder: Path, spans: Spans, refuse_bytes: bool = False,
                 choose: Callable[[list[str]], list[str]] = list) -> ArrowTable:
    """Open a Parquet file, whose rows cannot be read one by one, by way of an Arrow file made from it once.

    Only the columns that are chosen are read and kept: a file may be large for its other columns.

    :param path: the file.
    :param label: what the user calls it.
    :param folder: the data sets folder; `converted/` in it keeps the Arrow file.
    :param spans: checks that it does not change.
    :param refuse_bytes: refuse strings that are not UTF-8, instead of replacing the bytes that are not.
    :param choose: chooses among the names of its columns.
    :return: its rows.
    :raises UserError: when it is damaged or there is no space.
    """
    import pyarrow

    def convert(file: IO[bytes]) -> None:
        about, groups = table.metadata, range(table.metadata.num_row_groups)
        size = max(1, sum(about.row_group(i).total_byte_size for i in groups))
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * about.num_rows // size))
        with pyarrow.ipc.new_file(file, pyarrow.schema([table.schema.field(name) for name in chosen])) as arrow:
            for batch in (batch for i in groups for batch in table.batches(i, columns, rows)):
                for part in table.write_out(batch):
                    arrow.write_batch(part.select(chosen))

    try:
        table = WrittenOut(path, label, path.stat().st_size)
        chosen = choose(table.schema.names)
        columns = None if chosen == table.schema.names else chosen
        part = "" if columns is None else f"{crc32(repr(columns).encode()):08x}-"
        made = made_once(path, folder / "converted", f"{part}{path.stem}.arrow", convert, spans.index)
        table.close()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise _damaged(label, "Parquet", error) from None
    return ArrowTable(made, label, spans, refuse_bytes)


def _open_arrow(path: Path) -> tuple[pyarrow.Schema, int, Callable[[int], pyarrow.RecordBatch]]:
    """Map an Arrow file; gives its schema, how many batches it has, and what gives batch `i`."""
    import pyarrow

    mapped = pyarrow.memory_map(str(path))
    try:
        reader = pyarrow.ipc.open_file(mapped)
        return reader.schema, reader.num_record_batches, lru_cache(_BATCHES_HELD)(reader.get_batch)
    except pyarrow.ArrowInvalid:
        mapped.seek(0)
        stream = pyarrow.ipc.open_stream(mapped)
        batches = list(stream)
        return stream.schema, len(batches), batches.__getitem__


def _damaged(label: str, kind: str, error: Exception) -> UserError:
    """Make the error for a file that is not what its name says."""
    return UserError(f"{label}: cannot be read as {kind} ({first_line(error)}); it may be cut off: fetch it again.")
