"""Local files as one source: any number of files of one format, one after the other, by row number.  Data floor, no torch."""
from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...errors import UserError, printable
from ...plan.catalog import PACKED_SUFFIXES
from ..roles import needed_columns
from .base import BadRow, IndexedSource, SourceSpec, Table, refuse_hub_keys
from .columnar import ArrowTable, open_parquet
from .contents import PACKED, head_of, kind_of, seems_json
from .index import Index
from .registry import Opener
from .selection import Selection, format_of, select
from .spans import Spans, content_digest, refuse_other_encodings, unpack
from .tables import CsvTable, JsonLines, open_json
from .text import BLOCK, TextTable

# Rows that are read at the start: for the names of columns, where a file has no header, and to find obvious faults.
_LOOKED_AT = 20
# The most files that a fingerprint lists, to say which have changed; of more it has one digest only.
MOST_LISTED = 1000


class LocalSource(IndexedSource):
    """The rows of files, in the files' order; their offsets are held in memory, the rows are not."""

    n_rows: int

    def __init__(self, name: str, tables: list[Table], fingerprint: dict[str, Any], strict: bool = False):
        """
        :param name: what it is called.
        :param tables: the files' rows.
        :param fingerprint: what tells the files apart from others.
        :param strict: every row has to be readable.
        :raises UserError: when none of the first rows can be read, or, if strict, one of them cannot.
        """
        self.name = name
        self._tables = tables
        self._starts = [0, *accumulate(map(len, tables))]
        self.n_rows = self._starts[-1]
        self.fingerprint = {**fingerprint, "rows": self.n_rows}
        seen = self._columns_seen(strict)
        self.columns = _union((*(table.columns or () for table in tables), seen))
        self.rows_differ = any(table.columns is None for table in tables)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`IndexedSource`."""
        if not 0 <= index < self.n_rows:
            raise IndexError(index)
        table = bisect_right(self._starts, index) - 1
        try:
            return self._tables[table][index - self._starts[table]]
        except BadRow as bad:
            bad.row = index
            raise

    def location(self, index: int) -> str:
        """See :class:`Source`."""
        table = bisect_right(self._starts, index) - 1
        return self._tables[table].location(index - self._starts[table])

    def _columns_seen(self, strict: bool) -> tuple[str, ...]:
        """Collect the fields of the first rows that can be read."""
        rows, bad = [], []
        for index in range(min(_LOOKED_AT, self.n_rows)):
            try:
                rows.append(self[index])
            except BadRow as row:
                bad.append(row)
        if bad and (strict or not rows):
            raise UserError(*bad[0].faults)
        return _union(rows)


def open_local(spec: SourceSpec, split: str, folder: Path) -> IndexedSource | None:
    """Open a file, a folder or a glob.

    :param spec: the source asked for.
    :param split: "train" or "validation".
    :param folder: the data sets folder, for what has to be unpacked or converted.
    :return: the source; None where "validation" is asked for and there is none.
    :raises UserError: when nothing is there, nothing is readable, or the first row isn't.
    """
    refuse_hub_keys(spec, "config", "revision", "streaming")
    path = Path(spec.path).expanduser()
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        from .library import open_saved_folder

        return open_saved_folder(spec, path, split)
    selection = select(spec.path, spec.split, split)
    if selection is None:
        return None
    spans = Spans(Index(folder))
    tables = [_open_table(file, spans, folder, spec) for file in selection.files]
    if not any(map(len, tables)):
        raise UserError(f"source {spec.path}: holds no rows; choose other files.")
    source = LocalSource(selection.title, tables, _fingerprint(selection, tables, spans.index, spec.row_bytes or BLOCK), spec.on_bad_row == "stop")
    source.notes = (*selection.notes, *_seeming(selection, tables))
    return source


def _open_table(file: Path, spans: Spans, folder: Path, spec: SourceSpec) -> Table:
    """Open one file, unpacked or converted first where needed."""
    label, path, refuse_bytes = printable(str(file)), file, spec.encoding_errors == "refuse"
    named = format_of(file)
    kind = kind_of(head_of(path), label, named)
    if kind in PACKED:
        path = unpack(file, kind, folder, spans.index)
        kind = kind_of(head_of(path), label, named)
    if kind in PACKED:
        raise UserError(f"{label}: is packed twice; unpack it once.")
    if kind == "parquet":
        return open_parquet(path, label, folder, spans, refuse_bytes, partial(needed_columns, roles=spec.columns))
    if kind == "arrow":
        return ArrowTable(path, label, spans, refuse_bytes)
    if refuse_bytes:
        refuse_other_encodings(path, label, spans.index)
    if kind == "json":
        return open_json(path, label, spans, lines=named == "jsonl")
    if kind == "jsonl":
        return JsonLines(path, label, spans)
    if kind in ("csv", "tsv"):
        return CsvTable(path, label, spans, "," if kind == "csv" else "\t")
    return TextTable(path, label, spans, spec.row_bytes or BLOCK)


def _seeming(selection: Selection, tables: list[Table]) -> list[str]:
    """Name the files that are read as plain text and seem to be something else."""
    texts = [file for file, table in zip(selection.files, tables, strict=True) if isinstance(table, TextTable)][:_LOOKED_AT]
    return [f"{printable(file.name)} seems to hold JSON, and is read as plain text; end its name in .jsonl or .json to read its fields"
            for file in texts if file.suffix.lower() not in PACKED_SUFFIXES and seems_json(head_of(file))][:1]


def _fingerprint(selection: Selection, tables: list[Table], index: Index, row_bytes: int) -> dict[str, Any]:
    """Sum up the contents of the files in their order, and list them; the length of text rows is part of it, as it moves rows."""
    found = zip(selection.files, selection.names, tables, strict=True)
    parts: list[list[Any]] = [[name, content_digest(file, index), len(table)] for file, name, table in found]
    digest = hashlib.blake2b("".join(digest for _, digest, _ in parts).encode(), digest_size=16).hexdigest()
    kinds = sorted({str(format_of(file)) for file in selection.files})
    kind, cut = " + ".join(kinds), {"block": row_bytes} if "text" in kinds else {}
    return {"kind": "local", "format": kind, "digest": digest, "files": len(parts), "listed": parts if len(parts) <= MOST_LISTED else [], **cut}


def _union(parts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Give all names once, in the order of their first coming."""
    return tuple(dict.fromkeys(name for part in parts for name in part))


FILES = Opener(open_local, of_files=True)
