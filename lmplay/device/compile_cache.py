"""The cache folder of compiled code, which the next run reuses."""
from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

import torch

from .machine import cpu_flags

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_PATIENCE = 10.0  # seconds to wait for the lock with which the folder is tested, in case another run holds it
# What is kept at most, of all processors together, and for how long after its last use; what was used in the last day may be in use now.
_MOST_BYTES = 4 << 30
_DAY = 24 * 3600.0
_LONGEST = 30 * _DAY


def keep_compiled() -> None:
    """Let torch keep compiled code in the user's cache folder, unless the user has set another one (TORCHINDUCTOR_CACHE_DIR).

    By default torch uses a temporary folder, which is lost at the next boot, or on another node of a cluster. It is used where the cache folder is not
    writable, does not support locks, or does not allow execution. What has not been used for 30 days is removed, and the oldest beyond 4 GiB.
    """
    if _VARIABLE not in os.environ and (folder := _folder()) is not None and _is_usable(folder):
        os.environ[_VARIABLE] = str(folder)
        _trim(folder.parent)


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


def _trim(base: Path) -> None:
    """Remove what has not been used for long, and the oldest of what is too much; code that is missing is compiled again."""
    found: list[tuple[float, int, str]] = []  # when it was last used, its bytes, its path
    folders: list[str] = []
    for folder, _, names in os.walk(base):
        folders.append(folder)
        for name in names:
            with suppress(OSError):  # another run may remove it, too
                status = os.lstat(path := os.path.join(folder, name))
                found.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total, now = sum(size for _, size, _ in found), time.time()
    for used, size, path in sorted(found):
        if now - used > _LONGEST or (total > _MOST_BYTES and now - used > _DAY):
            with suppress(OSError):
                os.unlink(path)
                total -= size
    for folder in reversed(folders[1:]):
        with suppress(OSError):
            if now - os.stat(folder).st_mtime > _DAY:  # else a run may be about to write into it
                os.rmdir(folder)
