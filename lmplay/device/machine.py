"""What speed depends on: the processor's instruction sets, and the cores that this process may use.  No torch."""
from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path, PurePosixPath
from statistics import median

_CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # variables by which the user chooses the number of threads
# Samples of the number of running threads, and the seconds between two: a single one would count threads that run for an instant only.
_LOOKS, _BETWEEN_LOOKS = 7, 0.005


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """Return the instruction sets of the processor by their Linux names; empty where the system does not tell. `root` holds the system's files."""
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(value.split())
    return frozenset()


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU quota of this process in cores, as set for a container or a job; None = no limit.

    The system's number of cores does not include it: with one thread for each core, all threads would be paused for a part of each period.
    See cgroups(7): cpu.max of version 2 and cpu.cfs_quota_us of version 1.
    """
    quotas = []
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            mounts = [""] if not controllers else [controllers, "cpu"] if "cpu" in controllers.split(",") else []
            for mount in mounts:
                here = PurePosixPath(group.lstrip("/"))
                quotas += [_quota(root / "sys/fs/cgroup" / mount / folder) for folder in (here, *here.parents)]
    return min((quota for quota in quotas if quota is not None), default=None)


def threads_to_use(taken: int, root: Path = Path("/")) -> int:
    """Choose the number of threads for a step: `taken`, the default, but at most the whole cores of the quota; `taken` where the user has set a number."""
    quota = None if any(name in os.environ for name in _CHOSEN) else cpu_quota(root)
    return taken if quota is None else max(1, min(taken, int(quota)))


def usable_cores(root: Path = Path("/")) -> int:
    """Count the cores that this process may use, by its affinity and its quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def cores_are_taken(root: Path = Path("/")) -> bool:
    """Tell whether other programs leave fewer free cores than this one has threads; False where the system does not tell.

    See proc_pid_loadavg(5): the fourth field counts the threads that run at this moment, this one included.
    """
    running = []
    with suppress(OSError, ValueError, IndexError):
        for _ in range(_LOOKS):
            running.append(int((root / "proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]))
            time.sleep(_BETWEEN_LOOKS)
    cores = os.cpu_count() or 1
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    own = int(chosen) if chosen.isdecimal() else threads_to_use(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores, root)
    return bool(running) and median(running) - 1 + own > cores


def _quota(folder: Path) -> float | None:
    """Read the quota of one group, in cores."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(int, " ".join((folder / file).read_text(encoding="ascii") for file in files).split())
            if quota > 0 and period > 0:
                return quota / period
    return None
