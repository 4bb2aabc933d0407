"""One run at a time writes to a model file."""
import socket
import subprocess
import sys

from states import MODEL

from lmplay.checkpoints import lock
from lmplay.checkpoints.lock import Lock
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
