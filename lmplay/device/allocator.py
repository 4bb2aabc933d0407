"""Settings of allocators for steps that allocate and free large blocks again and again.  No torch."""
from __future__ import annotations

import ctypes
import os
import sys

# Parameters of mallopt(3), the largest value of the first, and what is a large block, in bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER, _LARGE = (1 << 31) - 1, 1 << 20


def keep_freed_memory() -> None:
    """Let glibc keep freed memory: returning it to the system and requesting it again costs a page fault for each 4 KiB in every step.

    The heap is never trimmed, and no block is mapped by itself, because such a block is unmapped when it is freed. (Raising M_MMAP_THRESHOLD does not help: its
    maximum is 32 MiB, and the logits and gradients of a head are larger.) A process then holds the most memory that it has ever used. Does nothing without
    glibc, or where the user has set glibc's variables (MALLOC_TRIM_THRESHOLD_ …).
    """
    _tune({_TRIM_THRESHOLD: _NEVER, _MMAP_MAX: 0})


def return_freed_memory() -> None:
    """Let glibc return the memory of each large block when it is freed, for a model that is gathered block by block: a process holds what is in use."""
    _tune({_MMAP_THRESHOLD: _LARGE})


def _tune(parameters: dict[int, int]) -> None:
    """Set parameters of glibc's allocator; nothing without glibc, or where the user has set its variables."""
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in parameters.items():
            mallopt(parameter, value)


def let_segments_grow() -> None:
    """Let the allocator of an NVIDIA GPU extend its segments, instead of adding one for each size that it has not had: mini-batches have many lengths.

    It reads the environment when it is first used; what the user has set there stays. Not on Windows, where there are no such segments.
    """
    if sys.platform.startswith("linux") and not any(name in os.environ for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")):
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
