"""The cores and the instructions that the machine has for this process."""
import os

import pytest
from helpers import TINY, sentences, write_rows

from lmplay.device.machine import cores_are_taken, cpu_flags, cpu_quota, threads_to_use, usable_cores


def machine(root, **files):
    """Write files of a Linux system; gives where."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(("files", "cores"), [
    ({}, None),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
    ({"proc/self/cgroup": "0::/user/job:7\n", "sys/fs/cgroup/user/job:7/cpu.max": "800000 100000", "sys/fs/cgroup/user/cpu.max": "300000 100000"}, 3.0),
    ({"proc/self/cgroup": "9:cpuset:/a\n4:cpu,cpuacct:/a\n", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "400000",
      "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000"}, 4.0),
    # in a container that does not see where it is: the path is that outside, the files are those inside
    ({"proc/self/cgroup": "4:cpuacct,cpu:/docker/0123\n0::/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
      "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 0.5),
    ({"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None)])
def test_threads_are_as_many_as_a_container_may_use(tmp_path, monkeypatch, files, cores):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    root = machine(tmp_path, **files)
    assert cpu_quota(root) == cores
    assert threads_to_use(16, root) == (16 if cores is None else max(1, int(cores)))
    assert threads_to_use(1, root) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads_to_use(5, root) == 5


@pytest.mark.parametrize(("running", "mine", "threads", "taken"), [(1, 8, "", False), (2, 8, "", True), (5, 4, "", False), (6, 4, "", True), (5, 8, "4", False),
                                                                   (7, 8, "2", False), (8, 8, "2", True), (None, 8, "", False)])
def test_cores_are_taken_where_others_leave_too_few_for_the_threads(tmp_path, monkeypatch, running, mine, threads, taken):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(mine)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    if not threads:
        monkeypatch.delenv("OMP_NUM_THREADS")
    root = tmp_path if running is None else machine(tmp_path, **{"proc/loadavg": f"0.00 0.01 0.05 {running}/812 4711\n"})
    assert cores_are_taken(root) is taken


@pytest.mark.parametrize(("given", "taken", "found"), [(None, True, "PASSIVE"), (None, False, None), ("ACTIVE", True, "ACTIVE")])
def test_threads_sleep_where_cores_are_taken_unless_the_user_has_said_otherwise(tmp_path, monkeypatch, given, taken, found):
    from lmplay.device import machine
    from lmplay.train.__main__ import main

    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(machine, "cores_are_taken", lambda: taken)
    write_rows(tmp_path / "texts.jsonl", [{"text": sentences(4)} for _ in range(30)])
    main([*TINY, "--dataset", str(tmp_path / "texts.jsonl"), "--out-dir", str(tmp_path / "out"), "--describe"])
    assert os.environ.get("OMP_WAIT_POLICY") == found
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)


def test_cores_that_may_be_used_are_those_of_affinity_and_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    assert usable_cores(tmp_path) == 3
    assert usable_cores(machine(tmp_path, **{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"})) == 1


@pytest.mark.parametrize("content", ["processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor : 1\nflags : fpu\n", "Features : fpu avx2 avx512_bf16\n"])
def test_instructions_of_the_processor(tmp_path, content):
    assert cpu_flags(machine(tmp_path, **{"proc/cpuinfo": content})) == {"fpu", "avx2", "avx512_bf16"}
    assert cpu_flags(tmp_path / "nowhere") == frozenset()
