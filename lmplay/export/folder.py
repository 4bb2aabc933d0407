"""The folder of an export: written whole or not at all, and never over files of others."""
from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..checkpoints.lock import Name, NameLock
from ..errors import UserError
from ..files import make_folder, put, remove_leftovers, sync_folder, temporary_name
from ..paths import EXPORT_RECORD


def check_target(folder: Path, model: Path, overwrite: bool) -> None:
    """Check that a folder can be written, and that nothing of others is lost.

    :param model: the file that is exported.
    :param overwrite: files that no export has written may be lost.
    :raises UserError: when it cannot.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder}: is {'a link' if folder.is_symlink() else 'not a folder'}; give a folder that is not there yet.")
    if not folder.exists():
        return
    real = folder.resolve()
    if real in (Path.cwd().resolve(), *Path.cwd().resolve().parents, *model.resolve().parents):
        raise UserError(f"{folder}: holds the model file or the current folder; give another one, which an export may replace.")
    others = _foreign(folder)
    if others and not overwrite:
        raise UserError(f"{folder}: is there and not empty, and lmp_export has not written {others[0]}{' and others' * (len(others) > 1)} in it; give a "
                        "folder that is not there yet, or add --overwrite, which removes all that is in it.")


@contextmanager
def written_whole(folder: Path, model: Path, overwrite: bool) -> Iterator[Path]:
    """Give a folder to write into, which is renamed at the end; where something fails, it is removed, and what was there before stays.

    :param model: as in :func:`check_target`, like `overwrite`.
    :raises UserError: when something cannot be written, or another process is writing there.
    """
    make_folder(folder.parent, "folder of the export")
    with locked(folder):
        temporary = temporary_name(folder)
        try:
            temporary.mkdir()
            yield temporary
            _list_files(temporary)
            for path in temporary.rglob("*"):
                path.chmod(0o644 & ~_umask())
                _sync(path)
            check_target(folder, model, overwrite)  # others may have put something there since the start
            put(temporary, folder)
        except OSError as error:
            raise UserError(f"{folder}: cannot be written ({error.strerror or error}); nothing has been changed.") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(folder.parent)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let no other export write to a path meanwhile, and remove what one that was killed has left of it.

    :raises UserError: when another process is writing there.
    """
    name = Name(path.with_name(f"{path.name}.export.lmp"), str(path), "is being written by", "Wait for it, or give another name.")
    with NameLock([name]).held():
        remove_leftovers(path.parent, lambda left: left == path.name)
        yield


def write_record(folder: Path, record: dict[str, object]) -> None:
    """Write where an export is from."""
    (folder / EXPORT_RECORD).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _list_files(folder: Path) -> None:
    """Add the names of all files to the record."""
    record = json.loads((folder / EXPORT_RECORD).read_text(encoding="utf-8"))
    write_record(folder, {**record, "files": _names(folder)})


def _foreign(folder: Path) -> list[str]:
    """List the files of a folder that no export has written."""
    try:
        ours = {str(name) for name in json.loads((folder / EXPORT_RECORD).read_text(encoding="utf-8"))["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        ours = set()
    return [name for name in _names(folder) if name not in ours]


def _names(folder: Path) -> list[str]:
    """List what is in a folder, but for folders that are not empty, by names within it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir() or path.is_symlink() or not any(path.iterdir()))


def _umask() -> int:
    """Read the permissions that new files do not get."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _sync(path: Path) -> None:
    """Make what was written durable."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
