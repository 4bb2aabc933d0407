"""Freed memory that is used again."""
import os
import subprocess
import sys

import pytest
from helpers import ENVIRONMENT, TINY, sentences, write_rows

from lmplay.device import runtime
from lmplay.train.__main__ import main


def test_the_allocator_is_tuned_unless_it_shall_not_be(tmp_path, monkeypatch):
    def train(*arguments):
        assert main([*TINY, "--dataset", str(rows), "--out-dir", str(tmp_path / "out"), "--max-steps", "1", "--reset-history", *arguments]) == 75

    rows, calls = write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1 + i % 3)} for i in range(100)]), []
    monkeypatch.setattr(runtime, "keep_freed_memory", lambda: calls.append(1))
    train()
    assert calls
    del calls[:]
    train("--no-tune-allocator")
    assert not calls


@pytest.mark.skipif(not sys.platform.startswith("linux") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="glibc")
def test_freed_memory_is_used_again():
    """A large block that has been freed and is taken anew costs no page faults; where the user has said what glibc shall do, it does that."""
    program = """
import resource, sys
import torch
from lmplay.device.allocator import keep_freed_memory
keep_freed_memory()
for _ in range(20):
    torch.ones(16 << 20)  # until the heap has room for a block of this alignment
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(16 << 20)  # 64 MiB: 16384 pages
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    def faults(**more):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**ENVIRONMENT, **more}, check=True)
        return int(done.stdout)

    assert faults() < 1000 < faults(MALLOC_TRIM_THRESHOLD_="131072")


@pytest.mark.skipif(not sys.platform.startswith("linux") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="glibc")
def test_freed_memory_is_returned_where_blocks_are_gathered_one_after_the_other():
    program = """
import torch
from lmplay.device.allocator import return_freed_memory
from lmplay.device.memory import memory_in_use
return_freed_memory()
blocks = [torch.ones(1 << 19) for _ in range(100)]  # 2 MiB each
kept, before = blocks[::10], memory_in_use(torch.device("cpu"))
del blocks
print((before - memory_in_use(torch.device("cpu"))) >> 20)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert int(done.stdout) > 150
