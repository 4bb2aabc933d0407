"""Ways to stop: by signals, by the clock, by a number of steps; in start-up, at work, and deep in a library.  And what is told then."""
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import ENVIRONMENT, TINY, load, sentences, write_plan, write_rows

from lmplay.engine import loop
from lmplay.engine.interrupt import EXIT_CODES, Interrupt, Stopped, process_started
from lmplay.errors import UserError
from lmplay.report.report import Report
from lmplay.train.__main__ import main

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
WAYS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGUSR2, 75)]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(60)])
    monkeypatch.chdir(tmp_path)
    return write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "epochs": 2}, "two": {"dataset": "rows.jsonl", "samples": 5}})


def train(capsys, *arguments, code=0):
    found = main([*TINY, "--batch-size", "5", "--training-plan", "plan.json", *map(str, arguments)])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured.out + captured.err


def total(name="total_train_samples"):
    return load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"].get(name, 0)


@pytest.mark.parametrize(("number", "code"), WAYS)
def test_at_work_a_signal_is_noted_and_before_it_ends_the_run(number, code):
    with Interrupt() as interrupt:
        interrupt.at_work = True
        signal.raise_signal(number)
        assert interrupt.requested()
        assert interrupt.exit_code == code
    with pytest.raises(Stopped) as stopped, Interrupt():
        signal.raise_signal(number)
    assert (stopped.value.exit_code, stopped.value.at_work) == (code, False)


def test_a_second_signal_ends_the_run_but_not_one_that_comes_twice(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("lmplay.engine.interrupt.time.monotonic", lambda: clock[0])
    with Interrupt() as interrupt:
        interrupt.at_work = True
        signal.raise_signal(signal.SIGINT)
        clock[0] += 0.1
        signal.raise_signal(signal.SIGINT)
        assert interrupt.requested()
        clock[0] += 1
        with pytest.raises(Stopped) as stopped:
            signal.raise_signal(signal.SIGTERM)
    assert stopped.value.exit_code == 143


def test_where_nothing_would_be_lost_a_signal_ends_the_wait():
    with Interrupt() as interrupt:
        interrupt.at_work = True
        with pytest.raises(Stopped), interrupt.at_once():
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped), interrupt.at_once():
            pytest.fail("asked already")


def test_signals_are_given_back():
    before = {number: signal.getsignal(number) for number in EXIT_CODES}
    with Interrupt():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in EXIT_CODES} == before


@pytest.mark.parametrize("argv", ["None", "sys.argv[1:]"])
def test_a_signal_that_comes_too_late_does_not_change_how_the_process_ends(tmp_path, argv):
    """The program's own process only: others have their handlers back."""
    program = ("import os, signal, sys\nfrom lmplay.train.__main__ import main\n"
               f"code = main({argv})\n"
               "os.kill(os.getpid(), signal.SIGTERM)\nsys.exit(code)")
    run = subprocess.run([sys.executable, "-c", program, "--exp", "list"], capture_output=True, check=False, env=ENVIRONMENT, cwd=tmp_path)
    assert run.returncode == (0 if argv == "None" else -signal.SIGTERM)


def test_what_ignores_its_terminal_goes_on_ignoring_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt.requested()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_request_to_save_is_heard_once():
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGUSR1)
        assert [interrupt.take_save(), interrupt.take_save(), interrupt.requested()] == [True, False, False]


def test_the_time_limit_counts_from_the_start_of_the_process():
    program = "import time; time.sleep(1); from lmplay.engine.interrupt import process_started; print(time.monotonic() - process_started())"
    age = float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout)
    assert age > 1
    with Interrupt() as interrupt:
        interrupt.at_work = True
        interrupt.limit("100:00:00")
        assert interrupt.deadline == pytest.approx(process_started() + 360_000, abs=1)


def test_the_time_limit_leaves_time_for_the_save():
    with Interrupt() as interrupt:
        interrupt.at_work = True
        interrupt.deadline = time.monotonic() + 60
        assert not interrupt.requested()
        interrupt.save_seconds = 40.0
        assert interrupt.requested()
        assert (interrupt.exit_code, interrupt.reason) == (75, "--time-limit")


