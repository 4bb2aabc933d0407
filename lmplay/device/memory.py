"""Memory: how much there is and has been used, telling that it has run out from other errors, and giving back what is held in reserve.
Engine floor: imports torch only.
"""
from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import torch

# How errors of torch that are plain RuntimeErrors say it: the CPU's allocator (on Linux, on Windows), Apple's GPUs, and cuBLAS for its workspace.
_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")

# What a container may use and uses, in bytes (cgroups, version 2 and 1).
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CONTAINER_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
_CONTAINER_CACHES = ("inactive_file ", "total_inactive_file ")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory has run out, on the device or beside it."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def free_memory(device: torch.device) -> None:
    """Give back what nobody uses any more; to be called outside of the `except` that holds the error, and with it the tensors of its frames.

    :param device: whose allocator keeps memory in reserve.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def wait_for(device: torch.device) -> None:
    """Let the device finish what it was asked to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def peak_memory(device: torch.device) -> int | None:
    """Give the most memory that has been in use, in bytes: the device's, or this process's on a CPU; None where nobody knows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()  # of now: no peak is kept, and little is given back
    for line in _lines("/proc/self/status"):  # where there is one: getrusage begins with the peak of the process that this one was started by
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_there(device: torch.device) -> int | None:
    """Give the memory of a device in bytes, that of the machine (or of the container) for a CPU; None where nobody knows."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
    limits = [int(line) for name in _CONTAINER_LIMITS for line in _lines(name) if line.strip().isdigit()]
    return min(there, *limits) if limits else there


def memory_left(device: torch.device) -> int | None:
    """Give the bytes that a process may still take; None where nobody knows, or where taking too much is only an error and so may be tried."""
    if device.type != "cpu":
        return None
    left = [int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    for limit, used, cached in zip(_CONTAINER_LIMITS, _CONTAINER_USED, _CONTAINER_CACHES, strict=True):
        bounds = [int(line) for name in (limit, used) for line in _lines(name) if line.strip().isdigit()]
        # pages of files that nobody has looked at for long count as used, and are given up before anything else
        freed = [int(line.split()[1]) for line in _lines(str(Path(used).with_name("memory.stat"))) if line.startswith(cached)]
        left += [bounds[0] - bounds[1] + sum(freed)] if len(bounds) == 2 else []
    return min(left, default=None)


def memory_in_use(device: torch.device) -> int | None:
    """Give the bytes that this process has in use on a CPU; None elsewhere, and where nobody knows."""
    lines = _lines("/proc/self/status") if device.type == "cpu" else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), None)


def _lines(name: str) -> list[str]:
    """Read a file of the system; nothing where it isn't."""
    try:
        return Path(name).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []
