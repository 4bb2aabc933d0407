"""Locks, so that one run at a time writes to a model's files and to its statistics, and one program to what else has a name.  No torch.

They are POSIX record locks: the system releases them when the process ends, however that happens, and forked processes do not inherit them. On a network
file system they work between machines only where the file server supports locks. Where there are no such locks (Windows, some file servers), nothing is locked.
"""
from __future__ import annotations

import errno
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
_PAUSE = 0.05  # seconds between two looks at a lock that is waited for


@dataclass(frozen=True)
class Name:
    """A name that is locked: that of a model file, of the file of one of its stages, of a model whose statistics are in the output folder, or of another file.

    :param path: NAME.lmp, say; the lock file is .NAME.lock beside it.
    :param label: what it is in messages.
    :param what: follows `label` in the message when it is taken: "is being trained by", and who holds it.
    :param advice: what the user can do then.
    """

    path: Path
    label: str
    what: str
    advice: str

    @property
    def file(self) -> Path:
        """The lock file."""
        return self.path.with_name(f".{self.path.stem}.lock")


class NameLock:
    """Locks of names; their hidden files exist as long as they are held."""

    def __init__(self, names: Sequence[Name]):
        self._names = names
        self._handles: dict[Path, int] = {}

    @contextmanager
    def held(self, patience: float = 0.0) -> Iterator[None]:
        """Hold the locks meanwhile; as :meth:`take`."""
        self.take(patience)
        try:
            yield
        finally:
            self.release()

    def take(self, patience: float = 0.0) -> None:
        """Take the locks that are not held already, in folders that exist.

        :param patience: seconds to wait for who holds one.
        :raises UserError: when another process holds one (names the process), or a lock file cannot be created or is not one; none is held then.
        """
        if fcntl is None:
            return
        end = time.monotonic() + patience
        try:
            for name in self._names:
                if name.file not in self._handles and name.path.parent.is_dir():
                    self._handles[name.file] = _take(name, end)
        except UserError:
            self.release()
            raise

    def release(self) -> None:
        """Release the locks and remove their files."""
        while self._handles:
            file, handle = self._handles.popitem()
            file.unlink(missing_ok=True)
            os.close(handle)


class Lock(NameLock):
    """The locks of a run."""

    def __init__(self, path: Path, out_dir: Path | None = None, stages: Sequence[str] = ()):
        """
        :param path: the model file.
        :param out_dir: where its statistics are; None = beside it.
        :param stages: the stages of its plan: each has a file of its own, which another model of that name would be, too.
        """
        label, advice = f"model {path}", "Wait for it or stop it, or choose another --model."
        names = [Name(path, label, "is being trained by", advice)]
        names += [Name(path.with_name(f"{path.stem}.{stage}{path.suffix}"), label,
                       f"the file of its stage '{stage}' has the name of a model that is being trained by", advice) for stage in stages]
        if out_dir is not None and os.path.realpath(out_dir) != os.path.realpath(path.parent):
            names.append(Name(out_dir / path.name, f"--out-dir {out_dir}", f"statistics of a model of the name {path.stem} are being written there by",
                              "Wait for it or stop it, or choose another --out-dir or another name."))
        super().__init__(names)


def _take(name: Name, end: float) -> int:
    """Take one lock and return its open file.

    :param end: until when it is waited for, by the monotonic clock.
    """
    tries = _TRIES
    while True:
        try:
            handle = open_new_or_file(name.file)
        except OSError as error:
            raise UserError(f"{name.label}: the lock file {name.file} cannot be written ({error.strerror or error}); remove it, choose another name or "
                            "change the permissions.") from None
        content = os.pread(handle, _LONGEST, 0)
        if not _HOLDER.fullmatch(content):
            os.close(handle)
            raise UserError(f"{name.label}: {name.file} is not a lock file of lmplay; move it elsewhere.")
        if _lock(handle):
            tries -= 1
            if not tries or _is(handle, name.file):
                line = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
                with suppress(OSError):  # on a full disk it is held all the same, by nobody knows whom
                    os.pwrite(handle, line.ljust(len(content)), 0)
                return handle
            os.close(handle)  # the process that held it has removed the file since it was opened
            continue
        os.close(handle)
        if time.monotonic() > end:
            raise UserError(f"{name.label}: {name.what} {content.decode(errors='replace').strip() or 'another process'}. {name.advice}")
        time.sleep(_PAUSE)


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
