"""How training goes: the line of progress, and the one on a terminal."""
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios

import pytest
from helpers import ENVIRONMENT
from told import flags, log_lines

from lmplay.report import progress
from lmplay.report.progress import ProgressLine, shorten
from lmplay.report.records import StageStart, StepDone
from lmplay.stats.figures import Progress, SourceLoss


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full disk to write to")
def test_a_line_on_the_terminal_shows_how_it_goes_and_an_output_that_cannot_be_written_ends_nothing(folder):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    command = [sys.executable, "-m", "lmplay.train", *flags("--batch-size", "2")]
    with open("/dev/full", "w") as full, subprocess.Popen(command, stdout=full, stderr=theirs, env=ENVIRONMENT) as process:
        os.close(theirs)
        said = b""
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    said += os.read(ours, 4096)
                except OSError:  # the other end is closed
                    break
        process.wait()
    assert process.returncode == 0
    shown = said.decode()
    assert re.search(r"one \d+%\|.*\| \d+/27 samples, loss \d\.\d{3}, .*tokens/s", shown)
    assert re.search(r"two \d+%\|.*\| 40/40 samples", shown)
    assert any(line.startswith("plan complete") for line in log_lines(folder))


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand, in seconds."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def stage_start(to_come=None, at=(0, 0, 0, 0.0)):
    return StageStart("one", Progress(*at), 0, 100, {}, {}, 5, 48, 0.1, "constant", 0, None, None, True, 4, to_come, "", "", [])


def step_done(number, loss_sum=20.0, n_truth=10, sources=None, own=None, share=None):
    return StepDone(Progress(number, 10 * number, 100 * number, 0.0), 10 * number, 10, share, 0.1, loss_sum, n_truth, sources or {}, own or {})


def test_losses_are_running_means_of_all_and_by_source(clock):
    line = ProgressLine()
    line.start_stage(stage_start())
    line.add(step_done(1, 20.0, 10, {"a": SourceLoss(15.0, 5), "b": SourceLoss(5.0, 5)}))
    line.add(step_done(2, 40.0, 10, {"a": SourceLoss(40.0, 10)}))
    line.add(step_done(3, 0.0, 0))  # nothing to learn
    found = line.figures()
    assert found["loss"] == pytest.approx((20 * 0.7 + 40) / (10 * 0.7 + 10))
    assert found["loss_by_source"] == pytest.approx({"a": (15 * 0.7 + 40) / (5 * 0.7 + 10), "b": 1.0})
    line.validation = 3.0
    line.start_stage(stage_start())
    assert (line.figures()["loss"], line.figures()["loss_by_source"], line.validation) == (0.0, {}, None)
    line.add(step_done(4, 0.7, 1))  # of one pair
    assert line.figures()["loss"] == pytest.approx(0.7)


def test_the_loss_follows_quickly(clock):
    line = ProgressLine()
    line.start_stage(stage_start())
    for number in range(1, 6):
        line.add(step_done(number, 100.0, 10))
    for number in range(6, 13):
        line.add(step_done(number, 20.0, 10))
    assert 2.0 < line.figures()["loss"] < 2.8  # seven steps after a fall from 10 to 2


def test_what_is_left_is_told_by_the_speed_since_the_first_step(clock):
    line = ProgressLine()
    line.start_stage(stage_start({"samples": 40, "tokens": 100}))
    clock[0] += 60  # the first step is slow
    line.add(step_done(1, share=0.1))
    assert (line.figures()["stage_seconds_left"], line.figures()["plan_seconds_left"]) == (None, None)
    clock[0] += 4
    line.add(step_done(3, share=0.3))
    found = line.figures()
    assert found["stage_seconds_left"] == pytest.approx(4 * 0.7 / 0.2)
    assert found["plan_seconds_left"] == pytest.approx(14 + 4 * 40 / 20 + 4 * 100 / 200)  # 20 samples and 200 tokens in 4 seconds
    assert found["tokens_per_second"] == pytest.approx(300 / 64)
    assert line.text() == "loss 2.000, 5 tokens/s, 0:00:14 left (plan 0:00:24)"
    line.start_stage(stage_start({}, at=(3, 30, 300, 0.0)))
    line.add(step_done(4, share=0.5))
    clock[0] += 1
    line.add(step_done(5, share=0.5))
    assert "left" not in line.text()  # nothing of it was read


def test_the_line_has_sources_validation_and_figures_of_the_objective(clock):
    line = ProgressLine()
    line.start_stage(stage_start())
    clock[0] += 2
    line.add(step_done(20, sources={"b" * 30: SourceLoss(1.0, 1), "a\nb\x1b": SourceLoss(2.0, 1)}, own={"reward": 0.12345, "unknown": None}))
    line.validation = 1.5
    assert line.text() == f"loss 2.000 (a⏎b\\x1b 2.000, {'b' * 23}… 1.000), validation 1.500, reward 0.123, 1,000 tokens/s"


def test_a_text_is_shown_on_one_line():
    assert [shorten(text, 5) for text in ("", "12345", "123456", "a\nb\n", "\x1b[0m")] == ["", "12345", "1234…", "a⏎b⏎", "\\x1b…"]
