"""Where what is said goes: to people, to programs, and to the log file, which never stops a run."""
import json
import os
import re

import pytest
from told import LOG, flags, log_lines, train

from lmplay.train.__main__ import main


def test_the_log_file_has_everything_over_restarts(folder, capsys):
    first = train(capsys, "--max-steps", "9", code=75)
    second = train(capsys)
    third = train(capsys, "--quiet")
    logged = log_lines(folder)
    for line in (first + second).splitlines():
        assert not line or line in logged, line
    assert "the plan is complete" in third  # nothing has been done, nothing is logged
    assert sum(line.startswith("lmplay 0") and "--max-steps 9" in line for line in logged) == 1
    assert sum(line.startswith("validation: loss") for line in logged) == first.count("\nvalidation: loss") + second.count("\nvalidation: loss")


def test_quiet_says_what_ends_the_run_and_verbose_says_all(folder, capsys):
    quiet = train(capsys, "--quiet").strip()
    assert quiet.startswith("plan complete")
    assert len(quiet.splitlines()) == 9
    assert any(line.startswith("== stage two done") for line in log_lines(folder))
    plain, verbose = train(capsys, "--model", "a.lmp"), train(capsys, "--model", "b.lmp", "--verbose")
    for text in (plain, verbose):  # each with an example
        assert text.count("\nvalidation: loss") == 8
        assert [text.count(f"\n  {name}") for name in ("Prompt", "Truth", "Predicted")] == [10] * 3
    assert "Truth" not in quiet
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
def test_a_log_file_that_cannot_be_written_is_told_of_once(folder, capsys, monkeypatch):
    monkeypatch.setattr("lmplay.report.console.open", lambda path, mode, **_: open("/dev/full", mode), raising=False)  # noqa: SIM115
    text = train(capsys, "--quiet")
    assert text.count("WARNING") == 1
    assert f"WARNING: {LOG} cannot be written (No space left on device)" in text
    assert "plan complete" in text
