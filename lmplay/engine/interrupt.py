"""Stopping on request: signals, a time limit, or a number of steps.  Engine floor, no torch.

While the run is at work the first request is only noted, so that it stops between two mini-batches and saves; the second ends it at once, as does
any request where there is nothing to save: before the work begins, and while the run waits for something outside (:meth:`Interrupt.at_once`).
"""
from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ..errors import UserError
from ..signals import AGAIN, EXIT_CODES, SAVE, speaks, taken

_NAMES = {"SIGINT": "Ctrl+C", "SIGHUP": "the terminal was closed", "SIGALRM": "--time-limit"}
_ALARM = getattr(signal, "SIGALRM", None)
# Seconds in which a request that comes twice is one: a program around this one passes on what the terminal has already sent.
_SAME_SECONDS = 0.5
# Seconds after which a run that was told to end at once, and is deep in a library, is ended by force.
_FORCE_SECONDS = 1.5
# Seconds that the time limit leaves for the end of the process, beside the save.
_MARGIN_SECONDS = 5.0
# Bytes a second that a save is expected to write as long as none has shown it (a hard disk, a busy file server), and the most of the time left for that.
_SAVE_RATE, _SAVE_SHARE = 200e6, 0.1
_IMPORTED = time.monotonic()
STOPPED_BEFORE_WORK = "stopped before training began; nothing has been changed, and the same command goes on."


class Stopped(BaseException):
    """A request to end at once; not an Exception, so that no handler of errors takes it for one."""

    def __init__(self, exit_code: int, at_work: bool):
        super().__init__(exit_code)
        self.exit_code = exit_code
        self.at_work = at_work


