"""What torch compiles is kept for the next run."""
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers import ENVIRONMENT, TINY, sentences, write_rows

from lmplay.device import compile_cache


def test_what_is_compiled_is_kept_in_the_users_folder_by_processor_and_threads(tmp_path, monkeypatch):
    folders = set()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for threads, flags in ((1, "avx2"), (2, "avx2"), (1, "avx512")):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        monkeypatch.setattr(compile_cache, "cpu_flags", lambda flags=flags: {flags})
        compile_cache.keep_compiled()
        folders.add(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert len(folders) == 3
    assert all(os.path.isdir(folder) and folder.startswith(str(tmp_path)) for folder in folders)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    compile_cache.keep_compiled()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"


@pytest.mark.parametrize("base", ["a file", "relative", "no execution"])
def test_a_folder_that_cannot_be_used_is_left_alone(tmp_path, monkeypatch, base):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", base if base == "relative" else str(tmp_path / base))
    if base == "no execution":
        monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    compile_cache.keep_compiled()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


COUNT = """
import os, sys
from lmplay.track.callback import Callback

class Count(Callback):
    def train(self, figures):
        from torch._dynamo.utils import counters
        print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"], file=sys.stderr, flush=True)
        os._exit(33)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++ on a CPU")
def test_the_next_run_takes_what_was_compiled(tmp_path):
    (tmp_path / "count.py").write_text(COUNT)
    write_rows(tmp_path / "texts.jsonl", [{"text": sentences(4)} for _ in range(30)])
    command = [sys.executable, "-m", "lmplay.train", *TINY, "--dataset", "texts.jsonl", "--compile-model", "--quiet", "--callback", "count:Count"]
    environment = {**ENVIRONMENT, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    counts = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
        assert done.returncode == 33, done.stderr
        counts.append([int(count) for count in done.stderr.split()[-2:]])
    (first_hits, first_misses), (hits, misses) = counts
    assert first_hits == 0 < first_misses
    assert misses == 0 < hits == first_misses