@pytest.mark.parametrize(("size", "left", "goes_on", "stops"), [(10 * 2**30, 7200.0, 145.0, 135.0), (10 * 2**30, 100.0, 35.0, 25.0), (1000, 7200.0, 6.0, 4.0)])
def test_the_time_limit_leaves_time_for_the_first_save_by_its_size(size, left, goes_on, stops):
    """At 200 MB/s two and a half times, but for little time no more than a quarter of it."""
    with Interrupt() as interrupt:
        interrupt.at_work = True
        interrupt.expect_save(size)
        assert not interrupt.requested()  # there is no limit
        interrupt.deadline = time.monotonic() + left
        interrupt.expect_save(size)
        interrupt.deadline = time.monotonic() + goes_on
        assert not interrupt.requested()
        interrupt.deadline = time.monotonic() + stops
        assert interrupt.requested()


def test_the_end_of_the_slurm_job_is_a_time_limit(monkeypatch):
    with Interrupt() as interrupt:
        interrupt.at_work = True
        monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
        with pytest.raises(UserError, match="SLURM_JOB_END_TIME"):
            interrupt.limit("auto")
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 1000))
        interrupt.limit("auto")
        assert interrupt.deadline == pytest.approx(time.monotonic() + 1000, abs=2)


def test_a_time_limit_that_passes_in_start_up_ends_it():
    age = int(time.monotonic() - process_started())
    with Interrupt() as interrupt, pytest.raises(Stopped) as stopped:  # noqa: PT012
        interrupt.limit(f"00:{(age + 7) // 60:02}:{(age + 7) % 60:02}")
        time.sleep(5)
    assert stopped.value.exit_code == 75


@pytest.mark.parametrize("limit", ["00:00:05", "auto"])
def test_a_time_limit_that_leaves_no_time_is_no_reason_to_run_again(monkeypatch, limit):
    """A job that queues itself again would never end."""
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3))
    with Interrupt() as interrupt, pytest.raises(UserError, match="leaves no time"):
        interrupt.limit(limit)


def test_without_a_limit_there_is_none():
    assert Interrupt().deadline == math.inf


@pytest.mark.parametrize("at_work", [False, True])
def test_a_run_that_is_deep_in_a_library_is_ended_by_force(at_work):
    """Python hears a signal between its own instructions only, and this one takes minutes."""
    program = ("import hashlib, threading\nfrom lmplay.engine.interrupt import Interrupt\n"
               f"with Interrupt() as interrupt:\n    interrupt.at_work = {at_work}\n    threading.Timer(1, print, ['here'], {{'flush': True}}).start()\n"
               "    hashlib.pbkdf2_hmac('sha256', b'', b'', 1_000_000_000)")
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        run.stdout.readline()
        run.send_signal(signal.SIGTERM)
        if at_work:
            time.sleep(1)
            assert run.poll() is None  # the first is only noted
            run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=60) == 143
        assert "by force" in run.stderr.read()
    finally:
        run.kill()


# --- whole runs in this process

def test_so_many_steps_and_so_many_samples(corpus, capsys):
    text = train(capsys, "--max-steps", 3, code=75)
    assert "--max-steps 3" in text
    assert "in 3 steps of this run" in text
    assert total("total_train_steps") == 3
    train(capsys, "--max-steps", 2, code=75)  # counted from where this run began
    assert total("total_train_steps") == 5
    before = total()
    train(capsys, "--max-samples-this-run", 12, code=75)
    assert before + 12 <= total() <= before + 12 + 5


def test_the_summary_says_how_to_go_on(corpus, capsys):
    text = train(capsys, "--max-steps", 1, "--reset-history", code=75)
    told = text.splitlines()[-1].strip()
    assert told.startswith("lmp_trainer --num-blocks 1")
    assert told.endswith("--max-steps 1")
    assert "stage 1/2, one" in text
    assert str(Path("out_gpt/gpt2ish_model.lmp")) in text


@pytest.mark.parametrize(("words", "kept"), [
    ("--lr 1 --reset_history", "--lr 1"), ("--ignore-optimizer --lr 1", "--lr 1"), ("--resume best --lr 1", "--lr 1"),
    ("--lr 1 --resume=a.lmp", "--lr 1"), ("--model --resume", "--model"), ("--resume a.lmp", "")])
def test_the_command_to_go_on_neither_starts_anew_nor_goes_back(words, kept):
    assert Report(["lmp_trainer", *words.split()])._command == f"lmp_trainer {kept}".strip()


def test_a_settings_file_that_starts_anew_is_undone_in_the_command(corpus, capsys):
    Path("settings.yaml").write_text("reset_history: true\n")
    text = train(capsys, "--use-config", "settings.yaml", "--max-steps", 1, code=75)
    assert text.rstrip().endswith("--no-reset-history")


