"""Writing a state by one process, as a file or as a folder of shards, and turning one into the other."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import make_folder
from .base import bring_base, with_base
from .format import load, write_shards
from .lock import Lock
from .rotation import clean_up, write_checked

_KEPT = re.compile(r"(?P<run>.+)\.(?P<what>best|prev-[1-9][0-9]*)")
"""Names of states that runs write, but for those of stages, which are locked themselves."""


def convert(source: Path, target: Path, shards: int | None) -> None:
    """Write a state, of a run or of weights alone, with another name; all that is in it stays the same, bit for bit.

    :param shards: the number of files of a folder; None = one file, which needs memory for the whole state.
    :raises UserError: when the source is damaged, the base of its adapter is not there, or the target cannot be written.
    """
    content = load(source, parts=("model",), mmap=shards is not None)
    with_base(source, content)
    try:
        bring_base(target, content, source)
    except OSError as error:
        raise UserError(f"TARGET {target}: the weights below its adapter cannot be written ({error.strerror or error}); nothing else is.") from None
    write_state(target, content, shards)


def write_state(path: Path, content: dict[str, Any], shards: int | None) -> None:
    """Write a state, while no run is at work on it.

    :param shards: see :func:`convert`.
    :raises UserError: when it cannot be written, or a run is at work that writes it, too.
    """
    make_folder(path.parent, "folder of TARGET")
    kept = _KEPT.fullmatch(path.stem)
    lock = Lock(path.with_name(f"{kept['run']}{path.suffix}"), stages=[kept["what"]]) if kept else Lock(path)
    lock.take()
    try:
        clean_up(path, path.parent)
        if shards is None:
            write_checked(path, content, None, lambda: False)
        else:
            write_shards(path, content, shards)
    except OSError as error:
        raise UserError(f"TARGET {path}: cannot be written ({error.strerror or error}); what was there is unchanged.") from None
    finally:
        lock.release()
