"""Writing files atomically, so that the old or the new one is always whole; checking folders and disks.

A state of a run is a file, or a folder of shards with a file :data:`STATE`; what is said here of states holds for both.
"""
from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from .errors import UserError
from .signals import unfinished

_KINDS = ((stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "named pipe"), (stat.S_ISSOCK, "socket"), (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"))
STATE = "state.lmp"
"""The file of a folder of shards that has all but the shards."""
SHARDS = "shard-*.safetensors"
"""The names of its other files."""
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>[0-9]+)\.tmp")
_REPLACED = ".replaced"  # follows the name of what is whole, and has a temporary name while another one takes its place
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of <fcntl.h> and <linux/fs.h>


class NotAFile(OSError):
    """A folder, a named pipe, a socket or a device is where a file should be; reading some of them would never end."""


def check_is_file(path: Path) -> None:
    """Check that a path is a file, a link to one, or not there at all; raises :class:`NotAFile`, saying what it is instead."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # it is not there, or opening it says more
    if not stat.S_ISREG(mode):
        kind = next((kind for test, kind in _KINDS if test(mode)), "special file")
        raise NotAFile(errno.EINVAL, f"it is a {kind}, not a file")


def is_state(path: Path) -> bool:
    """Tell whether a path is a file, or a folder of shards, be it a damaged one."""
    return path.is_file() or (path / STATE).is_file() or any(path.glob(SHARDS))


def check_is_state(path: Path) -> None:
    """Check that a path is a file, a folder of shards, or not there at all; raises :class:`NotAFile`."""
    if not is_state(path):
        check_is_file(path)


def write_atomic(path: Path, write: Callable[[IO[bytes]], Any], before_rename: Callable[[Path], None] | None = None,
                 check: Callable[[Path], None] = check_is_file) -> None:
    """Write a file under a temporary name, sync it, rename it over the old one and sync the folder.

    :param path: the file to create or to replace.
    :param check: refuses to replace what has this name.
    :param write: writes all of the contents into the open temporary file (binary).
    :param before_rename: called with the complete temporary file, while the old file still has its name.
    :raises OSError: when the disk is full, the folder is not writable, or something else than a file has this name; the old file is untouched then.
    """
    check(path)
    temporary = temporary_name(path)
    unfinished.add(str(temporary))
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if before_rename is not None:
            before_rename(temporary)
        put(temporary, path)
    except BaseException:
        _erase(temporary)
        raise
    finally:
        unfinished.discard(str(temporary))
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically, see :func:`write_atomic`."""
    write_atomic(path, lambda file: file.write(text.encode()))


def json_line(row: dict[str, Any]) -> str:
    """Write a line of JSON; other line ends of Unicode are escaped, so that every program reads it as one line."""
    return json.dumps(row, ensure_ascii=False).translate({ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}) + "\n"


def link_atomic(path: Path, other: Path) -> None:
    """Link a state to a second name on the same disk, replacing the one that had it; copy files where links are not supported.

    Of a folder only the files of the state are linked, and not what else a file server, say, has put there.
    """
    check_is_state(other)
    temporary = temporary_name(other)
    if path.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    else:
        temporary.unlink(missing_ok=True)
    try:
        for file in [*path.glob(STATE), *path.glob(SHARDS)] if path.is_dir() else [path]:
            _link(file, temporary / file.name if path.is_dir() else temporary)
        if path.is_dir():
            sync_folder(temporary)
        put(temporary, other)
    except BaseException:
        _erase(temporary)
        raise
    sync_folder(other.parent)


def _link(path: Path, new: Path) -> None:
    """Link a file to a new name, or copy and sync it where links are not supported."""
    try:
        os.link(path, new)
    except OSError:
        with open(path, "rb") as source, open(new, "wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())


def put(new: Path, path: Path) -> None:
    """Give a file or a folder, which has a temporary name, one that another may have, which is removed.

    It is one step where only files are concerned, or the file system can exchange two names (most of Linux). Else there is nothing of that name for an
    instant; when the process is killed just then, :func:`remove_leftovers` gives the old one its name again.
    """
    if not (path.is_dir() or (new.is_dir() and path.exists())):
        os.replace(new, path)
        return
    if not _exchange(new, path):
        aside = temporary_name(path.with_name(path.name + _REPLACED))
        _erase(aside)
        try:
            os.replace(path, aside)
            os.replace(new, path)
        except BaseException:
            if not path.exists():
                os.replace(aside, path)
            raise
        os.replace(aside, new)
    sync_folder(path.parent)
    _erase(new)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False, and nothing is changed, where that is not possible."""
    renameat2 = _renameat2()
    return renameat2 is not None and renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0


@cache
def _renameat2() -> Any:
    """Return the system call of Linux that exchanges names; None where the C library has none."""
    import ctypes  # only where a folder takes the place of another

    return getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there; a folder gets a temporary name first, so that half of it is never taken for the whole."""
    if path.is_dir() and not path.is_symlink():
        aside = temporary_name(path.with_name(f"{path.stem}.removed{path.suffix}"))
        _erase(aside)
        os.replace(path, aside)
        path = aside
    _erase(path)


def _erase(path: Path) -> None:
    """Remove a file or a folder that nobody looks for."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # what is left of it has a temporary name
    else:
        path.unlink(missing_ok=True)


def identity(path: Path) -> tuple[int, int]:
    """Identify what a name leads to: links to a file have the same identity, and folders of shards that are linked to each other."""
    stat = (path / STATE if (path / STATE).is_file() else path).stat()
    return stat.st_dev, stat.st_ino


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of the files of a folder."""
    return sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size


def open_new_or_file(path: Path) -> int:
    """Open a file to read and write, creating it if it is not there; its content is kept, and no link is followed.

    :return: the descriptor.
    :raises OSError: when that is not possible, :class:`NotAFile` when it is not a file.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotAFile(errno.EINVAL, "it is not a file")
    return handle


def no_link(path: str, flags: int) -> int:
    """Open a file as `opener` of :func:`open`: a link is not followed, it would lead what is written out of the folder. Raises :class:`NotAFile` for one."""
    if os.path.islink(path):
        raise NotAFile(errno.ELOOP, "it is a link")
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def remove_leftovers(folder: Path, ours: Callable[[str], bool], age: float = 0) -> None:
    """Remove the temporary files of killed processes from a folder, where `ours` returns True for the name of the file that was being written.

    What was whole and was about to be replaced (:func:`put`) gets its name again, where nothing has that name.

    :param age: seconds since the last write to them, at least; where other machines write to the folder, too, whose processes are not seen here.
    """
    for path in folder.glob(".*.tmp"):
        found = _TEMPORARY.fullmatch(path.name)
        name = found["name"].removesuffix(_REPLACED) if found else ""
        if found and ours(name) and not (int(found["pid"]) != os.getpid() and is_alive(int(found["pid"]))):
            with suppress(FileNotFoundError):
                if not age or time.time() - path.stat().st_mtime > age:
                    if name != found["name"] and not (folder / name).exists():
                        path.rename(folder / name)
                    else:
                        _erase(path)


def is_alive(pid: int) -> bool:
    """Tell whether a process of this machine is running."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is running, and belongs to another user
    return True


def check_free_bytes(folder: Path, needed: int) -> None:
    """Check that a file of a size in bytes will fit on a folder's disk before it is written; raises OSError (ENOSPC) with the bytes needed and free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"it needs {needed:,} bytes, and {free:,} are free on the disk")


def check_folder(path: Path, what: str) -> None:
    """Check that a folder is writable or can be created, without creating anything.

    :param what: its name in the message of the UserError.
    """
    nearest = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists() or folder.is_symlink())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "is not a folder" if not nearest.is_dir() else "is not writable"
        raise UserError(f"{what} {path}: {nearest} {reason}; choose another folder or change its permissions.")


def make_folder(path: Path, what: str) -> Path:
    """Create a folder with its parents, check that it is writable, and return it.

    :param what: its name in the message of the UserError.
    """
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            sync_folder(folder.parent)  # else a power cut could take the folder away, with all that was synced in it
        probe = path / f".lmplay-{os.getpid()}.tmp"
        probe.touch()
        probe.unlink(missing_ok=True)  # on another machine a process may have the same id
    except OSError as error:
        raise UserError(f"{what} {path}: cannot be written ({error.strerror or error}); choose another folder or change its permissions.") from None
    return path


def temporary_name(path: Path, pid: int | None = None) -> Path:
    """Return the temporary name of a file or a folder while a process (None = this one) writes it; :data:`_TEMPORARY` matches it."""
    return path.with_name(f".{path.name}.{pid or os.getpid()}.tmp")


def sync_folder(folder: Path) -> None:
    """Make a rename durable."""
    with suppress(OSError):  # Windows cannot open a folder, and some network file systems refuse to sync one: the rename itself has happened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