class Interrupt:
    """Takes the requests, from `with` on until its end."""

    def __init__(self, until_process_ends: bool = False):
        """
        :param until_process_ends: afterwards there is nothing but the end of the process, which requests shall not disturb: they are ignored then.
        """
        self._last = until_process_ends
        self.exit_code: int | None = None
        self.reason = ""
        self.at_work = False
        self.deadline = math.inf  # on the monotonic clock
        self.save_seconds = self.step_seconds = 0.0  # what a save and a step take, as far as is known
        self._nothing_to_save = self._save_wanted = False
        self.is_ending = False  # a request to end at once, with nothing more saved
        self._asked = 0.0
        self._number: int = signal.SIGINT  # the newest request
        self._lost = False  # Python has ignored its exception
        self.shared = False  # with other ranks: the run stops where all have agreed to
        self._agreed = self._heard_elsewhere = False
        self._held = self._raise_later = False
        self._closed = threading.Event()

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._take) for number in taken()}
        self._hook_before, sys.unraisablehook = sys.unraisablehook, self._take_again
        if os.name != "nt":
            self._inbox, self._outbox = os.pipe()
            os.set_blocking(self._outbox, False)
            self._wakeup_before = signal.set_wakeup_fd(self._outbox, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed.set()
        if os.name != "nt":
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.set_wakeup_fd(self._wakeup_before)
            os.close(self._outbox)  # which ends the watch
        sys.unraisablehook = self._hook_before
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._last else handler)

    def requested(self) -> bool:
        """Tell whether it is time to stop and save: somebody has asked, or the time limit would pass."""
        if self.exit_code is None and time.monotonic() > self._latest():
            self.request(AGAIN, "--time-limit")
        return self.exit_code is not None

    def stopping(self) -> bool:
        """Tell whether the run is to stop here: as :meth:`requested`, and with other ranks where all have agreed to."""
        return self._agreed if self.shared else self.requested()

    def agree(self, exit_code: int, reason: str) -> None:
        """Stop with the other ranks, at the request that one of them has heard; its own may still come to this one."""
        self._heard_elsewhere = self.exit_code is None
        self._agreed = True
        self.request(exit_code, reason)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A request raises nothing in this block, which other ranks take part in, but at its end.

        :raises Stopped: on a request that would have raised it inside.
        """
        self._held, self._raise_later = True, False
        try:
            yield
        finally:
            self._held = False
        if self._raise_later:
            raise Stopped(self.exit_code or AGAIN, self.at_work)

    def request(self, exit_code: int, reason: str) -> None:
        """Ask to stop between two mini-batches.

        :param exit_code: what the process shall end with.
        :param reason: for the summary.
        """
        self.exit_code, self.reason, self._asked = exit_code, reason, time.monotonic()

    def want_save(self) -> None:
        """Ask for a save."""
        self._save_wanted = True

    def take_save(self) -> bool:
        """Tell whether somebody has asked for a save (SIGUSR1), once a request."""
        wanted, self._save_wanted = self._save_wanted, False
        return wanted

    def expect_save(self, size: int) -> None:
        """Estimate how long the first save will take, for the time limit; where little time is left, training gets most of it nevertheless.

        :param size: of a checkpoint, in bytes.
        """
        self.save_seconds = min(size / _SAVE_RATE, _SAVE_SHARE * max(self.deadline - time.monotonic(), 0.0))

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A request raises :class:`Stopped` at once in this block, which may take long and does nothing that must be saved.

        :raises Stopped: on a request.
        """
        before = self._nothing_to_save
        try:
            self._nothing_to_save = True
            if self.requested():
                raise Stopped(self.exit_code or AGAIN, self.at_work)
            self._set_alarm()
            yield
        finally:
            self._nothing_to_save = before

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Swallow :class:`Stopped`, unless the run is ending without a save.
        """
        try:
            yield
        except Stopped:
            if self.is_ending:
                raise

    def limit(self, time_limit: str) -> None:
        """Set the time limit; in start-up an alarm ends the run when it has passed.

        :param time_limit: HH:MM:SS since the start of the process, or `auto`: the end of the SLURM job.
        :raises UserError: when there is no such end.
        """
        if time_limit == "auto":
            end = os.environ.get("SLURM_JOB_END_TIME", "")
            if not end.isdigit():
                raise UserError("--time-limit auto: SLURM_JOB_END_TIME is not set, so this is no SLURM job with a time limit; give HH:MM:SS.")
            self.deadline = time.monotonic() + int(end) - time.time()
        else:
            hours, minutes, seconds = map(int, time_limit.split(":"))
            self.deadline = process_started() + 3600 * hours + 60 * minutes + seconds
        if self._latest() < time.monotonic():  # not 75: who runs it again would do so for ever
            raise UserError(f"--time-limit {time_limit}: leaves no time to train: {_MARGIN_SECONDS:.0f} s of it are kept for the end; give a longer one.")
        self._set_alarm()

    def _latest(self) -> float:
        """Work out when to stop, so that the save is done before the time limit: half as long again as it has taken, and some steps.

        One that has just begun in the background is waited for before."""
        return self.deadline - 2.5 * self.save_seconds - 3 * self.step_seconds - _MARGIN_SECONDS

    def _set_alarm(self) -> None:
        """Let a signal come at the time limit, for what asks nobody meanwhile."""
        if self.deadline < math.inf and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, max(self._latest() - time.monotonic(), 0.001))

    def _take(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if self._closed.is_set():
            return
        if number == SAVE:
            self.want_save()
            return
        if self._heard_elsewhere:
            self._heard_elsewhere = False
            return
        if self._lost:  # the newest request once more, which has been noted
            self._lost = False
            if self.is_ending or self._nothing_to_save or not self.at_work:
                raise Stopped(self.exit_code or AGAIN, self.at_work)
            return
        before, code = self.exit_code, EXIT_CODES[signal.Signals(number)]
        if before is not None and number == _ALARM:
            return  # on its way out already
        if before is not None and not self._nothing_to_save and time.monotonic() - self._asked < _SAME_SECONDS:
            return
        name = signal.Signals(number).name
        self.request(code, _NAMES.get(name, name))
        self._number = number
        if before is not None or self._nothing_to_save or not self.at_work:
            self.is_ending = before is not None or not self.at_work
            if self._held:
                self._raise_later = True
                return
            if self._last and not self.at_work and _is_importing(frame):
                self._end_now(code)
            raise Stopped(code, self.at_work)

    def _end_now(self, code: int) -> None:
        """End the process in the middle of an import: compiled modules turn an exception that comes then into a crash. There is nothing to clean up yet."""
        if speaks():
            os.write(2, f"\nlmp_trainer: {STOPPED_BEFORE_WORK}\n".encode())
        os._exit(code)

    def _take_again(self, ignored: sys.UnraisableHookArgs) -> None:
        """Send a signal once more whose :class:`Stopped` was raised where Python ignores exceptions: in a `__del__`, or the end of an import."""
        if not isinstance(ignored.exc_value, Stopped):
            self._hook_before(ignored)
            return
        self._lost = True
        threading.Timer(0.01, os.kill, (os.getpid(), self._number)).start()

    def _watch(self) -> None:
        """End the process by force when it has been told to end at once and does not: Python hears signals between its own instructions only."""
        first: float | None = None
        while numbers := os.read(self._inbox, 64):
            for number in numbers:
                if number not in EXIT_CODES or (number == _ALARM and self.at_work):
                    continue
                again = first is not None and time.monotonic() - first > _SAME_SECONDS
                first = time.monotonic() if first is None else first
                if not again and self.at_work:
                    continue
                if not self._closed.wait(_FORCE_SECONDS) and (again or self.is_ending or self.exit_code is None):
                    if speaks():
                        os.write(2, b"\nlmp_trainer: ended by force; what was saved before is intact.\n")
                    os._exit(EXIT_CODES[signal.Signals(number)])
        os.close(self._inbox)


def _is_importing(frame: FrameType | None) -> bool:
    """Tell whether a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def process_started() -> float:
    """Give the time, on the monotonic clock, at which this process started; where the system does not tell, that of the first import.

    :return: seconds; see proc(5) for the 22nd field of `stat`, in ticks since the system booted.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    return min(time.monotonic() - age, _IMPORTED)
