"""The cache folder of compiled code, which the next run reuses."""
from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch

from .machine import cpu_flags

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_PATIENCE = 10.0  # seconds to wait for the lock with which the folder is tested, in case another run holds it


def keep_compiled() -> None:
    """Let torch keep compiled code in the user's cache folder, unless the user has set another one (TORCHINDUCTOR_CACHE_DIR).

    By default torch uses a temporary folder, which is lost at the next boot, or on another node of a cluster. It is used where the cache folder is not
    writable, does not support locks, or does not allow execution.
    """
    if _VARIABLE not in os.environ and (folder := _folder()) is not None and _is_usable(folder):
        os.environ[_VARIABLE] = str(folder)


def _folder() -> Path | None:
    """Choose a folder by processor and number of threads: not all versions of torch look at them, and machines may share a home."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # the user has no home
        return None
    processor = hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest()[:12]
    return base / "lmplay" / "compiled" / f"{processor}-{torch.get_num_threads()}" if base.is_absolute() else None


def _is_usable(folder: Path) -> bool:
    """Create the folder, and test what torch does there."""
    from filelock import FileLock

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(folder / "try.lock", timeout=_PATIENCE):
            pass
        return not (hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_NOEXEC)
    except (OSError, NotImplementedError):  # the timeout of a lock is an OSError, too
        return False
