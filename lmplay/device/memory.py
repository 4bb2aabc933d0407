"""Memory of a device: how much there is and is in use, out-of-memory errors, emptying caches; and waiting for the device.  Imports torch only."""
from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import torch

# Messages of torch's plain RuntimeErrors: of the CPU's allocator (on Linux, on Windows), of Apple's GPUs, and of cuBLAS for its workspace.
_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")

# A container's limit and use, in bytes (cgroups, version 2 and 1).
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CONTAINER_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
_CONTAINER_CACHES = ("inactive_file ", "total_inactive_file ")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory has run out, on the device or on the host."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS))


def free_memory(device: torch.device) -> None:
    """Free unused memory and empty the device's cache. Call it outside of the `except` block, because the error holds the tensors of its frames."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory in bytes: of the device, or of this process on a CPU; None where it is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()  # the current value: there is no peak, and little is freed
    for line in _lines("/proc/self/status"):  # preferred to getrusage, which starts from the peak of the parent process
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forget_peak(device: torch.device) -> None:
    """Let :func:`peak_memory` begin anew, where that is possible: on a GPU of NVIDIA."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def memory_there(device: torch.device) -> int | None:
    """Return the memory of a device in bytes, for a CPU that of the machine or the container; None where it is not known."""
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
    """Return the bytes that a process can still allocate; None where it is not known, or where too much is only an error and so can be tried.

    A GPU of NVIDIA under Windows would borrow the memory of the machine instead, and be many times slower.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    left = [int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    for limit, used, cached in zip(_CONTAINER_LIMITS, _CONTAINER_USED, _CONTAINER_CACHES, strict=True):
        bounds = [int(line) for name in (limit, used) for line in _lines(name) if line.strip().isdigit()]
        # file pages that have not been read for long count as used, and are freed first
        freed = [int(line.split()[1]) for line in _lines(str(Path(used).with_name("memory.stat"))) if line.startswith(cached)]
        left += [bounds[0] - bounds[1] + sum(freed)] if len(bounds) == 2 else []
    return min(left, default=None)


def has_room(device: torch.device, n_bytes: int) -> bool:
    """Tell whether that many bytes more fit on a GPU of NVIDIA, beside the most that was ever in use at once and a tenth to spare; False on other devices."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    return n_bytes <= free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device) - total // 10


def memory_in_use(device: torch.device) -> int | None:
    """Return the bytes that this process uses, of a CPU or of a GPU of NVIDIA; None on other devices, and where it is not known."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    lines = _lines("/proc/self/status") if device.type == "cpu" else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), None)


def _lines(name: str) -> list[str]:
    """Read the lines of a system file; none where it does not exist."""
    try:
        return Path(name).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []
