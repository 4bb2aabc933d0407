"""Plain text files as rows: where a file is cut, and nothing of it lost.  Data floor, no torch."""
from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base import Row, Table
from .spans import Spans, decoded, line_number, text_start, unreadable

if TYPE_CHECKING:
    import numpy as np

# The length a row aims at, in bytes. One big file would otherwise be one row: no progress to show, nothing to hold out for validation, and nothing
# to shuffle. About 4000 tokens of English: several pieces even of a long context, so that few pieces are short because a row ended.
BLOCK = 16_384
_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")


class TextTable(Table):
    """A text file, cut at blank lines into rows `{"text": ...}` that joined are the file's text.

    A paragraph longer than `limit` is cut at a line end, or else between two characters. A file of `limit` bytes or fewer is one row.
    """

    columns = ("text",)

    def __init__(self, path: Path, label: str, spans: Spans, limit: int = BLOCK):
        """
        :param path: the file.
        :param label: what the user calls it.
        :param spans: reads it.
        :param limit: greatest length of a row, in bytes; a single character may be longer.
        :raises UserError: when it cannot be read, or is UTF-16.
        """
        self._path, self._label, self._spans = path, label, spans
        spans.watch(path)
        begin = text_start(path, label)
        try:
            self._starts = spans.index.get(path, f"text {limit}", lambda: _block_starts(path, begin, limit))
        except OSError as error:
            raise unreadable(path, error) from None

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`Table`; bytes that are not UTF-8 become U+FFFD."""
        block = self._spans.read(self._path, int(self._starts[index]), int(self._starts[index + 1]))
        text, replaced = decoded(block)
        return Row({"text": text}, replaced) if replaced else {"text": text}

    def location(self, index: int) -> str:
        """See :class:`Table`."""
        return f"{self._label}, line {line_number(self._path, int(self._starts[index]))}"


def _block_starts(path: Path, begin: int, limit: int) -> np.ndarray:
    """Find the first byte of each row, and the end of the file; int64."""
    import numpy as np

    starts = [begin]
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        if size - begin > limit:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                while size - starts[-1] > limit:
                    starts.append(_cut(data, starts[-1], limit))
    if size > starts[-1]:
        starts.append(size)
    return np.array(starts, dtype=np.int64)


def _cut(data: mmap.mmap, start: int, limit: int) -> int:
    """Say where the row that begins at `start` ends, in a file that goes on for more than `limit` bytes."""
    window = data[start:start + limit]
    blank_lines = list(_BLANK_LINE.finditer(window))
    if blank_lines:
        return start + blank_lines[-1].end()
    line_end = window.rfind(b"\n") + 1
    return start + line_end if line_end else _character_start(data, start, start + limit)


def _character_start(data: mmap.mmap, start: int, near: int) -> int:
    """Find where a character begins, at `near` or shortly before it, but after `start`."""
    for cut in range(near, max(start, near - 4), -1):  # a character has at most 4 bytes; more in a row is no UTF-8 and can be cut anywhere
        if not _continues(data[cut]):
            return cut
    if near - 4 >= start:
        return near
    return next(cut for cut in range(start + 1, start + 5) if cut >= len(data) or not _continues(data[cut]) or cut == start + 4)


def _continues(byte: int) -> bool:
    """Tell whether a byte of UTF-8 is a character's second, third or fourth."""
    return byte & 0xC0 == 0x80
