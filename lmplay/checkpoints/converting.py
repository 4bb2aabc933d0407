"""Writing a state by one process, as a file or as a folder of shards, and turning one into the other."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import check_free_bytes, make_folder, temporary_name
from .base import bring_base
from .folder import File, divide, write_own
from .format import content_bytes, read, write_folder
from .lock import Lock
from .rotation import write_checked


def convert(source: Path, target: Path, shards: int | None) -> None:
    """Write a state, of a run or of weights alone, with another name; all that is in it stays the same, bit for bit.

    :param shards: the number of files of a folder; None = one file, which needs memory for the whole state.
    :raises UserError: when the source is damaged, or the target cannot be written.
    """
    content = read(source, mmap=shards is not None)
    if "model" not in content:
        raise UserError(f"STATE {source}: holds no model.")
    write_state(target, content, shards)
    bring_base(target, content, source)


def write_state(path: Path, content: dict[str, Any], shards: int | None) -> None:
    """Write a state, while no run is at work on it.

    :param shards: see :func:`convert`.
    :raises UserError: when it cannot be written, or a run of this name is at work.
    """
    make_folder(path.parent, "folder of TARGET")
    lock = Lock(path)
    lock.take()
    try:
        if shards is None:
            write_checked(path, content, None, lambda: False)
        else:
            _write_shards(path, content, shards)
    except OSError as error:
        raise UserError(f"TARGET {path}: cannot be written ({error.strerror or error}); what was there is whole.") from None
    finally:
        lock.release()


def _write_shards(path: Path, content: dict[str, Any], shards: int) -> None:
    """Write a folder of shards; raises OSError."""
    check_free_bytes(path.parent, content_bytes(content))
    folder, files = temporary_name(path), dict[str, File]()
    try:
        for rank in range(shards):
            files |= write_own(folder, divide(content, rank, shards), rank, shards, lambda: False)
        write_folder(path, divide(content, 0, shards), files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
