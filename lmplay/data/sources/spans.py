"""The bytes of local files: spans of them, their text, digests, and unpacking.  Data floor, no torch; imports the ground only."""
from __future__ import annotations

import codecs
import hashlib
import os
import shutil
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from ...errors import UserError, printable
from ...files import make_folder, write_atomic
from ...plan.catalog import PACKED_SUFFIXES
from .index import Index
from .progress import shown

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The digest of a file up to this size is of all its bytes: a tenth of a second, once, as the result is kept.
_WHOLE = 1 << 26
# Of a bigger one this many stretches of this many bytes are read, spread evenly: it costs no more for 100 GB.
_STRETCHES, _STRETCH = 64, 1 << 16
# Bytes read at a time in the search for what is not UTF-8.
_LOOK = 1 << 24
# Bytes that are unpacked at a time.
_BLOCK = 1 << 20
# The size of a file, its time of writing and its number.
Stamp = tuple[int, int, int]
# What is made of a file (unpacked, converted) may have this many bytes, or this many times its own size if that is more: text packs 3 to 30 times.
MADE, TIMES = 1 << 30, 100
# Bytes of a disk that stay free for others: a twentieth of it, at most this many; and the bytes that are written between two looks at it.
_SPARE, _LOOK_AT_DISK = 1 << 30, 1 << 24
# How many files are held open: far below the usual limit of a process (256 on macOS, 1024 on Linux).
_OPEN_FILES = 64


class Spans:
    """Reads spans of any number of files, of which the latest used stay open; safe in threads and after a fork.

    A file that has changed since it was first read is refused: its rows would begin elsewhere.
    """

    def __init__(self, index: Index | None = None):
        """
        :param index: keeps what is computed from the files.
        """
        self.index = index or Index()
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[int, str | Path], IO[bytes]] = OrderedDict()
        self._stamps: dict[str | Path, Stamp] = {}

    def watch(self, path: Path) -> None:
        """Remember the state of a file; called before it is read.

        :raises UserError: when it is not there.
        """
        try:
            self._stamps[path] = stamp_of(os.stat(path))
        except OSError as error:
            raise unreadable(path, error) from None

    def check(self, path: Path) -> None:
        """Check that a watched file has not changed.

        :raises UserError: when it is not.
        """
        try:
            self._compare(path, os.stat(path))
        except OSError as error:
            raise unreadable(path, error) from None

    def read(self, path: str | Path, start: int, end: int, stamp: Stamp | None = None) -> bytes:
        """Read the bytes [start, end) of a file.

        :param path: the file.
        :param start: first byte.
        :param end: the byte after the last.
        :param stamp: what it was, see :func:`stamp_of`; None = what it was when it was first watched or read.
        :return: the bytes, all of them.
        :raises UserError: when it cannot be read, or is not what it was.
        """
        with self._lock:
            try:
                file = self._open(path)
                self._compare(path, os.fstat(file.fileno()), stamp)
                file.seek(start)
                data = file.read(end - start)
                while len(data) < end - start and (more := file.read(end - start - len(data))):
                    data += more
            except OSError as error:
                raise unreadable(path, error) from None
        if len(data) < end - start:
            raise changed(path)
        return data

    def _compare(self, path: str | Path, found: os.stat_result, stamp: Stamp | None = None) -> None:
        """Refuse a file that has changed since it was first seen."""
        if (stamp or self._stamps.setdefault(path, stamp_of(found))) != stamp_of(found):
            raise changed(path)

    def _open(self, path: str | Path) -> IO[bytes]:
        """Give the open file; closes the one that has not been used for longest."""
        key = (os.getpid(), path)  # a file opened before a fork shares its position with the other process
        if key not in self._files:
            self._files[key] = open(path, "rb", buffering=0)  # noqa: SIM115 (stays open)
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(key)
        return self._files[key]


def stamp_of(found: os.stat_result) -> Stamp:
    """Give what changes when a file is written or replaced; not ctime, which also changes with its rights. Each fits 64 bits with a sign."""
    return found.st_size, found.st_mtime_ns, found.st_ino % 2**63


def changed(path: str | Path) -> UserError:
    """Make the error for a file that was written while it is read."""
    return UserError(f"{path}: has changed while it was being read; train on files that nothing writes to, and run the same command again.")


