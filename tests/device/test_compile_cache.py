"""What torch compiles is kept for the next run."""
import os
import time
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


def test_what_is_old_or_too_much_is_removed(tmp_path, monkeypatch):
    day = 24 * 3600
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compile_cache, "_MOST_BYTES", 250)
    base, now = tmp_path / "lmplay" / "compiled", time.time()
    ages = {"other-1/ab/old.so": 31, "other-1/ab/read.so": 40, "mine/cd/third.so": 9, "mine/cd/second.so": 5, "mine/first.so": 2, "mine/now.so": 0}
    for name, days in ages.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (now - (3 if name.endswith("read.so") else days) * day, now - days * day))
    (base / "empty").mkdir()
    os.utime(base / "empty", (now - 2 * day, now - 2 * day))
    (tmp_path / "lmplay" / "else").write_bytes(bytes(1000))
    os.utime(tmp_path / "lmplay" / "else", (0, 0))
    compile_cache.keep_compiled()
    assert {path.name for path in base.rglob("*.so")} == {"first.so", "now.so"}
    assert not (base / "empty").exists()
    assert (tmp_path / "lmplay" / "else").exists()
    monkeypatch.setattr(compile_cache, "_MOST_BYTES", 0)
    compile_cache._trim(base)
    assert {path.name for path in base.rglob("*.so")} == {"now.so"}  # another run may be using it
