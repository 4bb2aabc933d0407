"""The .lmp file: one dictionary of plain values and tensors, whole or absent.  Engine floor.

It is what `torch.save` writes, a zip archive, whose comment is a checksum of all bytes before it: `torch.load(…, weights_only=True)` reads it directly.
"""
from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import torch
import xxhash

from .. import __version__
from ..component import Component
from ..errors import UserError
from ..files import write_atomic

FORMAT = 1
COMPONENTS = ("curriculum", "model", "runner", "optimizers", "lr_schedulers")

# An archive ends with the length of its comment (2 bytes, 0 when torch.save has written it) and the comment: this and 32 hexadecimal digits.
_MARK = b"lmplay xxh3-128 "
_COMMENT = len(_MARK) + 32
_NO_COMMENT = b"\0\0"
# The record that ends an archive without a comment.
_END, _END_SIZE = b"PK\5\6", 22
# Bytes that are summed up and written, or read, at once: between two, a writer that has been cancelled stops.
_CHUNK = 1 << 23


class Cancelled(OSError):
    """A file was not finished because nobody waits for it any more."""


class Damaged(UserError):
    """A file is not whole; another one may be."""


def content_of(components: Sequence[Component]) -> dict[str, Any]:
    """Give what a file holds of components; the tensors are theirs, not copies."""
    content: dict[str, Any] = {"format": FORMAT, "versions": versions()}
    return content | {component.name: {"state_args": component.state_args(), "state": component.state()} for component in components}


def versions() -> dict[str, str]:
    """Say what writes a checkpoint."""
    return {"lmplay": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def write(path: Path, content: dict[str, Any], before_rename: Callable[[Path], None] | None = None, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Write a file with its checksum: a temporary one, synced, renamed.

    :param path: the file to make or to replace.
    :param content: plain values and tensors.
    :param before_rename: is called with the temporary file, when it is whole and the old one still has its name.
    :param cancelled: asked again and again; True stops the writing.
    :raises OSError: when it cannot be written; :class:`Cancelled` when it was not to be. The file that was there is untouched.
    """
    write_atomic(path, lambda file: _write(content, file, cancelled), before_rename)


def save_weights(path: Path, model: dict[str, Any]) -> None:
    """Write the model alone: neither optimizer nor history.

    :param path: the file.
    :param model: the model component, as a checkpoint has it.
    :raises OSError: when it cannot be written.
    """
    write(path, {"format": FORMAT, "versions": versions(), "model": model})


def load(path: Path, parts: Sequence[str] = COMPONENTS) -> dict[str, Any]:
    """Read a checkpoint; nothing in it is executed.

    :param path: the file.
    :param parts: the components that it must have.
    :return: its content, tensors on the CPU.
    :raises Damaged: when it is not whole, or no checkpoint of ours.
    :raises UserError: when it may not be read, or has a version that is not known.
    """
    keep = "It is left as it is; choose another --model, or --reset-history to start anew beside it."
    content = read(path, keep)
    if content["format"] == FORMAT and set(content) == {"format", "versions", "model"} and len(parts) > 1:
        raise UserError(f"model {path}: holds weights only, so no run can go on from it; --initial-model {path} starts a new one with them.")
    if content["format"] != FORMAT or not all(name in content for name in parts):
        missing = ", ".join(name for name in parts if name not in content)
        raise UserError(f"model {path}: has format {content['format']}{f' without {missing}' if missing else ''}, and this lmplay ({__version__}) reads "
                        f"format {FORMAT} with {', '.join(parts)}. {keep}")
    return content


def read(path: Path, advice: str = "", mmap: bool = False, check: bool = True) -> dict[str, Any]:
    """Read whatever a file of ours holds.

    :param path: the file.
    :param advice: ends the message.
    :param mmap: leave the tensors on the disk until they are used.
    :param check: see that the checksum is right.
    :return: its content; it has a "format".
    :raises Damaged: when it is not whole, or not ours.
    :raises UserError: when it may not be read.
    """
    try:
        if check and verify(path) is False:
            raise Damaged(f"model {path}: damaged, or not a checkpoint of lmplay (its checksum is wrong). {advice}")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (PermissionError, FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"model {path}: cannot be read ({error.strerror}).") from None
    except OSError as error:
        raise Damaged(f"model {path}: cannot be read ({error.strerror or error}). {advice}") from None
    except UserError:
        raise
    except Exception as error:  # damaged bytes fail in any way at all
        raise Damaged(f"model {path}: damaged, or not a checkpoint of lmplay ({type(error).__name__}). {advice}") from None
    if not isinstance(content, dict) or "format" not in content:
        raise Damaged(f"model {path}: not a checkpoint of lmplay. {advice}")
    return content


def verify(path: Path) -> bool | None:
    """Compare a file's bytes with its checksum.

    :param path: the file.
    :return: whether it is right; None for an archive without one (torch.save wrote it, or lmplay 0.1).
    :raises OSError: when it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size < _END_SIZE + _COMMENT:
            return False
        file.seek(-_END_SIZE - _COMMENT, os.SEEK_END)
        tail = file.read()
        comment = tail[_END_SIZE:]
        if not comment.startswith(_MARK):
            return None if tail[-_END_SIZE:].startswith(_END) and tail.endswith(_NO_COMMENT) else False
        file.seek(0)
        found = xxhash.xxh3_128()
        left = size - _COMMENT - len(_NO_COMMENT)
        buffer = memoryview(bytearray(min(_CHUNK, left)))
        while left and (count := file.readinto(buffer[:left])):
            found.update(buffer[:count])
            left -= count
    return comment == _MARK + _finish(found) and tail[:_END_SIZE].endswith(_COMMENT.to_bytes(2, "little"))


def stage_file(path: Path, stage: str) -> Path:
    """Name the file that keeps the newest state within a stage."""
    return path.with_name(f"{path.stem}.{stage}{path.suffix}")


class _Summed:
    """A file that sums up what is written to it."""

    def __init__(self, file: IO[bytes], cancelled: Callable[[], bool]):
        self._file, self._cancelled = file, cancelled
        self.sum = xxhash.xxh3_128()

    def write(self, data: Any) -> int:
        """Write bytes."""
        view = memoryview(data)
        for start in range(0, len(view), _CHUNK):
            if self._cancelled():
                raise Cancelled(errno.ECANCELED, "cancelled")
            part = view[start:start + _CHUNK]
            self._file.write(part)
            self.sum.update(part)
        return len(view)

    def flush(self) -> None:
        """Write what is in the buffer."""
        self._file.flush()


def _write(content: dict[str, Any], file: IO[bytes], cancelled: Callable[[], bool]) -> None:
    """Write the content; a disk that is full is an OSError, also where torch's writer makes something else of it."""
    summed = _Summed(file, cancelled)
    try:
        torch.save(content, summed)  # type: ignore[arg-type]
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        raise cause or OSError(errno.EIO, str(error).splitlines()[0]) from error
    # The checksum is that of the archive as it is now; then only the comment and its length are added.
    file.seek(-len(_NO_COMMENT), os.SEEK_END)
    file.write(_COMMENT.to_bytes(2, "little") + _MARK + _finish_written(summed.sum))


def _finish(bytes_before: Any) -> bytes:
    """Give the digits for an archive of which all but the length of the comment has been summed up."""
    bytes_before.update(_NO_COMMENT)
    return _finish_written(bytes_before)


def _finish_written(summed: Any) -> bytes:
    """Give the digits."""
    return str(summed.hexdigest()).encode()
