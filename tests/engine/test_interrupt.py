"""Requests to stop: signals and time limits, in start-up, at work, and deep in a library."""
import math
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers import ENVIRONMENT

from lmplay.engine.interrupt import EXIT_CODES, Interrupt, Stopped, process_started
from lmplay.errors import UserError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
WAYS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGUSR2, 75)]


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


@pytest.mark.parametrize("at_work", [False, True])
def test_a_request_that_comes_where_python_ignores_exceptions_is_not_lost(capsys, at_work):
    class Closing:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    def wait(interrupt):
        if at_work:  # then the second request ends the run at once
            interrupt.at_work = True
            interrupt.request(130, "Ctrl+C")
            time.sleep(0.6)
        Closing()
        time.sleep(1)
        pytest.fail("the request is lost")

    with Interrupt() as interrupt, pytest.raises(Stopped) as stopped:
        wait(interrupt)
    assert (stopped.value.exit_code, interrupt.is_ending) == (130, True)
    assert "ignored" not in capsys.readouterr().err
