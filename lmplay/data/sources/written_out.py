"""Parquet files read in parts that fit into memory: a small file may stand for very much.  Data floor, no torch; pyarrow is imported when a file is opened.

A value that comes again and again stands once in a file, in a dictionary, or as what differs from the value before. So strings are read as dictionaries, and
written out for as many rows at a time as fit.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from .spans import MADE, TIMES

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import FileMetaData, ParquetFile

# Bytes of rows that are written out together; of one row, and of a column in a row group as it is stored: what is more has to be in proportion to the file.
_PART_BYTES, _MOST_BYTES = 1 << 26, 1 << 28
# Encodings that pyarrow does not read as dictionaries; of the first a value may be little more than how much it has of the one before.
_DIFFERENCES = {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}


class WrittenOut:
    """A Parquet file as plain rows."""

    def __init__(self, source: Any, label: str, size: int, metadata: FileMetaData | None = None):
        """
        :param source: a path or an open file.
        :param label: what the user calls it.
        :param size: its bytes.
        :param metadata: what it says of its row groups; None = read it.
        :raises pyarrow.ArrowException, OSError, ValueError: when it is damaged.
        """
        from pyarrow import parquet

        self._label, self._size = label, size
        with_types = parquet.ParquetFile(source, metadata=metadata)
        self.metadata: FileMetaData = with_types.metadata
        self.schema = _plain(with_types.schema_arrow)
        with_types.close()
        groups = range(self.metadata.num_row_groups)
        chunks = [self.metadata.row_group(i).column(j) for i in groups for j in range(self.metadata.num_columns)]
        maps = {field.name for field in self.schema if "map<" in str(field.type)}
        texts = {chunk.path_in_schema for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"}
        # Texts that pyarrow does not read as dictionaries, or does nothing with then.
        self._as_they_are = {chunk.path_in_schema for chunk in chunks
                             if not _DIFFERENCES.isdisjoint(chunk.encodings) or chunk.path_in_schema.partition(".")[0] in maps} & texts
        self._file: ParquetFile = parquet.ParquetFile(source, metadata=self.metadata, read_dictionary=sorted(texts - self._as_they_are))

    def batches(self, group: int, columns: list[str] | None, rows: int) -> Iterator[pyarrow.RecordBatch]:
        """Read a row group; strings are not written out yet.

        :param columns: names of the columns; None = all.
        :param rows: the most of a batch.
        :raises UserError: when it holds far more than a file of this size should.
        """
        found = self.metadata.row_group(group)
        chunks = [found.column(i) for i in range(found.num_columns)]
        for chunk in chunks:
            if columns is not None and not {chunk.path_in_schema, chunk.path_in_schema.partition(".")[0]} & {*columns}:
                continue
            stored = chunk.total_uncompressed_size
            if stored > max(_MOST_BYTES, TIMES * chunk.total_compressed_size) or 8 * chunk.num_values > max(MADE, TIMES * self._size):
                raise self._too_much(f"the column {chunk.path_in_schema} of a row group")
            if chunk.path_in_schema in self._as_they_are:  # each value may be about as long as all that is stored
                rows = max(1, min(rows, 2 * _PART_BYTES // max(1, stored)))
        return self._file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)

    def write_out(self, batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
        """Write the values of a batch out, in parts that fit into memory; raises UserError where a row of it is far longer than the file."""
        import pyarrow

        size = sum(map(_bytes_of_texts, batch.columns))
        if size > _PART_BYTES and batch.num_rows > 1:
            half = batch.num_rows // 2
            yield from self.write_out(batch.slice(0, half))
            yield from self.write_out(batch.slice(half))
            return
        if size > max(_MOST_BYTES, TIMES * self._size):
            raise self._too_much("a row")
        whole = batch.take(pyarrow.array(range(batch.num_rows), pyarrow.int64()))  # without the values of the rows beside it
        yield whole.cast(pyarrow.schema([self.schema.field(name) for name in batch.schema.names]))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _too_much(self, what: str) -> UserError:
        """Make the error for something that a small file should not hold."""
        return UserError(f"{self._label}: {what} holds more than {_MOST_BYTES:,} bytes, and far more than the file has; if that is intended, "
                         "give its rows as JSON lines.")


def _plain(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Give the schema of the same columns without dictionaries."""
    import pyarrow

    return pyarrow.schema([field.with_type(field.type.value_type) if pyarrow.types.is_dictionary(field.type) else field for field in schema])


def _bytes_of_texts(array: pyarrow.Array) -> int:
    """Count the bytes of the strings that a dictionary stands for, in columns within each other too."""
    from pyarrow import compute, types

    kind = array.type
    if types.is_dictionary(kind):
        if not (types.is_string(kind.value_type) or types.is_large_string(kind.value_type) or types.is_binary(kind.value_type)):
            return 0
        return compute.sum(compute.binary_length(array.dictionary).take(array.indices)).as_py() or 0
    if types.is_list(kind) or types.is_large_list(kind):
        return _bytes_of_texts(array.flatten())
    return sum(map(_bytes_of_texts, array.flatten())) if types.is_struct(kind) else 0
