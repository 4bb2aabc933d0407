"""The C library's memory, set up for steps that take and free the same large blocks again and again.  Engine floor, no torch."""
from __future__ import annotations

import ctypes
import os
import sys

# Parameters of mallopt(3), and the largest value of the first.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = (1 << 31) - 1


def keep_freed_memory() -> None:
    """Let glibc keep what is freed: giving it back and asking anew costs a page fault for each 4 KiB of every step.

    Two settings do it: the heap is never trimmed, and no block is asked from the system by itself, for that one goes back when it is freed. (To raise
    M_MMAP_THRESHOLD is no help: glibc takes 32 MiB at most, and logits and gradients of a head are larger.) A process then holds the most that it has ever
    used. Does nothing where there is no glibc, or where the user has said by its variables (MALLOC_TRIM_THRESHOLD_ …) what it shall do.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_MAX, 0)
