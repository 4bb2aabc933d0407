"""Plain text files as rows: where a file is cut, and nothing of it lost.  Data floor, no torch."""
from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import printable
from .base import Row, Table
from .contents import HEAD, kind_of
from .progress import shown
from .selection import check_regular
from .spans import (
    Spans,
    Stamp,
    changed,
    content_digest,
    decoded,
    digest_of,
    line_number,
    refuse_other_encodings,
    stamp_of,
    text_begin,
    unreadable,
)

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
# The length a row aims at, in bytes. One big file would otherwise be one row: no progress to show, nothing to hold out for validation, and nothing
# to shuffle. About 4000 tokens of English: several pieces even of a long context, so that few pieces are short because a row ended.
BLOCK = 16_384
# What a blank line may hold; and the bytes of the longest character.
_BLANKS = b" \t\r"
_LONGEST = 4
# Files that are looked at one after the other, and how many such groups at once.
_TOGETHER, _AT_ONCE = 250, 8
# A file smaller than this is read as a whole; and what it costs to open one, in bytes that are read in the same time.
_SMALL, _FILE_BYTES = 1 << 20, 1 << 14
_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")


class TextFiles(Table):
    """Text files, each cut at blank lines into rows `{"text": ...}` that joined are the file's text.

    A paragraph longer than the scan's limit is cut at a line end, or else between two characters. A file of that many bytes or fewer is one row.
    Holds 8 bytes a row, and about 120 a file.
    """

    columns = ("text",)

    def __init__(self, scan: TextScan, begin: int, end: int, spans: Spans):
        """
        :param scan: of these files and perhaps of others.
        :param begin: number of the first file in the scan.
        :param end: the number after the last.
        :param spans: reads them.
        """
        self._scan, self._spans = scan, spans
        self._rows = scan.rows[begin:end + 1] - scan.rows[begin]  # rows before each file
        self._begin, self._before = begin, int(scan.rows[begin])

    def __len__(self) -> int:
        return int(self._rows[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        """See :class:`Table`; bytes that are not UTF-8 become U+FFFD."""
        file, start, end = self._find(index)
        text, replaced = decoded(self._spans.read(self._scan.path(file), start, end, self._scan.stamp(file)))
        return Row({"text": text}, replaced) if replaced else {"text": text}

    def location(self, index: int) -> str:
        """See :class:`Table`."""
        file, start, _ = self._find(index)
        path = Path(self._scan.path(file))
        return f"{printable(str(path))}, line {line_number(path, start)}"

    def _find(self, index: int) -> tuple[int, int, int]:
        """Give a row's file, its first byte and the byte after its last."""
        file = self._begin + int(self._rows.searchsorted(index, "right")) - 1
        place = self._before + index + file  # each file has a start more than it has rows
        return file, int(self._scan.starts[place]), int(self._scan.starts[place + 1])


class TextScan:
    """What a look at many text files has found, in arrays; `counts` has the rows of each, -1 where its contents are not plain text.

    `rows` are those before each file, `digests` has 16 bytes a file, and `starts` the first byte of each row and, after those of a file, its end.
    """

    def __init__(self, asked: str, root: Path, names: Sequence[str], spans: Spans, limit: int = BLOCK, refuse_bytes: bool = False):
        """
        :param asked: the source, as the user named it.
        :param root: the folder that all files are in.
        :param names: their paths in it.
        :param spans: its index keeps what is found.
        :param limit: greatest length of a row, in bytes; a single character may be longer.
        :param refuse_bytes: refuse what is not UTF-8.
        :raises UserError: when one cannot be read, is of a kind that is not read, or is UTF-16.
        """
        import numpy as np

        self._asked, self._root, self._names, self._index = asked, str(root), names, spans.index
        self._limit, self._refuse_bytes = limit, refuse_bytes
        stats = np.concatenate(list(self._in_parts(self._stat)))
        self._stamps = stats[:, :3]

        def look() -> np.ndarray:
            found = []
            with shown(f"looking for the rows of {printable(asked)}", len(names), " files") as update:
                for part in self._in_parts(self._look):
                    found.append(part)
                    update(len(part[1]))
            return np.concatenate([part for parts in zip(*found, strict=True) for part in parts])

        about = f"{os.path.abspath(root)}\0texts {limit} {refuse_bytes}"
        stamp = hashlib.blake2b(stats.tobytes(), digest_size=16)
        stamp.update("\0".join(names).encode(errors="surrogateescape"))
        size, changed_at = int(stats[:, 0].sum()) + _FILE_BYTES * (len(names) - 1), float(stats[:, 1::2].max()) / 1e9
        kept = self._index.keep(about, stamp.hexdigest(), look, size, changed_at)
        n = len(names)
        self.digests, self.counts, self.starts = kept[:2 * n].view(np.uint8).reshape(n, 16), kept[2 * n:3 * n], kept[3 * n:]
        self.rows = np.concatenate([[0], np.cumsum(np.maximum(self.counts, 0))])

    def path(self, file: int) -> str:
        """Give the path of a file."""
        return os.path.join(self._root, self._names[file]) if self._root != "." else self._names[file]

    def stamp(self, file: int) -> Stamp:
        """Give what a file was when it was looked at."""
        return tuple(self._stamps[file].tolist())

    def _in_parts(self, act: Callable[[int, int], T]) -> Iterator[T]:
        """Do something with all files, some at a time: disks and networks are waited for together."""
        parts = [(start, min(start + _TOGETHER, len(self._names))) for start in range(0, len(self._names), _TOGETHER)]
        if len(parts) == 1:
            yield act(*parts[0])
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from pool.map(lambda part: act(*part), parts)

    def _stat(self, begin: int, end: int) -> np.ndarray:
        """Give size, times of writing and change, and number of some files; refuses what is no file."""
        import numpy as np

        found = np.zeros((end - begin, 4), dtype=np.int64)
        for file in range(begin, end):
            path = self.path(file)
            try:
                stat = os.stat(path)
            except OSError as error:
                raise unreadable(path, error) from None
            if not S_ISREG(stat.st_mode):
                check_regular(self._asked, Path(path))
            found[file - begin] = *stamp_of(stat), stat.st_ctime_ns
        return found

    def _look(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Give the digests of some files, each as two numbers, their rows, and where these begin."""
        import numpy as np

        digests, counts, starts = bytearray(), array("q"), array("q")
        for file in range(begin, end):
            path, size = self.path(file), int(self._stamps[file, 0])
            try:
                digest, plain, found = self._look_at(path, size)
            except OSError as error:
                raise unreadable(path, error) from None
            digests += digest
            counts.append(len(found) - 1 if plain else -1)
            starts.extend(found)
        return tuple(np.frombuffer(part, dtype=np.int64) for part in (digests, counts, starts))  # type: ignore[return-value]

    def _look_at(self, path: str, size: int) -> tuple[bytes, bool, array[int]]:
        """Give the digest of a file, whether it is plain text, and where its rows begin and the last ends."""
        with open(path, "rb", buffering=0) as file:
            head = file.read(_SMALL if size < _SMALL else HEAD)

            def read(start: int, length: int) -> bytes:
                if size < _SMALL:
                    return head[start:start + length]
                file.seek(start)
                data = file.read(length)
                if len(data) < min(length, size - start):
                    raise changed(path)
                return data

            if size < _SMALL:
                if len(head) != size:
                    raise changed(path)
                digest = digest_of(size, [head]).digest()
            else:
                digest = bytes.fromhex(content_digest(Path(path), self._index))
            label = printable(path)
            if kind_of(head[:HEAD], label, "text") != "text":
                return digest, False, array("q", [0])
            if self._refuse_bytes:
                refuse_other_encodings(Path(path), label, self._index)
            begin = text_begin(head, label)
            if size < _SMALL:
                return digest, True, _block_starts(read, size, begin, self._limit)
            import numpy as np

            def starts() -> np.ndarray:
                with shown(f"looking for the rows of {os.path.basename(label)}", size) as update:
                    return np.array(_block_starts(read, size, begin, self._limit, update), dtype=np.int64)

            found = self._index.get(Path(path), f"text {self._limit}", starts)
            return digest, True, array("q", found.tobytes())


def _block_starts(read: Callable[[int, int], bytes], size: int, begin: int, limit: int, update: Callable[[int], object] = int) -> array[int]:
    """Find the first byte of each row, and the end of the file.

    :param read: gives the bytes from a place on, at most a number of them.
    :param size: of the file.
    :param begin: where its text begins.
    :param limit: greatest length of a row.
    :param update: told of the bytes of each row.
    """
    starts, start = array("q", [begin]), begin
    while size - start > limit:
        start += _cut(read(start, limit + _LONGEST), limit)
        update(start - starts[-1])
        starts.append(start)
    if size > start:
        starts.append(size)
    return starts


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
