"""Files that are hashed while they are written or read, chunk by chunk; a write can be cancelled between two chunks."""
from __future__ import annotations

import errno
from collections.abc import Callable
from typing import IO, Any

import xxhash

_CHUNK = 1 << 23  # bytes


class Cancelled(OSError):
    """The write was cancelled before the file was complete."""


class Hashed:
    """A file that hashes what is written to it."""

    def __init__(self, file: IO[bytes], cancelled: Callable[[], bool]):
        self._file, self._cancelled = file, cancelled
        self.hash = xxhash.xxh3_128()

    def write(self, data: Any) -> int:
        """Write bytes; raises :class:`Cancelled`."""
        view = memoryview(data)
        for start in range(0, len(view), _CHUNK):
            if self._cancelled():
                raise Cancelled(errno.ECANCELED, "cancelled")
            part = view[start:start + _CHUNK]
            self._file.write(part)
            self.hash.update(part)
        return len(view)

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()


def hash_file(file: IO[bytes], size: int) -> xxhash.xxh3_128:
    """Hash the bytes of an open file from its place on, at most `size` of them; raises OSError."""
    found = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(_CHUNK, size)))
    while size and (count := file.readinto(buffer[:size])):  # type: ignore[attr-defined]
        found.update(buffer[:count])
        size -= count
    return found