def unreadable(path: str | Path, error: OSError) -> UserError:
    """Make the error for a file that is there but cannot be read."""
    return UserError(f"{path}: cannot be read ({error.strerror or error}); check its rights and its disk.")


def line_number(path: Path, offset: int) -> int:
    """Count the lines of a file up to a byte, for a message; lines count from 1."""
    with open(path, "rb") as file:
        blocks = (file.read(min(1 << 20, offset - start)) for start in range(0, offset, 1 << 20))
        return sum(block.count(b"\n") for block in blocks) + 1


# Bytes at the beginning of a file by which UTF-16 is known, and the fewest that say it.
_HEAD, _FEWEST = 4096, 64


def text_start(path: Path, label: str) -> int:
    """Say where the text of a file begins: after a byte order mark, if it has one.

    :param path: the file.
    :param label: what the user calls it.
    :return: 0 or 3.
    :raises UserError: when it cannot be read, or is UTF-16.
    """
    try:
        with open(path, "rb") as file:
            return text_begin(file.read(_HEAD), label)
    except OSError as error:
        raise unreadable(path, error) from None


def text_begin(head: bytes, label: str) -> int:
    """Do the same with the first bytes of a file."""
    head = head[:_HEAD]
    # Without a mark: of ASCII in UTF-16 every other byte is 0.
    fewer, more = sorted((head[0::2].count(0), head[1::2].count(0)))
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or (len(head) >= _FEWEST and more > len(head) / 4 > fewer):
        raise UserError(f"{label}: is UTF-16 text; save it as UTF-8.")
    return 3 if head[:3] == BYTE_ORDER_MARK else 0


def decoded(data: bytes) -> tuple[str, int]:
    """Read bytes as UTF-8.

    :param data: the bytes.
    :return: the text, in which U+FFFD stands for what is not UTF-8; how many characters stand so.
    """
    try:
        return data.decode(), 0
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        return text, text.count("\ufffd") - data.count("\ufffd".encode())  # some may be meant


def refuse_other_encodings(path: Path, label: str, index: Index) -> None:
    """Check that a whole file is UTF-8.

    :param path: the file.
    :param label: what the user calls it.
    :param index: keeps the answer, so that a big file is asked once.
    :raises UserError: naming the first line and byte that is not.
    """
    import numpy as np

    def look() -> np.ndarray:
        decoder, read = codecs.getincrementaldecoder("utf-8")(), 0
        with open(path, "rb") as file:
            while True:
                block = file.read(_LOOK)
                waiting = len(decoder.getstate()[0])
                try:
                    decoder.decode(block, final=not block)
                except UnicodeDecodeError as error:
                    offset = read - waiting + error.start
                    raise UserError(f"{label}, line {line_number(path, offset)}: byte {offset + 1:,} of the file ({error.object[error.start]:#04x}) is not "
                                    "UTF-8; save the file as UTF-8, or let such bytes be replaced with \"encoding_errors\": \"replace\".") from None
                read += len(block)
                if not block:
                    return np.zeros(0)

    try:
        index.get(path, "is utf-8", look)
    except OSError as error:
        raise unreadable(path, error) from None


