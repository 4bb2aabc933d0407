"""Writing files so that, whatever happens, the old or the new one is whole.  Ground floor."""
from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from .errors import UserError

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>[0-9]+)\.tmp")


def write_atomic(path: Path, write: Callable[[IO[bytes]], None], before_rename: Callable[[Path], None] | None = None) -> None:
    """Write a file under a temporary name, sync it, rename it over the old one and sync the folder.

    :param path: the file to make or to replace.
    :param write: is given the open temporary file (binary) and writes all of the contents.
    :param before_rename: is called with the temporary file, when it is whole and the old one still has its name.
    :raises OSError: when the disk is full or the folder cannot be written; the old file is then untouched.
    """
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if before_rename is not None:
            before_rename(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically (see :func:`write_atomic`)."""
    write_atomic(path, lambda file: _write_all(file, text.encode()))


def link_atomic(path: Path, other: Path) -> None:
    """Give a whole file a second name, replacing what had that name; copies where links are not supported.

    :param path: the file that exists.
    :param other: its second name, on the same disk.
    """
    temporary = _temporary(other)
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        write_atomic(other, lambda file: _copy_into(path, file))
        return
    os.replace(temporary, other)
    _sync_folder(other.parent)


def remove_leftovers(folder: Path, ours: Callable[[str], bool]) -> None:
    """Remove temporary files of processes that were killed while they wrote.

    :param folder: where they would be.
    :param ours: tells by the name of the file that was to be written whether it is for the caller to clean up.
    """
    for path in folder.glob(".*.tmp"):
        found = _TEMPORARY.fullmatch(path.name)
        if found and ours(found["name"]) and not (int(found["pid"]) != os.getpid() and is_alive(int(found["pid"]))):
            path.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Tell whether a process of this machine is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is there, and somebody else's
    return True


def check_room(folder: Path, needed: int) -> None:
    """See that a file will fit on the disk, before any of it is written.

    :param folder: where it will be.
    :param needed: its size in bytes.
    :raises OSError: ENOSPC, with the bytes that are needed and there.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"it needs {needed:,} bytes, and {free:,} are free on the disk")


def check_folder(path: Path, what: str) -> None:
    """See that a folder can be written, or made, without making anything.

    :param path: the folder.
    :param what: what the user calls it, for the message.
    :raises UserError: when it cannot.
    """
    nearest = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists() or folder.is_symlink())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "is not a folder" if not nearest.is_dir() else "may not be written"
        raise UserError(f"{what} {path}: {nearest} {reason}; choose another folder or mend its rights.")


def make_folder(path: Path, what: str) -> Path:
    """Create a folder with its parents and see that it can be written.

    :param path: the folder.
    :param what: what the user calls it, for the message.
    :return: the same path.
    :raises UserError: when it cannot be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".lmplay-{os.getpid()}.tmp"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{what} {path}: cannot be written ({error.strerror or error}); choose another folder or mend its rights.") from None
    return path


def read_json_or_yaml(path: Path, what: str) -> Any:
    """Read a JSON file, or a YAML one when its name ends in .yaml or .yml.

    :param path: the file.
    :param what: what it is, for the message ("plan", "settings file").
    :return: the parsed value.
    :raises UserError: when it is missing, unreadable, or not valid; says line and column.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{what} {path}: cannot be read ({reason}).") from None
    if path.suffix.lower() in (".yaml", ".yml"):
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            raise UserError(f"{what} {path}{where}: not valid YAML ({getattr(error, 'problem', None) or error}).") from None
    try:
        return json.loads(text, object_pairs_hook=_no_twins)
    except json.JSONDecodeError as error:
        raise UserError(f"{what} {path}, line {error.lineno}, column {error.colno}: not valid JSON ({error.msg}).") from None
    except _Twin as error:
        raise UserError(f"{what} {path}: the key '{error}' stands twice in one object; JSON keeps only the last. Rename one.") from None


class _Twin(Exception):
    """A JSON object has a key twice."""


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict, refusing a key that comes twice (a stage would vanish without a word)."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _Twin(key)
        result[key] = value
    return result


def _temporary(path: Path) -> Path:
    """Name the file that something is written into before it gets its own name; :data:`_TEMPORARY` reads it back."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _write_all(file: IO[bytes], data: bytes) -> None:
    """Write bytes, returning nothing (a callback for :func:`write_atomic`)."""
    file.write(data)


def _copy_into(path: Path, file: IO[bytes]) -> None:
    """Copy a file's bytes into an open one."""
    with open(path, "rb") as source:
        shutil.copyfileobj(source, file)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; a no-op where folders cannot be opened (Windows)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse to sync a folder: the rename itself has happened
    finally:
        os.close(handle)
