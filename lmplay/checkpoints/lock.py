"""Locks, so that one run at a time writes to a model's files and to its statistics.  No torch.

They are POSIX record locks: the system releases them when the process ends, however that happens, and forked processes do not inherit them. On a network
file system they work between machines only where the file server supports locks. Where there are no such locks (Windows, some file servers), nothing is locked.
"""
from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..files import open_new_or_file

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

_TAKEN = (errno.EACCES, errno.EAGAIN)
# When another run removes the lock file at the same moment, it is tried again; on some file systems a file never seems to be the same.
_TRIES = 100
# What a lock file holds: who locks it, and spaces in place of a longer line before. Another content is not ours.
_HOLDER = re.compile(rb"(process \d+ on [^\n]*\n *)?")
_LONGEST = 400  # bytes of it


@dataclass(frozen=True)
class Name:
    """A name that is locked: that of the model file, of the file of one of its stages, or of a model whose statistics are in the output folder.

    :param path: NAME.lmp; the lock file is .NAME.lock beside it.
    :param what: follows `path` in the message when it is taken: "is being trained by process 7 ...".
    :param advice: what the user can do then.
    """

    path: Path
    what: str
    advice: str

    @property
    def file(self) -> Path:
        """The lock file."""
        return self.path.with_name(f".{self.path.stem}.lock")


class Lock:
    """The locks of a run; their hidden files exist as long as the run."""

    def __init__(self, path: Path, out_dir: Path | None = None, stages: Sequence[str] = ()):
        """
        :param path: the model file.
        :param out_dir: where its statistics are; None = beside it.
        :param stages: the stages of its plan: each has a file of its own, which another model of that name would be, too.
        """
        self._names = [Name(path, f"model {path}: is being trained by", "Wait for it or stop it, or choose another --model.")]
        self._names += [Name(path.with_name(f"{path.stem}.{stage}{path.suffix}"),
                             f"model {path}: the file of its stage '{stage}' has the name of a model that is being trained by",
                             "Wait for it or stop it, or choose another --model.") for stage in stages]
        if out_dir is not None and os.path.realpath(out_dir) != os.path.realpath(path.parent):
            self._names.append(Name(out_dir / path.name, f"--out-dir {out_dir}: statistics of a model of the name {path.stem} are being written there by",
                                    "Wait for it or stop it, or choose another --out-dir or another name."))
        self._handles: dict[Path, int] = {}

    def take(self) -> None:
        """Take the locks that are not held already, in folders that exist.

        :raises UserError: when another process holds one (names the process), or a lock file cannot be created or is not one; none is held then.
        """
        if fcntl is None:
            return
        try:
            for name in self._names:
                if name.file not in self._handles and name.path.parent.is_dir():
                    self._handles[name.file] = self._take(name)
        except UserError:
            self.release()
            raise

    def release(self) -> None:
        """Release the locks and remove their files."""
        while self._handles:
            file, handle = self._handles.popitem()
            file.unlink(missing_ok=True)
            os.close(handle)

    def _take(self, name: Name) -> int:
        """Take one lock and return its open file."""
        for tries in range(_TRIES, 0, -1):
            try:
                handle = open_new_or_file(name.file)
            except OSError as error:
                raise UserError(f"model {self._names[0].path}: its lock file {name.file} cannot be written ({error.strerror or error}); "
                                "remove it, choose another --model or change the permissions.") from None
            content = os.pread(handle, _LONGEST, 0)
            if not _HOLDER.fullmatch(content):
                os.close(handle)
                raise UserError(f"model {self._names[0].path}: {name.file} is not a lock file of lmplay; move it elsewhere.")
            if not _lock(handle):
                holder = content.decode(errors="replace").strip() or "another process"
                os.close(handle)
                raise UserError(f"{name.what} {holder}. {name.advice}")
            if tries == 1 or _is(handle, name.file):
                line = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
                os.pwrite(handle, line.ljust(len(content)), 0)
                return handle
            os.close(handle)  # the process that held it has removed the file since it was opened
        raise AssertionError


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