def content_digest(path: Path, index: Index | None = None) -> str:
    """Compute the digest of a file's contents: of all bytes up to 64 MB; of a bigger file, of its size and 64 stretches of 64 KB, spread evenly.

    :param path: the file.
    :param index: keeps the answer.
    :return: hexadecimal digits.
    :raises UserError: when it cannot be read.
    """
    import numpy as np

    def look() -> np.ndarray:
        size = path.stat().st_size
        with open(path, "rb") as file:
            if size <= _WHOLE:
                digest = digest_of(size, iter(lambda: file.read(1 << 20), b""))
            else:
                digest = digest_of(size, [])
                for number in range(_STRETCHES):
                    file.seek(number * (size - _STRETCH) // (_STRETCHES - 1))
                    digest.update(file.read(_STRETCH))
        return np.frombuffer(digest.digest(), dtype=np.uint8)

    try:
        return (index or Index()).get(path, "digest", look).tobytes().hex()
    except OSError as error:
        raise unreadable(path, error) from None


def digest_of(size: int, blocks: Iterable[bytes]) -> hashlib.blake2b:
    """Begin the digest of a file of a size in bytes with some of its bytes."""
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    for block in blocks:
        digest.update(block)
    return digest


def made_once(path: Path, folder: Path, name: str, make: Callable[[IO[bytes]], None], index: Index | None = None) -> Path:
    """Give a file made from another one, making it if that has not been done or the other has changed since.

    :param path: the original.
    :param folder: where what is made is kept; not left behind empty.
    :param name: end of its name.
    :param make: writes it into the open binary file.
    :param index: keeps the digest of the original.
    :return: the file made.
    :raises OSError: when it cannot be written.
    :raises UserError: when it would be far larger than the original, or would fill the disk.
    """
    original = f"{path.resolve()} {path.stat().st_mtime_ns} {content_digest(path, index)}"
    made = folder / f"{hashlib.blake2b(original.encode(errors='surrogateescape'), digest_size=8).hexdigest()}-{name[-100:]}"
    if not made.exists():
        missing = [part for part in (folder, *folder.parents) if not part.exists()]
        make_folder(folder, "the data sets folder")
        try:
            with shown(f"writing what {printable(path.name)} holds") as update:
                write_atomic(made, lambda file: make(_Bounded(file, path, folder, update)))  # type: ignore[arg-type]
        except BaseException:
            for part in missing:
                if any(part.iterdir()):
                    break
                part.rmdir()
            raise
    return made


class _Bounded:
    """A file open for writing that refuses what a small file should not become: packed, 10 MB may stand for 10 GB."""

    def __init__(self, file: IO[bytes], original: Path, folder: Path, update: Callable[[int], object]):
        self._file, self._original, self._folder, self._update = file, original, folder, update
        self._most = max(MADE, TIMES * original.stat().st_size)
        self._written = self._looked = 0

    def write(self, data: bytes) -> int:
        """Write bytes; raises UserError where they are too many."""
        self._written += len(data)
        if self._written > self._most:
            raise UserError(f"{self._original}: holds more than {self._most:,} bytes, over {self._most // max(1, self._original.stat().st_size):,} times "
                            "its size; if that is intended, unpack it yourself.")
        if self._written - self._looked >= _LOOK_AT_DISK or not self._looked:
            self._looked = self._written
            usage = shutil.disk_usage(self._folder)
            if usage.free - len(data) < (spare := min(_SPARE, usage.total // 20)):
                raise UserError(f"{self._original}: what it holds would fill the disk of {self._folder} ({usage.free:,} bytes are free, {spare:,} stay so); "
                                "free some space, or choose another --out-dir.")
        self._update(len(data))
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def unpack(path: Path, kind: str, folder: Path, index: Index | None = None) -> Path:
    """Unpack a packed file, of any number of members or frames.

    :param path: the packed file.
    :param kind: "gzip" or "zstd".
    :param folder: the data sets folder; `unpacked/` in it keeps the result.
    :param index: keeps the digests of packed files.
    :return: the unpacked file, whose name ends as the packed one's did before .gz or .zst.
    :raises UserError: when it is damaged or there is no space.
    """
    def write(file: IO[bytes]) -> None:
        packed, damages = _open_packed(path, kind)
        with packed:
            while True:
                try:
                    block = packed.read(_BLOCK)
                except damages as error:
                    raise UserError(f"{path}: cannot be unpacked: it is damaged or cut off ({error}); fetch it again.") from None
                if not block:
                    return
                file.write(block)

    try:
        return made_once(path, folder / "unpacked", path.stem if path.suffix.lower() in PACKED_SUFFIXES else path.name, write, index)
    except OSError as error:
        raise UserError(f"{path}: cannot be unpacked into {folder} ({error.strerror or error}); is there space on the disk?") from None


def _open_packed(path: Path, kind: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Open a packed file: what reads it, and what that raises where it is damaged."""
    damages = (OSError, EOFError, zlib.error, ValueError)
    if kind == "zstd":
        import pyarrow

        return pyarrow.input_stream(str(path), compression="zstd"), damages
    try:
        from isal import igzip, igzip_lib  # three times as fast
    except ImportError:
        import gzip

        return gzip.open(path), damages
    damage: Any = igzip_lib.IsalError  # for its type checker it is an error, not a class
    return igzip.open(path), (*damages, damage)
