"""What a file holds, told by its first bytes: they decide how it is read, and its name only where they leave it open.  Data floor, no torch."""
from __future__ import annotations

import csv
import re
from io import StringIO
from pathlib import Path

from ...errors import UserError
from .json_values import NotRead, parse
from .spans import decoded, unreadable

# Bytes that are looked at: the first rows of a table.
HEAD = 1 << 16
PACKED = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
# The last is an Arrow stream, which begins with a mark and a length.
_BINARY = (("parquet", re.compile(rb"PAR1")), ("arrow", re.compile(rb"ARROW1|\xff\xff\xff\xff....", re.DOTALL)),
           *((kind, re.compile(re.escape(mark))) for kind, mark in PACKED.items()))
# What cannot be read, in words.
_REFUSED = (("a zip archive or an Office document", rb"PK\x03\x04"), ("a PDF document", rb"%PDF-"), ("a bzip2 archive", rb"BZh[1-9]1AY&SY"),
            ("an xz archive", rb"\xfd7zXZ\x00"), ("a 7z archive", rb"7z\xbc\xaf\x27\x1c"), ("an old Office document", rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
            ("an SQLite database", rb"SQLite format 3\x00"), ("an HDF5 file", rb"\x89HDF\r\n"), ("a NumPy array", rb"\x93NUMPY"), ("an Avro file", rb"Obj\x01"),
            ("an RTF document", rb"\{\\rtf"), ("a picture", rb"\x89PNG\r\n|\xff\xd8\xff[\xdb\xe0\xe1\xee]|GIF8[79]a"),
            ("a Python pickle", rb"\x80[\x02-\x05][\x95}\]c(]"))
# Whether any of these has to be looked for.
_MARKED = re.compile(b"|".join((*(mark.pattern for _, mark in _BINARY), *(mark for _, mark in _REFUSED))), re.DOTALL)
# The first line of an object or array that goes on in the next ones; "[Chapter 1]" is none.
_GOES_ON = re.compile(r"\{\s*$|\[\s*([{\[\"]|$)")
_SEPARATORS = ",\t;|"
# Records of which a separator has to make sense.
_RECORDS = 20


def head_of(path: str | Path) -> bytes:
    """Read the first bytes of a file; raises UserError when that is not possible."""
    try:
        with open(path, "rb") as file:
            return file.read(HEAD)
    except OSError as error:
        raise unreadable(path, error) from None


def kind_of(head: bytes, label: str, named: str | None) -> str:
    """Tell how a file is read.

    :param head: its first bytes.
    :param label: what the user calls it.
    :param named: what its name says, a value of `FORMATS`; None = nothing.
    :return: a value of `FORMATS`, or a key of `PACKED`.
    :raises UserError: when it is of a kind that is not read.
    """
    if _MARKED.match(head):
        kind = next((kind for kind, mark in _BINARY if mark.match(head)), None)
        if kind is not None:
            return kind
        refused = next(kind for kind, mark in _REFUSED if re.match(mark, head))
        raise UserError(f"{label}: is {refused}, which is not read; save what it holds as text, JSON lines, CSV or Parquet.")
    if named == "text":
        return named
    found = _json_kind(head)
    if named in ("parquet", "arrow"):
        if found is None and named == "parquet" and head:
            raise UserError(f"{label}: is not a Parquet file (it does not begin with PAR1), perhaps text; rename it with the right ending.")
        return found or named
    if named is None:
        return found or "text"
    if named == "json":  # one object in one line may hold the rows; where others follow, each is one
        return "jsonl" if found == "jsonl" and len(head.strip().splitlines()) > 1 else "json"
    # A list in brackets may also be the header of a table: only objects are told from it.
    return found if found and (named == "jsonl" or (named in ("csv", "tsv") and head.lstrip()[:1] == b"{")) else named


def seems_json(head: bytes) -> bool:
    """Tell whether a text begins with JSON objects."""
    return head.lstrip()[:1] in (b"{", b"[") and _json_kind(head) is not None


def separator_of(head: bytes, usual: str) -> str:
    """Choose what separates the values of a table: what gives its header most columns, without giving a record more values than that.

    :param head: the first bytes of the file.
    :param usual: what its name says; taken where others do no better.
    :return: a comma, tab, semicolon or bar.
    """
    text = decoded(head)[0].replace("\0", " ")
    if len(head) == HEAD:
        text = text[:text.rfind("\n") + 1] or text

    def columns(separator: str) -> int:
        records: list[list[str]] = []
        try:
            for record in csv.reader(StringIO(text, newline=""), delimiter=separator):
                records += [record] * bool(record)
                if len(records) == _RECORDS:
                    break
        except csv.Error:
            return 0
        return len(records[0]) if records and max(map(len, records)) <= len(records[0]) else 0

    found = {separator: columns(separator) for separator in (usual, *_SEPARATORS.replace(usual, ""))}
    best = max(found, key=lambda separator: found[separator])
    return best if found[best] > max(1, found[usual]) else usual


def _json_kind(head: bytes) -> str | None:
    """Tell JSON lines from other JSON; None where a text is neither."""
    text = decoded(head)[0].lstrip("\ufeff \t\r\n")
    if text[:1] not in ("{", "["):
        return None
    line = text.partition("\n")[0]
    try:
        return "jsonl" if isinstance(parse(line), dict) else "json"
    except NotRead:
        if len(line) == len(text) and line[:1] == "{":
            return "jsonl"  # a line that is longer than what has been read of it
        return "json" if _GOES_ON.match(line) else None
