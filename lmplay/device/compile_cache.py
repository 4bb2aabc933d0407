"""Where torch keeps what it has compiled, so that the next run takes it from there.  Engine floor."""
from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch

from .machine import cpu_flags

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
# Seconds that another run may hold the lock with which the folder is tried.
_PATIENCE = 10.0


def keep_compiled() -> None:
    """Let torch keep what it compiles in the user's cache folder, unless the user has named another (TORCHINDUCTOR_CACHE_DIR).

    Torch itself takes a temporary folder, which is gone with the next start of the machine, or at once on the next node of a cluster. Where the user's folder
    cannot be used (not writable, without locks, or nothing in it may be executed) it stays at that.
    """
    if _VARIABLE not in os.environ and (folder := _folder()) is not None and _is_usable(folder):
        os.environ[_VARIABLE] = str(folder)


def _folder() -> Path | None:
    """Choose a folder for code of this processor and this number of threads: torch's keys know neither in all of its versions, and a home may be shared."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # nobody's home
        return None
    processor = hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest()[:12]
    return base / "lmplay" / "compiled" / f"{processor}-{torch.get_num_threads()}" if base.is_absolute() else None


def _is_usable(folder: Path) -> bool:
    """Make the folder, and try what torch does there."""
    from filelock import FileLock

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(folder / "try.lock", timeout=_PATIENCE):
            pass
        return not (hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_NOEXEC)
    except (OSError, NotImplementedError):  # a lock that takes too long is an OSError, too
        return False
