"""Local files as one source: any number of files of one format, one after the other, by row number.  Data floor, no torch."""
from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...errors import UserError
from .base import IndexedSource, SourceSpec, Table, refuse_hub_keys
from .columnar import ArrowTable, open_parquet
from .selection import Selection, format_of, select
from .spans import PACKED_SUFFIXES, Spans, content_digest, unpack
from .tables import CsvTable, JsonLines, open_json
from .text import BLOCK, TextTable

# Rows that are looked at for the names of columns, where a file has no header.
_LOOKED_AT = 20


class LocalSource(IndexedSource):
    """The rows of files, in the files' order; their offsets are held in memory, the rows are not."""

    n_rows: int

    def __init__(self, name: str, tables: list[Table], fingerprint: dict[str, Any]):
        """
        :param name: what it is called.
        :param tables: the files' rows.
        :param fingerprint: what tells the files apart from others.
        """
        self.name = name
        self._tables = tables
        self._starts = [0, *accumulate(map(len, tables))]
        self.n_rows = self._starts[-1]
        self.fingerprint = {**fingerprint, "rows": self.n_rows}
        self.columns = _union(table.columns if table.columns is not None else () for table in tables) or self._columns_seen()

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`IndexedSource`."""
        if not 0 <= index < self.n_rows:
            raise IndexError(index)
        table = bisect_right(self._starts, index) - 1
        return self._tables[table][index - self._starts[table]]

    def _columns_seen(self) -> tuple[str, ...]:
        """Collect the fields of the first rows; reading them also finds the plainest faults at once."""
        return _union(self[i] for i in range(min(_LOOKED_AT, self.n_rows)))


def open_local(spec: SourceSpec, split: str, folder: Path) -> IndexedSource | None:
    """Open a file, a folder or a glob.

    :param spec: the source asked for.
    :param split: "train" or "validation".
    :param folder: the data sets folder, for what has to be unpacked or converted.
    :return: the source; None where "validation" is asked for and there is none.
    :raises UserError: when nothing is there, nothing is readable, or the first row isn't.
    """
    refuse_hub_keys(spec, "config", "revision")
    path = Path(spec.path).expanduser()
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        from .library import open_saved_folder

        return open_saved_folder(spec, path, split)
    selection = select(spec.path, spec.split, split)
    if selection is None:
        return None
    spans = Spans()
    tables = [_open_table(file, spans, folder) for file in selection.files]
    source = LocalSource(selection.title, tables, _fingerprint(selection))
    if not source.n_rows:
        raise UserError(f"source {spec.path}: holds no rows; choose other files.")
    source[0]
    return source


def _open_table(file: Path, spans: Spans, folder: Path) -> Table:
    """Open one file, unpacked or converted first where needed."""
    label = str(file)
    path = unpack(file, folder) if file.suffix.lower() in PACKED_SUFFIXES else file
    kind = format_of(path)
    if kind == "parquet":
        return open_parquet(path, label, folder)
    if kind == "arrow":
        return ArrowTable(path, label)
    if kind == "json":
        return open_json(path, label, spans)
    if kind == "jsonl":
        return JsonLines(path, label, spans)
    if kind in ("csv", "tsv"):
        return CsvTable(path, label, spans, "," if kind == "csv" else "\t")
    return TextTable(path, label, spans)


def _fingerprint(selection: Selection) -> dict[str, Any]:
    """Sum up names and contents of the files; the length of text rows is part of it, as it moves rows."""
    digest = hashlib.blake2b(digest_size=16)
    for file, name in zip(selection.files, selection.names, strict=True):
        digest.update(f"{name}\0{content_digest(file)}\0".encode(errors="surrogateescape"))
    kind = format_of(selection.files[0])
    cut = {"block": BLOCK} if kind == "text" else {}
    return {"kind": "local", "format": kind, "files": len(selection.files), "digest": digest.hexdigest(), **cut}


def _union(parts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Give all names once, in the order of their first coming."""
    return tuple(dict.fromkeys(name for part in parts for name in part))
