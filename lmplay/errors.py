"""The errors that users see, and the words that help them.  Ground floor: imports nothing of lmplay."""
from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO


class LmplayError(Exception):
    """Anything lmplay says about a run that cannot go on; the door turns it into an exit code."""

    exit_code = 1


class UserError(LmplayError):
    """Bad input: one line a fault, saying what, where, what is allowed and what to do.  Exit code 2, no traceback."""

    exit_code = 2

    def __init__(self, *faults: str):
        self.faults = tuple(dict.fromkeys(map(printable, faults)))  # two sources of one data set fail alike
        super().__init__("\n".join(self.faults))

    def __reduce__(self) -> tuple[type[UserError], tuple[str, ...]]:
        """Stay as many faults on the way from another process."""
        return type(self), self.faults


class TrainingError(LmplayError):
    """Training itself failed (a loss that is not a number, say); the last good checkpoint stays.  Exit code 1."""


class Unavailable(LmplayError):
    """Something outside has gone away (the hub, say) and may come back; the state is saved.  Exit code 75: run the same command again."""

    exit_code = 75


def printable(text: str) -> str:
    """Make one line of a text that every terminal can show: a key or the name of a file may hold any character."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print a text at once; where nobody can read it any more (a closed terminal, the end of `| tee`, a full disk) it is dropped: a run outlives its words.

    :param text: lines.
    :param stream: standard output if None.
    """
    stream = sys.stdout if stream is None else stream
    try:
        print(text, file=stream, flush=True)
    except OSError:
        with suppress(OSError):  # what waits in the buffer goes nowhere, or it would fail again at the end of the process
            there, nowhere = os.dup(stream.fileno()), os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            stream.flush()
            os.dup2(there, stream.fileno())
            os.close(nowhere)
            os.close(there)


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Say what a misspelt word may have meant.

    :param word: what was found.
    :param allowed: the words that would have been right.
    :return: `` Did you mean 'epochs'?`` with a leading space, or the empty string where nothing is near.
    """
    found = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f" Did you mean '{found[0]}'?" if found else ""
