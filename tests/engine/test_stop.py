"""Whole runs that are stopped: by a number of steps, by signals, by the clock, at every kind of moment."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import ENVIRONMENT, TINY, load, stop_at, total, train_plan

from lmplay.engine import loop, save

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of Unix")


def test_a_number_of_steps_and_a_number_of_samples(two_stages, capsys):
    text = train_plan(capsys, "--max-steps", 3, code=75)
    assert "--max-steps 3" in text
    assert "this run did 3 steps, " in text
    assert total("total_train_steps") == 3
    train_plan(capsys, "--max-steps", 2, code=75)  # counted from where this run began
    assert total("total_train_steps") == 5
    before = total()
    train_plan(capsys, "--max-samples-this-run", 12, code=75)
    assert before + 12 <= total() <= before + 12 + 5


def test_ctrl_c_in_the_last_step_of_a_limit_is_ctrl_c(two_stages, capsys, monkeypatch):
    stop_at(monkeypatch, [3])
    assert "stopped (Ctrl+C)" in train_plan(capsys, "--max-steps", 3, code=130)
    assert total("total_train_steps") == 3


def test_a_stop_between_two_stages_is_told_as_any_other(two_stages, capsys, monkeypatch):

    original = loop.StageRunner

    def begin(run, stage):
        if stage.stage.name == "two" and not run.began_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(run, stage)

    monkeypatch.setattr(loop, "StageRunner", begin)
    text = train_plan(capsys, code=143)
    assert "stopped (SIGTERM) in stage 2/2, two" in text
    train_plan(capsys)


def test_a_stop_while_the_data_is_waited_for_is_heard_at_once_and_saves(two_stages, capsys, monkeypatch):
    from lmplay.engine import stage

    original, calls = stage.StageRunner.next_batch, []

    def wait(self):
        calls.append(1)
        if len(calls) == 4:
            signal.setitimer(signal.ITIMER_REAL, 0.2)  # the alarm of a time limit, from outside of Python
            time.sleep(60)
        return original(self)

    monkeypatch.setattr(stage.StageRunner, "next_batch", wait)
    assert "stopped (--time-limit)" in train_plan(capsys, code=75)
    assert total("total_train_steps") == 3


@pytest.mark.slow
@pytest.mark.parametrize("at", ["step", "validation"])
def test_a_stop_while_the_model_is_compiled_is_heard_at_once_and_saves(two_stages, capsys, at):
    """Each of the two is compiled for itself."""
    import torch
    from torch import _dynamo

    finished = []

    def slow(module, inputs):
        if torch.is_grad_enabled() == (at == "step"):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)
            finished.append(1)
        return module.forward

    _dynamo.reset()
    _dynamo.register_backend(slow, name=f"slow_{at}")
    flags = ["--validation-interval", 5]
    assert "stopped (SIGTERM)" in train_plan(capsys, *flags, "--compile-model", "--compile-backend", f"slow_{at}", code=143)
    assert not finished
    assert bool(total()) == (at == "validation")
    assert "plan complete" in train_plan(capsys, *flags)


def test_no_time_limit_auto_outside_of_slurm(two_stages, capsys, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    assert "SLURM_JOB_END_TIME" in train_plan(capsys, "--time-limit", "auto", code=2)
    assert not Path("out_gpt").exists()


def test_a_job_that_ends_soon_saves_and_is_run_again(two_stages, capsys, monkeypatch):
    from lmplay.engine import stage

    original = stage.train_step

    def step(*arguments, **options):
        time.sleep(0.3)
        return original(*arguments, **options)

    monkeypatch.setattr(stage, "train_step", step)
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 10))
    text = train_plan(capsys, "--time-limit", "auto", code=75)
    if Path("out_gpt").exists():  # else this machine was too slow to begin in time
        assert "stopped (--time-limit)" in text
        assert time.time() < int(os.environ["SLURM_JOB_END_TIME"]) + 5


def test_a_run_outlives_those_who_read_its_output(two_stages):
    """As under `| tee log`, which Ctrl+C ends first, or on a terminal that is closed."""
    run = subprocess.Popen([sys.executable, "-m", "lmplay.train", *TINY, "--training-plan", "plan.json", "--batch-size", "5", "--save-interval", "10"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    for line in run.stdout:
        if line.startswith("== stage"):
            break
    run.stdout.close()
    complaints = run.stderr.read()
    assert run.wait(timeout=60) == 0, complaints
    assert not complaints
    assert load(Path("out_gpt/gpt2ish_model.lmp"))["curriculum"]["state"]["stages"][-1]["done"]


def test_a_run_that_is_stopped_at_once_says_how_to_go_on(two_stages, capsys, monkeypatch):
    """Not by the same command, which would start anew."""
    original, clock = save.save, time.monotonic

    def twice(*arguments, **options):
        os.kill(os.getpid(), signal.SIGINT)
        monkeypatch.setattr("lmplay.engine.interrupt.time.monotonic", lambda: clock() + 1)
        os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **options)

    monkeypatch.setattr(save, "save", twice)
    text = train_plan(capsys, "--save-interval", 10, "--reset-history", code=130)
    assert "stopped at once; what was saved before is intact. To go on:" in text
    assert "--reset-history" not in text
    assert text.rstrip().endswith("--save-interval 10")
