"""One run at a time writes to a model file.  Engine floor, no torch.

The lock is the system's (POSIX record locks): it ends with its process, however that ends, and is not inherited by processes that are forked. On a network
file system it holds between machines only where the file server supports locks. Where there are none (Windows, some file servers), nothing is locked.
"""
from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from ..errors import UserError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

_TAKEN = (errno.EACCES, errno.EAGAIN)
# Runs that take and leave the same lock at the same moment do not do so for ever; a file system where a file is never the same twice does.
_TRIES = 100


class Lock:
    """The right to write to a model file and to what belongs to it."""

    def __init__(self, path: Path):
        """
        :param path: NAME.lmp; the lock is the hidden file .NAME.lock beside it, there as long as the run is.
        """
        self._model = path
        self._path = path.with_name(f".{path.stem}.lock")
        self._handle: int | None = None

    def take(self) -> None:
        """Take the lock, if it is not held already.

        :raises UserError: when another process holds it (says which), or the file cannot be made.
        """
        tries = _TRIES
        while self._handle is None and fcntl is not None:
            try:
                handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise UserError(f"model {self._model}: {self._path.name} beside it cannot be written ({error.strerror or error}); "
                                "choose another --model or mend the rights.") from None
            if not _lock(handle):
                holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
                os.close(handle)
                raise UserError(f"model {self._model}: is being trained by {holder}. Wait for it or stop it, or choose another --model.")
            tries -= 1
            if tries and not _is(handle, self._path):
                os.close(handle)  # who held it has removed the file since it was opened
                continue
            self._handle = handle
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def release(self) -> None:
        """Let others have it; nothing is left behind."""
        if self._handle is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None


def _lock(handle: int) -> bool:
    """Lock an open file; False when another process holds it."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _TAKEN
    return True


def _is(handle: int, path: Path) -> bool:
    """Tell whether an open file is the one that has a name now."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
