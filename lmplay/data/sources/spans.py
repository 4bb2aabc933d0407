"""The bytes of local files: spans of them, what tells two files apart, and unpacking.  Data floor, no torch; imports the ground only."""
from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from ...errors import UserError
from ...files import make_folder, write_atomic

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PACKED_SUFFIXES = (".gz", ".zst")
# Read at the head, in the middle and at the tail of a file: enough to tell an edited or appended file, and the same cost for one of 100 GB.
_SAMPLE = 1 << 16
# How many files are held open: far below the usual limit of a process (256 on macOS, 1024 on Linux).
_OPEN_FILES = 64


class Spans:
    """Reads spans of any number of files, of which the latest used stay open; safe in threads and after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[int, Path], IO[bytes]] = OrderedDict()

    def read(self, path: Path, start: int, end: int) -> bytes:
        """Read the bytes [start, end) of a file.

        :param path: the file.
        :param start: first byte.
        :param end: the byte after the last.
        :return: the bytes; fewer when the file has become shorter.
        :raises UserError: when it cannot be read.
        """
        with self._lock:
            try:
                file = self._open(path)
                file.seek(start)
                return file.read(end - start)
            except OSError as error:
                raise unreadable(path, error) from None

    def _open(self, path: Path) -> IO[bytes]:
        """Give the open file; closes the one that has not been used for longest."""
        key = (os.getpid(), path)  # a file opened before a fork shares its position with the other process
        if key not in self._files:
            self._files[key] = open(path, "rb", buffering=0)  # noqa: SIM115 (stays open)
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(key)
        return self._files[key]


def unreadable(path: Path, error: OSError) -> UserError:
    """Make the error for a file that is there but cannot be read."""
    return UserError(f"{path}: cannot be read ({error.strerror or error}); check its rights and its disk.")


def line_number(path: Path, offset: int) -> int:
    """Count the lines of a file up to a byte, for a message; lines count from 1."""
    with open(path, "rb") as file:
        blocks = (file.read(min(1 << 20, offset - start)) for start in range(0, offset, 1 << 20))
        return sum(block.count(b"\n") for block in blocks) + 1


def text_start(path: Path, label: str) -> int:
    """Say where the text of a file begins: after a byte order mark, if it has one.

    :param path: the file.
    :param label: what the user calls it.
    :return: 0 or 3.
    :raises UserError: when it cannot be read, or is UTF-16.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(3)
    except OSError as error:
        raise unreadable(path, error) from None
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{label}: is UTF-16 text; save it as UTF-8.")
    return 3 if head == BYTE_ORDER_MARK else 0


def content_digest(path: Path) -> str:
    """Tell a file's contents apart by its size and its bytes at the head, in the middle and at the tail.

    :param path: the file.
    :return: hexadecimal digits.
    :raises UserError: when it cannot be read.
    """
    try:
        size = path.stat().st_size
        digest = hashlib.blake2b(str(size).encode(), digest_size=16)
        with open(path, "rb") as file:
            for start in sorted({0, max(0, (size - _SAMPLE) // 2), max(0, size - _SAMPLE)}):
                file.seek(start)
                digest.update(file.read(_SAMPLE))
    except OSError as error:
        raise unreadable(path, error) from None
    return digest.hexdigest()


def made_once(path: Path, folder: Path, name: str, make: Callable[[IO[bytes]], None]) -> Path:
    """Give a file made from another one, making it if that has not been done or the other has changed since.

    :param path: the original.
    :param folder: where what is made is kept.
    :param name: end of its name.
    :param make: writes it into the open binary file.
    :return: the file made.
    :raises OSError: when it cannot be written.
    """
    original = f"{path.resolve()} {path.stat().st_mtime_ns} {content_digest(path)}"
    made = folder / f"{hashlib.blake2b(original.encode(), digest_size=8).hexdigest()}-{name}"
    if not made.exists():
        make_folder(folder, "the data sets folder")
        write_atomic(made, make)
    return made


def unpack(path: Path, folder: Path) -> Path:
    """Unpack a .gz or .zst file, of any number of members or frames.

    :param path: the packed file.
    :param folder: the data sets folder; `unpacked/` in it keeps the result.
    :return: the unpacked file, whose name ends as the packed one's did before .gz or .zst.
    :raises UserError: when it is damaged or there is no room.
    """
    def write(file: IO[bytes]) -> None:
        with _open_packed(path) as packed:
            shutil.copyfileobj(packed, file, 1 << 20)

    try:
        return made_once(path, folder / "unpacked", path.stem, write)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be unpacked ({getattr(error, 'strerror', None) or error}); is it whole, and is there room in {folder}?") from None


def _open_packed(path: Path) -> Any:
    """Open a packed file for reading what it holds."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path)
    import pyarrow

    return pyarrow.input_stream(str(path), compression="zstd")
