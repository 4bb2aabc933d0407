"""Drawing again while runs go on."""
import os
import signal
import subprocess
import sys

import pytest
from curves import make_run, pictures
from helpers import ROOT

from lmplay.errors import UserError
from lmplay.plotstats.watch import watch


class Enough(Exception):
    """Ends a watch."""


def test_watching_draws_what_has_changed_and_says_each_fault_once(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "later"
    one, two = folder / "one_train_stats.json", folder / "two_train_stats.json"
    drawn = []

    def draw(changed):
        if not folder.is_dir():
            raise UserError("no such folder")
        drawn.append(changed)
        return ["one is damaged"] if "{" not in one.read_text() else []

    def replace(path, text):
        path.with_suffix(".tmp").write_text(text)
        os.replace(path.with_suffix(".tmp"), path)

    events = iter([lambda: None, lambda: (folder.mkdir(), replace(one, "{")), lambda: None, lambda: replace(two, "{"), lambda: replace(one, "{}"),
                   lambda: replace(one, "x"), lambda: replace(two, "x"), lambda: replace(one, "{"), two.unlink])

    def sleep(seconds):
        assert seconds == 7
        event = next(events, None)
        if event is None:
            raise Enough
        event()

    monkeypatch.setattr("lmplay.plotstats.watch.time.sleep", sleep)
    with pytest.raises(Enough):
        watch(folder, 7, draw)
    assert drawn == [None, None, {one}, {one}, {two}, {one}, None]
    complaints = capsys.readouterr().err.splitlines()
    assert complaints == ["lmp_plotstats: no such folder", "lmp_plotstats: one is damaged"]


def test_a_watch_draws_again_and_ends_with_ctrl_c(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "lmplay.plotstats", "--out-dir", str(tmp_path), "--x", "samples", "--watch", "0.05"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for stop in (1000, 2000):
            make_run(tmp_path / "", rows=8, stop=stop, by_stage=False)
            for line in process.stdout:
                if "2k" in line or (stop == 1000 and "1k" in line):
                    break
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in complaints
    assert pictures(tmp_path) == {"tiny_train_stats.png", "tiny_validate_stats.png"}
    assert not [path for path in tmp_path.iterdir() if path.suffix not in (".json", ".png")]
