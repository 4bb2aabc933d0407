"""Two machines, played by two network namespaces with a cable between them, which is cut: both sides end, and the same command goes on."""
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import several
from helpers import ENVIRONMENT, ROOT, compare_runs
from together import FLAGS, PATCH, steps_of, train, write_data

ADDRESSES = {"left": "10.111.16.1", "right": "10.111.16.2"}
_HOST = 'echo "$0" > /proc/sys/kernel/hostname; mount --bind hosts /etc/hosts; exec "$@"'


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=check)


@contextmanager
def two_namespaces():
    """Make two hosts with a cable; gives the names of their namespaces."""
    names = {side: f"lmplay-{os.getpid()}-{side}" for side in ADDRESSES}
    try:
        for name in names.values():
            ip("netns", "add", name)
        ip("-n", names["left"], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names["right"])
        for side, name in names.items():
            ip("-n", name, "address", "add", f"{ADDRESSES[side]}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names.values():
            ip("netns", "delete", name, check=False)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Give a function that starts torchrun on both hosts."""
    if not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("needs the commands ip and unshare")
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    Path("hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{address} {side}\n" for side, address in ADDRESSES.items()))
    with ExitStack() as closing:
        try:
            names = closing.enter_context(two_namespaces())
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no namespaces here ({error.stderr.strip()})")

        def start(store, at_step):
            ip("-n", names["left"], "link", "set", "cable", "up")
            Path("program.py").write_text(PATCH.format(at_step=at_step, after_step="pass", more=""))
            started = [Host(side, name, store) for side, name in names.items()]
            for host in started:
                closing.callback(host.end)
            return started

        yield start


class Host:
    """A host that runs torchrun with one trainer; `store` is the one where they meet."""

    def __init__(self, side, name, store):
        environment = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "cable", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1", "--rdzv-backend=c10d", "--rdzv-id=run7",
                    f"--rdzv-endpoint={ADDRESSES[store]}:29400", f"--local-addr={ADDRESSES[side]}", "program.py", *FLAGS, "--out-dir", "out",
                    "--save-interval", "2steps"]
        self.said = Path(f"{side}.said")
        with open(self.said, "w") as said:
            self.torchrun = subprocess.Popen(["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "sh", "-c", _HOST, side, *torchrun],
                                             stdout=said, stderr=said, env=environment)

    def trains(self):
        """Tell whether its trainer is there."""
        children = Path(f"/proc/{self.torchrun.pid}/task/{self.torchrun.pid}/children")
        return children.exists() and any(several.is_alive(int(child)) for child in children.read_text().split())

    def seconds_to_end(self, since):
        """Wait until its trainer has ended; torchrun itself waits longer for the other host."""
        while self.trains() and time.time() < since + 120:
            time.sleep(0.05)
        return time.time() - since

    def end(self):
        """End torchrun, and its trainer with it."""
        self.torchrun.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.torchrun.wait(5)
        self.torchrun.kill()
        self.torchrun.wait()


@pytest.mark.slow
@pytest.mark.parametrize("store", ["left", "right"])
def test_a_cable_that_is_cut_ends_both_hosts_and_the_same_command_goes_on(start, store):
    train(2, "whole", "--save-interval", "2steps")
    hosts = start(store, 'if rank == 0 and steps[0] == 5: os.system("ip link set cable down; touch cut")')
    while not Path("cut").exists():
        assert all(host.torchrun.poll() is None for host in hosts), [host.said.read_text() for host in hosts]
        time.sleep(0.1)
    cut = Path("cut").stat().st_mtime
    seconds = [host.seconds_to_end(cut) for host in hosts]
    left, right = (host.said.read_text() for host in hosts)
    assert max(seconds) < 60, (left, right)  # 30 where the machine has nothing else to do
    assert "lmp_trainer: rank 1 (process" in left or f"lmp_trainer: what listens at {ADDRESSES['right']}" in left
    assert "lmp_trainer: rank 0 (process" in right
    assert left.count("has gone") == right.count("has gone") == 1
    assert steps_of("out") == 4
    for host in hosts:
        host.end()

    hosts = start(store, "pass")
    assert [host.torchrun.wait(120) for host in hosts] == [0, 0], [host.said.read_text() for host in hosts]
    assert compare_runs(Path("whole"), Path("out")) == []
