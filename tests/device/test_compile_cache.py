"""What torch compiles is kept for the next run."""
import os
from types import SimpleNamespace

import pytest
import torch

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