def test_a_stop_between_two_stages_is_told_as_any_other(corpus, capsys, monkeypatch):
    from lmplay.engine import loop

    original = loop.StageRunner

    def begin(run, stage):
        if stage.stage.name == "two" and not run.began_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(run, stage)

    monkeypatch.setattr(loop, "StageRunner", begin)
    text = train(capsys, code=143)
    assert "stopped (SIGTERM) in stage 2/2, two" in text
    train(capsys)


def test_a_stop_while_the_data_is_waited_for_is_heard_at_once_and_saves(corpus, capsys, monkeypatch):
    from lmplay.engine import stage

    original, calls = stage.StageRunner.next_batch, []

    def wait(self):
        calls.append(1)
        if len(calls) == 4:
            signal.setitimer(signal.ITIMER_REAL, 0.2)  # the alarm of a time limit, from outside of Python
            time.sleep(60)
        return original(self)

    monkeypatch.setattr(stage.StageRunner, "next_batch", wait)
    assert "stopped (--time-limit)" in train(capsys, code=75)
    assert total("total_train_steps") == 3


@pytest.mark.slow
@pytest.mark.parametrize("at", ["step", "validation"])
def test_a_stop_while_the_model_is_compiled_is_heard_at_once_and_saves(corpus, capsys, at):
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
    assert "stopped (SIGTERM)" in train(capsys, *flags, "--compile-model", "--compile-backend", f"slow_{at}", code=143)
    assert not finished
    assert bool(total()) == (at == "validation")
    assert "plan complete" in train(capsys, *flags)


def test_no_time_limit_auto_outside_of_slurm(corpus, capsys, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    assert "SLURM_JOB_END_TIME" in train(capsys, "--time-limit", "auto", code=2)
    assert not Path("out_gpt").exists()


def test_a_job_that_ends_soon_saves_and_is_run_again(corpus, capsys, monkeypatch):
    from lmplay.engine import stage

    original = stage.train_step

    def step(*arguments, **options):
        time.sleep(0.3)
        return original(*arguments, **options)

    monkeypatch.setattr(stage, "train_step", step)
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 10))
    text = train(capsys, "--time-limit", "auto", code=75)
    if Path("out_gpt").exists():  # else this machine was too slow to begin in time
        assert "stopped (--time-limit)" in text
        assert time.time() < int(os.environ["SLURM_JOB_END_TIME"]) + 5


def test_a_run_outlives_those_who_read_its_output(corpus):
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


# --- which state to go on from

def test_resume_best_and_a_file(corpus, capsys):
    flags = ["--validation-interval", 10, "--save-interval", 10]
    train(capsys, *flags, "--max-steps", 8, code=75)
    newest = Path("out_gpt/gpt2ish_model.lmp").read_bytes()
    best = load(Path("out_gpt/gpt2ish_model.best.lmp"))
    at = best["runner"]["state"]["stats"]["total_train_samples"]
    text = train(capsys, *flags, "--resume", "best", "--max-steps", 1, code=75)
    assert f"resumed     at {at:,} samples" in text
    assert "gpt2ish_model.old-1.lmp" in text
    assert Path("out_gpt/gpt2ish_model.old-1.lmp").read_bytes() == newest
    assert "--resume" not in text.splitlines()[-1]
    assert at < total() <= at + 10
    text = train(capsys, *flags, "--resume", "out_gpt/gpt2ish_model.old-1.lmp")
    assert "gpt2ish_model.old-2.lmp" in text
    assert "plan complete" in text
    assert Path("out_gpt/gpt2ish_model.old-1.lmp").read_bytes() == newest
    assert "no file" in train(capsys, "--resume", "missing.lmp", code=2)
    assert "give one of them" in train(capsys, "--resume", "best", "--reset-history", code=2)


def test_a_damaged_file_to_go_back_to_is_not_the_end(corpus, capsys):
    flags = ["--save-interval", 10, "--validation-interval", 10]
    train(capsys, *flags, "--max-steps", 8, code=75)
    best = Path("out_gpt/gpt2ish_model.best.lmp")
    content = best.read_bytes()
    best.write_bytes(content[:-5])
    assert "without --resume" in train(capsys, *flags, "--resume", "best", code=2)
    best.write_bytes(content)
    for path in Path("out_gpt").glob("*.lmp"):
        if path != best:
            os.truncate(path, 1000)
    assert "--resume best" in train(capsys, *flags, code=2)
    assert "plan complete" in train(capsys, *flags, "--resume", "best")


