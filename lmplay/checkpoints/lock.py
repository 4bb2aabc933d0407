"""A lock, so that one run at a time writes to a model file.  No torch.

It is a POSIX record lock: the system releases it when the process ends, however that happens, and forked processes do not inherit it. On a network
file system it works between machines only where the file server supports locks. Where there are no such locks (Windows, some file servers), nothing is locked.
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
# When another run removes the lock file at the same moment, it is tried again; on some file systems a file never seems to be the same.
_TRIES = 100


class Lock:
    """The lock of a model file NAME.lmp and of the files that belong to it: the hidden file .NAME.lock beside it, which exists as long as the run."""

    def __init__(self, path: Path):
        self._model = path
        self._path = path.with_name(f".{path.stem}.lock")
        self._handle: int | None = None

    def take(self) -> None:
        """Take the lock, if it is not held already; raises UserError when another process holds it (names the process), or the file cannot be created."""
        tries = _TRIES
        while self._handle is None and fcntl is not None:
            try:
                handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise UserError(f"model {self._model}: {self._path.name} beside it cannot be written ({error.strerror or error}); "
                                "choose another --model or change the permissions.") from None
            if not _lock(handle):
                holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
                os.close(handle)
                raise UserError(f"model {self._model}: is being trained by {holder}. Wait for it or stop it, or choose another --model.")
            tries -= 1
            if tries and not _is(handle, self._path):
                os.close(handle)  # the process that held it has removed the file since it was opened
                continue
            self._handle = handle
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def release(self) -> None:
        """Release the lock and remove its file."""
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
    """Tell whether an open file is the one that has this path now."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
