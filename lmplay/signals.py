"""The exit codes of requests to stop, and how the first moments of a program hear them.  Ground floor, and light: it is the first import of each door."""
from __future__ import annotations

import os
import signal
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


def listen(program: str, *numbers: int) -> None:
    """From here on a request to stop ends the process with its documented code; one to save is ignored, as there is nothing to save.

    :param program: its name, for the message.
    :param numbers: the signals; by default those that a run takes.
    """
    def end(number: int, frame: FrameType | None) -> None:
        if number != SAVE:
            os.write(2, f"\n{program}: stopped before it began; nothing has been changed, and the same command goes on.\n".encode())
            os._exit(EXIT_CODES[signal.Signals(number)])

    for number in numbers or taken():
        signal.signal(number, end)
