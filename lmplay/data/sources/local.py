"""Local files as one source: any number of files of one format, one after the other, by row number.  Data floor, no torch."""
from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, compress, count, groupby, islice
from pathlib import Path
from typing import Any

from ...errors import UserError, printable
from ...paths import expanded
from ..roles import needed_columns
from .base import BadRow, IndexedSource, SourceSpec, Table, refuse_hub_keys
from .columnar import ArrowTable, open_parquet
from .contents import PACKED, head_of, kind_of, seems_json
from .index import Index
from .registry import Opener
from .selection import Selection, check_regular, format_of, is_packed, select
from .spans import Spans, content_digest, refuse_other_encodings, unpack
from .tables import CsvTable, JsonLines, open_json
from .text import BLOCK, TextFiles, TextScan

# Rows that are read at the start: for the names of columns, where a file has no header, and to find obvious faults.
_LOOKED_AT = 20
# The most files that a fingerprint lists, to say which have changed; of more it has one digest only.
MOST_LISTED = 1000


class LocalSource(IndexedSource):
    """The rows of files, in the files' order; their offsets are held in memory, the rows are not."""

    n_rows: int

    def __init__(self, selection: Selection, tables: list[Table], fingerprint: dict[str, Any], strict: bool = False):
        """
        :param selection: the files, and what they are called.
        :param tables: the files' rows.
        :param fingerprint: what tells the files apart from others.
        :param strict: every row has to be readable.
        :raises UserError: when none of the first rows can be read, or, if strict, one of them cannot.
        """
        self.name = selection.title
        self._selection, self._tables = selection, tables
        self._starts = [0, *accumulate(map(len, tables))]
        self.n_rows = self._starts[-1]
        self.fingerprint = {**fingerprint, "rows": self.n_rows}
        seen = self._columns_seen(strict)
        self.columns = _union((*(table.columns or () for table in tables), seen))
        self.may_have_own = selection.has_validation
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

    def stamp(self) -> tuple[str, float]:
        """See :class:`IndexedSource`."""
        found = [os.stat(self._selection.root / name) for name in self._selection.names]
        return repr([(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in found]), max(max(stat.st_mtime, stat.st_ctime) for stat in found)

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
    path = expanded(spec.path)
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        from .library import open_saved_folder

        return open_saved_folder(spec, path, split)
    selection = select(spec.path, spec.split, split)
    return None if selection is None else open_selection(selection, folder, spec)


def open_selection(selection: Selection, folder: Path, spec: SourceSpec) -> LocalSource:
    """Open files that have been selected.

    :param selection: the files.
    :param folder: the data sets folder, for what has to be unpacked or converted.
    :param spec: the source asked for; its path is for messages.
    :return: the source.
    :raises UserError: when nothing is readable, or the first row isn't.
    """
    parts = _open_parts(selection, Spans(Index(folder)), folder, spec)
    tables = [part.table for part in parts]
    if not any(map(len, tables)):
        raise UserError(f"source {spec.path}: holds no rows; choose other files.")
    source = LocalSource(selection, tables, _fingerprint(selection, parts, spec.row_bytes or BLOCK), spec.on_bad_row == "stop")
    source.notes = (*selection.notes, *_seeming(selection, parts))
    return source


@dataclass
class _Part:
    """Files that follow one another and are one table: their names, their digests (hexadecimal, 32 digits each) and the number of rows of each."""

    names: Sequence[str]
    table: Table
    digests: str
    rows: Sequence[int]


def _open_parts(selection: Selection, spans: Spans, folder: Path, spec: SourceSpec) -> list[_Part]:
    """Open the files of a source: plain texts together, of which there may be a million, others one by one."""
    names = selection.names
    plain = [format_of(name) == "text" and not is_packed(name) for name in names]
    texts = [*compress(names, plain)]
    scan = TextScan(spec.path, selection.root, texts, spans, spec.row_bytes or BLOCK, spec.encoding_errors == "refuse") if texts else None
    counts = scan.counts.tolist() if scan is not None else []
    in_scan = count()
    numbers = [next(in_scan) if named else -1 for named in plain]
    numbers = [number if number >= 0 and counts[number] >= 0 else -1 for number in numbers]  # by its contents a file may be no text
    parts = []
    for is_text, group in groupby(range(len(names)), lambda i: numbers[i] >= 0):
        if is_text and scan is not None:
            files = [*group]
            begin, end = numbers[files[0]], numbers[files[-1]] + 1
            digests, rows = scan.digests[begin:end].tobytes().hex(), counts[begin:end]
            parts.append(_Part(names[files[0]:files[-1] + 1], TextFiles(scan, begin, end, spans), digests, rows))
            continue
        for i in group:
            file = selection.root / names[i]
            table = _open_table(file, spans, folder, spec)
            parts.append(_Part([names[i]], table, content_digest(file, spans.index), [len(table)]))
    return parts


def _open_table(file: Path, spans: Spans, folder: Path, spec: SourceSpec) -> Table:
    """Open one file, unpacked or converted first where needed."""
    check_regular(spec.path, file)
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
    scan = TextScan(spec.path, path.parent, [path.name], spans, spec.row_bytes or BLOCK)
    return TextFiles(scan, 0, 1, spans)


def _seeming(selection: Selection, parts: list[_Part]) -> list[str]:
    """Name the files that are read as plain text and seem to be something else."""
    texts = islice((name for part in parts if isinstance(part.table, TextFiles) for name in part.names if not is_packed(name)), _LOOKED_AT)
    return [f"{printable(os.path.basename(name))} seems to hold JSON, and is read as plain text; end its name in .jsonl or .json to read its fields"
            for name in texts if seems_json(head_of(selection.root / name))][:1]


def _fingerprint(selection: Selection, parts: list[_Part], row_bytes: int) -> dict[str, Any]:
    """Sum up the contents of the files in their order, and list them; the length of text rows is part of it, as it moves rows."""
    digest, n_files = hashlib.blake2b(digest_size=16), len(selection.names)
    for part in parts:
        digest.update(part.digests.encode())
    listed = [[printable(name), part.digests[32 * i:32 * i + 32], part.rows[i]]
              for part in parts for i, name in enumerate(part.names) if n_files <= MOST_LISTED]
    kinds = sorted({str(format_of(name)) for name in selection.names})
    kind, cut = " + ".join(kinds), {"block": row_bytes} if "text" in kinds else {}
    return {"kind": "local", "format": kind, "digest": digest.hexdigest(), "files": n_files, "listed": listed, **cut}


def _union(parts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Give all names once, in the order of their first coming."""
    return tuple(dict.fromkeys(name for part in parts for name in part))


FILES = Opener(open_local, of_files=True)
