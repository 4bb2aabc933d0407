"""What is said while a run goes on: to people, to programs, on a terminal and in the log file, which never stops a run."""
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios

import pytest
from helpers import ENVIRONMENT, TINY, sentences, write_plan, write_rows

from lmplay.report import report
from lmplay.train.__main__ import main

LOG = "out/gpt2ish_model.log"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1)} for _ in range(60)])
    write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "epochs": 0.5}, "two": {"dataset": "rows.jsonl", "samples": 40}})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    monkeypatch.setattr(report, "_PLAIN_SECONDS", 0.0)
    return tmp_path


def flags(*more):
    return [*TINY, "--training-plan", "plan.json", "--batch-size", "4", "--save-interval", "16", "--validation-interval", "8", "--out-dir", "out", *more]


def train(capsys, *more, code=0):
    assert main(flags(*more)) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err or code == 1
    return captured.out


def log_lines(folder):
    lines = (folder / LOG).read_text(encoding="utf-8").split("\n")[:-1]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d  ", line) for line in lines)
    return [line[27:] for line in lines]


def test_banner_progress_and_summary(folder, capsys):
    text = train(capsys, "--max-steps", "9", code=75)
    for words in ("parameters", "device      cpu, float32, batch 4, mini-batch 4", f"stage 1/2   one (to do): 0.5 epochs (27 samples) of {folder}/rows.jsonl",
                  f"stage 2/2   two (to do): 40 samples of {folder}/rows.jsonl"):
        assert words in text
    lines = [line for line in text.splitlines() if line.startswith(("one:", "two:"))]
    assert re.fullmatch(r"one: 24 of 27 samples \(89%\), loss \d\.\d{3}, validation \d\.\d{3}, [\d,]+ tokens/s, 0:00:\d\d left \(plan 0:00:\d\d\)", lines[5])
    assert "(plan" not in lines[-1]  # the last stage: what is left of it is what is left of the plan
    end = text[text.index("stopped (--max-steps 9)"):]
    assert re.search(r"best validation loss \d\.\d{3} nats per token at \d+ samples", end)
    assert "lmp_plotstats --out-dir out" in end
    assert LOG in end
    assert end.splitlines()[-1].startswith("  lmp_trainer --num-blocks 1")
    text = train(capsys)
    end = text[text.index("plan complete"):]
    for words in ("best validation loss", "final validation loss", "model       out/gpt2ish_model.lmp", "lmp_plotstats", LOG):
        assert words in end


def test_the_log_file_has_everything_over_restarts(folder, capsys):
    first = train(capsys, "--max-steps", "9", code=75)
    second = train(capsys)
    third = train(capsys, "--quiet")
    logged = log_lines(folder)
    for line in (first + second).splitlines():
        assert not line or line in logged, line
    assert "the plan is complete" in third  # nothing has been done, nothing is logged
    assert sum(line.startswith("lmplay 0") and "--max-steps 9" in line for line in logged) == 1
    assert sum(line.startswith("validation: loss") for line in logged) > first.count("\nvalidation: loss") + second.count("\nvalidation: loss")


def test_quiet_says_what_ends_the_run_and_verbose_says_all(folder, capsys):
    quiet = train(capsys, "--quiet").strip()
    assert quiet.startswith("plan complete")
    assert len(quiet.splitlines()) == 8
    assert any(line.startswith("== stage two done") for line in log_lines(folder))
    plain, verbose = train(capsys, "--model", "a.lmp"), train(capsys, "--model", "b.lmp", "--verbose")
    assert plain.count("\nvalidation: loss") < verbose.count("\nvalidation: loss") == 8
    assert "\ntorch " in verbose
    assert "\ntorch " not in plain
    assert "lr 6e-05" in verbose
    assert main(flags("--quiet", "--verbose")) == 2


def test_every_line_is_an_object(folder, capsys):
    said = [json.loads(line) for line in train(capsys, "--log-json").splitlines()]
    assert all(re.match(r"\d{4}-.*T.*:\d\d", one["time"]) for one in said)
    assert {one["level"] for one in said} == {"info"}
    events = [one["event"] for one in said]
    assert list(dict.fromkeys(events)) == ["command", "start", "stage", "progress", "validation", "saved", "stage done", "done"]
    start, done = said[1], said[-1]
    assert [(stage["name"], stage["samples"]) for stage in start["stages"]] == [("one", 27), ("two", 40)]
    assert (start["device"], start["batch_size"], start["parameters"] > 1000) == ("cpu", 4, True)
    with open("out/gpt2ish_model_train_stats.json") as file:
        columns = json.load(file)["columns"]
    assert [one["samples"] for one in said if one["event"] == "progress"] == columns["samples"]
    left = {stage: [(one["stage_seconds_left"], one["plan_seconds_left"]) for one in said if one["event"] == "progress" and one["stage"] == stage]
            for stage in ("one", "two")}
    assert left["one"][0] == left["two"][0] == (None, None)  # one step says nothing yet
    for samples, (of_stage, of_plan) in zip(range(4, 24, 4), left["one"][1:-1], strict=False):  # 40 samples after the 27 of this stage, as fast as these
        assert of_plan / of_stage == pytest.approx(1 + 40 / (27 - 4 - samples), rel=0.1)
    assert all(of_stage == of_plan for of_stage, of_plan in left["two"])
    assert done["samples"] == 67
    assert done["best"]["loss"] <= done["final"]["loss"]


def test_errors_and_stops_are_objects_and_logged_too(folder, capsys, monkeypatch):
    said = [json.loads(line) for line in train(capsys, "--log-json", "--max-steps", "2", code=75).splitlines()]
    assert said[-1]["event"] == "stopped"
    assert said[-1]["command"].startswith("lmp_trainer ")
    from lmplay.engine import stage

    def fail(*_, **__):
        raise RuntimeError("the machine burns")

    monkeypatch.setattr(stage, "train_step", fail)
    with pytest.raises(RuntimeError):
        main(flags("--log-json"))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (said[-1]["event"], said[-1]["level"]) == ("failed", "error")
    assert log_lines(folder)[-1] == "RuntimeError: the machine burns"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full disk to write to")
def test_a_log_file_that_cannot_be_written_is_told_of_once(folder, capsys):
    (folder / "out").mkdir()
    (folder / LOG).symlink_to("/dev/full")
    text = train(capsys, "--quiet")
    assert text.count("WARNING") == 1
    assert f"WARNING: {LOG} cannot be written (No space left on device)" in text
    assert "plan complete" in text


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
