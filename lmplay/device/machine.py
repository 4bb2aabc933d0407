"""The machine as far as speed depends on it: instructions of the processor, and the cores that this process may use.  Engine floor, no torch."""
from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path, PurePosixPath
from statistics import median

# Who has set one of these has chosen the number of threads.
_CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

# How often it is looked whether cores are free, and the seconds between two looks: a glance would take what comes and goes for work.
_LOOKS, _BETWEEN_LOOKS = 7, 0.005


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """List the instruction sets of the processor, as Linux names them; empty where the system does not tell.

    :param root: where the files of the system are.
    """
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(value.split())
    return frozenset()


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Give the cores' worth of time that this process gets, as a container or a job may be held to; None = all there is.

    The system's count of cores does not know of it: threads for all of them would be halted together for a part of each period.

    :param root: where the files of the system are; see cgroups(7), cpu.max of the second version and cpu.cfs_quota_us of the first.
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
    """Choose the number of threads for the work of a step.

    :param taken: how many would be taken without a choice.
    :param root: where the files of the system are.
    :return: no more than the quota of this process has whole cores; `taken` where the user has said how many.
    """
    quota = None if any(name in os.environ for name in _CHOSEN) else cpu_quota(root)
    return taken if quota is None else max(1, min(taken, int(quota)))


def cores_are_taken(root: Path = Path("/")) -> bool:
    """Tell whether other programs leave no core for each thread of this one; False where the system does not tell.

    :param root: where the files of the system are; see proc_pid_loadavg(5): the fourth field counts what runs at this moment, this process among it.
    """
    running = []
    with suppress(OSError, ValueError, IndexError):
        for _ in range(_LOOKS):
            running.append(int((root / "proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]))
            time.sleep(_BETWEEN_LOOKS)
    cores = os.cpu_count() or 1
    said = os.environ.get("OMP_NUM_THREADS", "")
    own = int(said) if said.isdecimal() else threads_to_use(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores, root)
    return bool(running) and median(running) - 1 + own > cores


def _quota(folder: Path) -> float | None:
    """Read the quota of one group, in cores."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # not there, or "max"
            quota, period = map(int, " ".join((folder / file).read_text(encoding="ascii") for file in files).split())
            if quota > 0 and period > 0:
                return quota / period
    return None
