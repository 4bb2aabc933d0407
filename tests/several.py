"""Several processes that train together, as torchrun starts them, but forked from one that has imported torch already."""
import subprocess

import torch.distributed as dist
import warm
from helpers import ENVIRONMENT


def start(size, arguments, cwd=None, **environment):
    """Start ranks 0 to N - 1 of `python ARGUMENTS…`; `environment` are further variables of all. What they all know is kept here, as torchrun does."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
             "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    processes = [warm.Popen(list(map(str, arguments)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
                       env={**ENVIRONMENT, **place, "RANK": str(rank), "LOCAL_RANK": str(rank), **environment}) for rank in range(size)]
    processes[0].store = store  # as long as they live
    return processes


def finish(processes, timeout=120):
    """Wait for all; gives exit codes, and what each has said on standard output and error."""
    outputs, complaints = zip(*(process.communicate(timeout=timeout) for process in processes), strict=True)
    return [process.returncode for process in processes], outputs, complaints


def run(size, *arguments, cwd=None, timeout=120, **environment):
    """Run `python ARGUMENTS…` as N ranks; see :func:`finish`."""
    return finish(start(size, arguments, cwd, **environment), timeout)


def train(size, *arguments, cwd=None, timeout=120, **environment):
    """Run lmp_trainer as N ranks: as torchrun would, and for 1 without it."""
    if size > 1:
        return run(size, "-m", "lmplay.train", *arguments, cwd=cwd, timeout=timeout, **environment)
    done = warm.run(["-m", "lmplay.train", *map(str, arguments)], timeout=timeout, cwd=cwd, env={**ENVIRONMENT, **environment})
    return [done.returncode], [done.stdout], [done.stderr]


def is_alive(pid):
    """Tell whether a process is there, and has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


