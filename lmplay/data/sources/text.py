"""Plain text files as rows: where a file is cut, and nothing of it lost.  Data floor, no torch."""
from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base import Row, Table
from .spans import Spans, decoded, line_number, text_start, unreadable

if TYPE_CHECKING:
    import numpy as np

# The length a row aims at, in bytes. One big file would otherwise be one row: no progress to show, nothing to hold out for validation, and nothing
# to shuffle. About 4000 tokens of English: several pieces even of a long context, so that few pieces are short because a row ended.
BLOCK = 16_384
# What a blank line may hold; and the bytes of the longest character.
_BLANKS = b" \t\r"
_LONGEST = 4
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

    starts = array("q", [begin])
    with open(path, "rb", buffering=0) as file:
        size, start = file.seek(0, 2), begin
        while size - start > limit:
            file.seek(start)
            start += _cut(file.read(limit + _LONGEST), limit)
            starts.append(start)
    if size > start:
        starts.append(size)
    return np.frombuffer(starts, dtype=np.int64)


def _cut(window: bytes, limit: int) -> int:
    """Say how many bytes a row takes of those that are left; there are more than `limit`."""
    after = _after_blank_line(window, limit) or window.rfind(b"\n", 0, limit) + 1
    return after or _character_start(window, limit)


def _after_blank_line(window: bytes, limit: int) -> int:
    """Say where the last blank line within `limit` bytes ends, 0 if there is none; of several in a row they are the second, the fourth and so on."""
    end = window.rfind(b"\n", 0, limit) if _BLANK_LINE.search(window, 0, limit) else 0  # most files have one soon, or none at all
    while end > 0:
        run = end  # where the run of line ends with nothing but blanks between them begins
        ends = [end]
        while (before := window.rfind(b"\n", 0, run)) >= 0 and not window[before + 1:run].strip(_BLANKS):
            ends.append(before)
            run = before
        if len(ends) > 1:
            return ends[len(ends) % 2] + 1
        end = before
    return 0


def _character_start(window: bytes, near: int) -> int:
    """Find where a character begins, at `near` or shortly before it, but after the first byte."""
    for cut in range(near, max(0, near - 4), -1):  # a character has at most 4 bytes; more in a row is no UTF-8 and can be cut anywhere
        if not _continues(window[cut]):
            return cut
    if near - 4 >= 0:
        return near
    return next(cut for cut in range(1, 5) if cut >= len(window) or not _continues(window[cut]) or cut == 4)


def _continues(byte: int) -> bool:
    """Tell whether a byte of UTF-8 is a character's second, third or fourth."""
    return byte & 0xC0 == 0x80
