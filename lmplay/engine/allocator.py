"""The C library's memory, set up for steps that take and free the same large blocks again and again.  Engine floor, no torch."""
from __future__ import annotations

import ctypes
import os
import sys

# Parameters of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
# The largest that glibc takes for blocks that are not asked from the system one by one, and more than a step frees at once.
_LARGEST_BLOCK, _NEVER, _AHEAD = 32 << 20, (1 << 31) - 1, 64 << 20


def keep_freed_memory() -> None:
    """Let glibc keep what is freed: giving it back and asking anew costs a page fault for each 4 KiB of every step.

    Does nothing where there is no glibc, or where the user has said by its variables (MALLOC_TRIM_THRESHOLD_ …) what it shall do.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((_MMAP_THRESHOLD, _LARGEST_BLOCK), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _AHEAD)):
            mallopt(parameter, value)
