"""The exit codes of requests to stop, and how programs hear them that save nothing.  Ground floor, and light: it is the first import of each door."""
from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

# The state is saved, and the same command is to be run again (EX_TEMPFAIL of sysexits.h).
AGAIN = 75
# What a request to stop comes as; Windows has the first two only. The alarm is our own: the time limit.
EXIT_CODES = {getattr(signal, name): code for name, code in
              {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143, "SIGUSR2": AGAIN, "SIGALRM": AGAIN}.items() if hasattr(signal, name)}
# A request to save; and the end of the terminal, which what ignores it (nohup) goes on ignoring.
SAVE, HANG_UP = (getattr(signal, name, None) for name in ("SIGUSR1", "SIGHUP"))


def taken() -> list[int]:
    """List the signals that a run takes."""
    return [number for number in (*EXIT_CODES, SAVE) if number is not None and not (number == HANG_UP and signal.getsignal(number) is signal.SIG_IGN)]


def speaks() -> bool:
    """Tell whether this process talks to the user: it is the only one, or rank 0 of several (:mod:`lmplay.launch`)."""
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"


# Temporary files that are being written: they are removed where the process ends at once.
unfinished: set[str] = set()


class Stop(KeyboardInterrupt):
    """A request to stop, where it is raised; `exit_code` is the documented one."""

    def __init__(self, exit_code: int):
        super().__init__()
        self.exit_code = exit_code


NOT_BEGUN = "stopped before it began; nothing has been changed, and the same command goes on"


def listen(program: str, message: str = NOT_BEGUN) -> None:
    """From here on a request to stop ends the process at once with its documented code; one to save is ignored, as there is nothing to save.

    :param program: its name, for the message.
    """
    def end(number: int, frame: FrameType | None) -> None:
        if number == SAVE:
            return
        for path in list(unfinished):
            with suppress(OSError):
                os.unlink(path)
        with suppress(OSError):
            if speaks():
                os.write(2, f"\n{program}: {message}.\n".encode())
        with suppress(Exception):  # it may be at work on the same text just now
            sys.stdout.flush()
        os._exit(EXIT_CODES[signal.Signals(number)])

    _take(end)


def raise_stop() -> None:
    """From here on a request to stop raises :class:`Stop`, and the next one ends the process as it does any program."""
    def stop(number: int, frame: FrameType | None) -> None:
        if number != SAVE:
            for other in taken():
                signal.signal(other, signal.SIG_DFL)
            raise Stop(EXIT_CODES[signal.Signals(number)])

    _take(stop)


def heard(program: str, message: str, argv: list[str] | None, load: Callable[[], Callable[[list[str] | None], int]]) -> int:
    """Run a program that saves nothing: it hears signals first, then imports what is heavy.

    :param program: its name, for the message.
    :param message: see :func:`listen`.
    :param argv: arguments; None = those of the process, which then ends with this call.
    :param load: imports what the program does, and returns it.
    :return: the exit code.
    """
    if argv is not None:
        return load()(argv)
    listen(program, message)
    from .streams import open_closed

    open_closed()
    try:
        return load()(None)
    finally:
        for number in taken():  # there is nothing left but the end of the process
            signal.signal(number, signal.SIG_IGN)


def _take(handler: Callable[[int, FrameType | None], None]) -> None:
    """Give the signals that a run takes to a handler."""
    for number in taken():
        signal.signal(number, handler)
