"""One run at a time writes to a model file."""
import errno
import os
import socket
import subprocess
import sys

import pytest
from states import MODEL

from lmplay.checkpoints import lock
from lmplay.checkpoints.lock import Lock
from lmplay.errors import UserError
from lmplay.train.__main__ import main


def test_a_second_run_is_told_who_is_at_work(again, run):
    holder = subprocess.Popen([sys.executable, "-c", "import sys, time; from pathlib import Path; from lmplay.checkpoints.lock import Lock\n"
                               f"Lock(Path({str(again / MODEL)!r} + '.lmp')).take(); print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
    holder.stdout.readline()
    try:
        text = run("--reset-history", code=2)
        assert f"process {holder.pid} on {socket.gethostname()}" in text
        assert main(["--inspect", str(again / f"{MODEL}.lmp")]) == 0
        run("--describe")
    finally:
        holder.kill()
        holder.wait()
    assert (again / f".{MODEL}.lock").exists()
    run("--reset-history")  # who is dead locks nothing
    assert not (again / f".{MODEL}.lock").exists()


def test_a_lock_file_that_is_never_the_same_is_no_endless_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_is", lambda handle, path: False)  # a file system that gives out new numbers all the time
    held = Lock(tmp_path / "m.lmp")
    held.take()
    held.release()


@pytest.mark.parametrize("kind", ["link", "dangling link", "other content", "folder", "pipe"])
def test_a_lock_file_that_is_none_is_refused_and_left_alone(again, run, tmp_path, kind):
    place, target = again / f".{MODEL}.lock", tmp_path / "precious"
    if kind != "dangling link":
        target.write_text("precious\n")
    {"link": lambda: place.symlink_to(target), "dangling link": lambda: place.symlink_to(target), "other content": lambda: os.link(target, place),
     "folder": place.mkdir, "pipe": lambda: os.mkfifo(place)}[kind]()
    assert f".{MODEL}.lock" in run("--reset-history", code=2)
    assert target.exists() == (kind != "dangling link")
    assert kind == "dangling link" or target.read_text() == "precious\n"
    assert os.path.lexists(place)


def test_who_is_patient_waits_for_a_lock(tmp_path):
    program = ("import sys; from pathlib import Path; from lmplay.checkpoints.lock import Lock\n"
               f"Lock(Path({str(tmp_path / 'm.lmp')!r})).take(); print(flush=True); sys.stdin.readline()")
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        waiting = Lock(tmp_path / "m.lmp")
        with pytest.raises(UserError, match=f"is being trained by process {holder.pid}"):
            waiting.take(0.1)
        looked = lock.time.sleep

        def end(seconds):
            holder.stdin.close()
            looked(seconds)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lock.time, "sleep", end)
            with waiting.held(60):
                assert str(os.getpid()) in (tmp_path / ".m.lock").read_text()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_prevents_no_lock(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with Lock(tmp_path / "m.lmp").held():
        assert (tmp_path / ".m.lock").exists()
    assert not list(tmp_path.iterdir())


def test_a_shorter_line_replaces_a_longer_one(tmp_path):
    place = tmp_path / ".m.lock"
    place.write_text(f"process 123456789 on {'host' * 20}\n")
    held = Lock(tmp_path / "m.lmp")
    held.take()
    assert place.read_text().strip() == f"process {os.getpid()} on {socket.gethostname()}"
    held.release()
    assert not place.exists()