def test_a_run_that_is_stopped_at_once_says_how_to_go_on(corpus, capsys, monkeypatch):
    """Not by the same command, which would start anew."""
    original, clock = loop.save, time.monotonic

    def twice(*arguments, **options):
        os.kill(os.getpid(), signal.SIGINT)
        monkeypatch.setattr("lmplay.engine.interrupt.time.monotonic", lambda: clock() + 1)
        os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **options)

    monkeypatch.setattr(loop, "save", twice)
    text = train(capsys, "--save-interval", 10, "--reset-history", code=130)
    assert "stopped at once; what was saved before is whole. To go on:" in text
    assert "--reset-history" not in text
    assert text.rstrip().endswith("--save-interval 10")


def test_going_back_to_a_stage_keeps_the_later_ones(corpus, capsys):
    train(capsys)
    two = Path("out_gpt/gpt2ish_model.two.lmp").read_bytes()
    text = train(capsys, "--resume", "out_gpt/gpt2ish_model.one.lmp", "--lr", "0.1")
    assert "stage 2/2   two (to do)" in text
    assert Path("out_gpt/gpt2ish_model.old-1.two.lmp").read_bytes() == two
    assert Path("out_gpt/gpt2ish_model.two.lmp").read_bytes() != two


def test_weights_only_start_a_run_and_resume_none(corpus, capsys):
    import torch

    train(capsys, "--save-weights-only", "w/weights.lmp")
    weights, whole = load(Path("w/weights.lmp")), load(Path("out_gpt/gpt2ish_model.lmp"))
    assert set(weights) == {"format", "versions", "model"}
    assert all(torch.equal(weights["model"]["state"][key], value) for key, value in whole["model"]["state"].items())
    assert Path("w/weights.lmp").stat().st_size < Path("out_gpt/gpt2ish_model.lmp").stat().st_size / 2
    train(capsys, "--initial-model", "w/weights.lmp", "--model", "second.lmp", "--max-steps", 1, code=75)
    assert "--initial-model" in train(capsys, "--resume", "w/weights.lmp", "--model", "third.lmp", code=2)
    Path("w/weights.lmp").unlink()
    train(capsys, "--save-weights-only", "w/weights.lmp")  # also when the plan has been done already
    assert Path("w/weights.lmp").exists()
    assert "model file itself" in train(capsys, "--save-weights-only", "out_gpt/gpt2ish_model.lmp", code=2)


def test_reset_history_takes_the_statistics_and_the_old_stages_along(corpus, capsys):
    train(capsys, "--validation-interval", 20)
    Path("out_gpt/gpt2ish_model_other_train_stats.json").write_text('{"model": "gpt2ish_model_other"}')
    old = Path("out_gpt/gpt2ish_model_step_one_train_stats.json").read_bytes()
    write_plan(Path("."), {"three": {"dataset": "rows.jsonl"}})
    train(capsys, "--reset-history")
    names = {path.name for path in Path("out_gpt").iterdir()}
    assert {"gpt2ish_model.old-1.one.lmp", "gpt2ish_model.old-1.two.lmp", "gpt2ish_model.old-1.best.lmp", "gpt2ish_model_other_train_stats.json"} <= names
    assert not names & {"gpt2ish_model.one.lmp", "gpt2ish_model_step_one_train_stats.json"}
    assert Path("out_gpt/gpt2ish_model.old-1/gpt2ish_model_step_one_train_stats.json").read_bytes() == old


def test_an_earlier_state_is_the_newest_at_once(corpus, capsys, monkeypatch):
    """Killed before its first save, a run that went back must not go on from what it left."""
    train(capsys, "--save-interval", 10, "--validation-interval", 10, "--max-samples-this-run", 40, code=75)
    folder = Path("out_gpt")
    before = {path.name: path.read_bytes() for path in folder.glob("*.lmp")}
    assert {"gpt2ish_model.prev-1.lmp", "gpt2ish_model.prev-2.lmp", "gpt2ish_model.best.lmp"} <= before.keys()
    monkeypatch.setattr(loop, "StageRunner", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    text = train(capsys, "--resume", "best", code=130)
    assert "goes on from" in text
    after = {path.name: path.read_bytes() for path in folder.glob("*.lmp")}
    assert after["gpt2ish_model.lmp"] == before["gpt2ish_model.best.lmp"] != before["gpt2ish_model.lmp"]
    assert {name.replace("gpt2ish_model", "gpt2ish_model.old-1"): content for name, content in before.items()}.items() <= after.items()
    assert not [name for name in after if name.startswith("gpt2ish_model.prev-")]  # a damaged file must not lead back to them
