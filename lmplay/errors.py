"""The errors that users see, and the words that help them.  Imports nothing of lmplay."""
from __future__ import annotations

import difflib
import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

# Faults that are told at once, and characters of each: a file of a stranger may have millions. Who collects faults may stop when there are more.
MOST_FAULTS, _LONGEST_FAULT = 50, 2000
_LONGEST_NAME = 100


class LmplayError(Exception):
    """An error that ends a run; the commands turn it into an exit code."""

    exit_code = 1


class UserError(LmplayError):
    """Bad input: one line for each fault, saying what, where, what is allowed and what to do.  Exit code 2, no traceback."""

    exit_code = 2

    def __init__(self, *faults: str):
        lines = dict.fromkeys(printable(fault if len(fault) <= _LONGEST_FAULT else f"{fault[:_LONGEST_FAULT]}...") for fault in faults[:MOST_FAULTS])
        more = [f"there are more faults than these {MOST_FAULTS}; mend them first."] if len(faults) > MOST_FAULTS else []
        self.faults = (*lines, *more)  # each once: two sources of one data set fail alike
        super().__init__("\n".join(self.faults))

    def __reduce__(self) -> tuple[type[UserError], tuple[str, ...]]:
        """Keep the faults apart when the error is pickled, on its way from another process."""
        return type(self), self.faults


class Faults:
    """Collects the faults of several checks, so that all are said at once.

    `left_out` are the flags, keys of `$model` and other parts whose values were wrong and have been taken out: what only follows from that is no fault.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.left_out: set[str] = set()

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Take up a UserError that is raised inside."""
        try:
            yield
        except UserError as error:
            self.lines += error.faults

    def refuse(self) -> None:
        """Raise all faults as one UserError, if there are any."""
        if self.lines:
            raise UserError(*self.lines)


class TrainingError(LmplayError):
    """Training itself failed (a loss that is not a number, say); the last good checkpoint stays.  Exit code 1."""


class ElsewhereError(LmplayError):
    """Another rank has failed, or has gone; `is_told_here` says that this process must tell the user though it is not rank 0."""

    is_told_here = False


class Unavailable(LmplayError):
    """Something outside (such as the hub) has gone away and may come back; the state is saved.  Exit code 75: run the same command again."""

    exit_code = 75


class StoppedWaiting(Unavailable):
    """It had gone away, and this process was told to stop while it waited."""


@contextmanager
def long_names_refused() -> Iterator[None]:
    """Turn the system's complaint of a name that is too long for a file, wherever it was given, into a UserError."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        name = str(error.filename)
        raise UserError(f"{name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + '...'}: is too long for the name of a file, of which each part has "
                        "at most 255 bytes on most disks; choose a shorter one.") from None


def printable(text: str) -> str:
    """Replace what a terminal cannot show by escapes: a key or the name of a file may hold any character."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print a text at once, to standard output if `stream` is None.

    Where nobody can read it any more (a closed terminal, a full disk) it is dropped, and the run goes on.
    """
    stream = sys.stdout if stream is None else stream
    try:
        print(text, file=stream, flush=True)
    except OSError:
        with suppress(OSError):  # discard what is still in the buffer, or it would fail again at the end of the process
            there, nowhere = os.dup(stream.fileno()), os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            stream.flush()
            os.dup2(there, stream.fileno())
            os.close(nowhere)
            os.close(there)


def value_fault(error: Exception) -> str:
    """Say what is wrong with a value that Python did not take; of a number that is too long it gives advice that is for programmers."""
    too_long = "set_int_max_str_digits" in str(error)
    return f"a whole number of more than {sys.get_int_max_str_digits():,} digits" if too_long else str(error)


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Suggest the allowed word that is nearest to a misspelt one: `` Did you mean 'epochs'?`` with a leading space, or the empty string."""
    found = nearest_word(word, allowed)
    return f" Did you mean '{found}'?" if found is not None else ""


def nearest_word(word: str, allowed: Iterable[str]) -> str | None:
    """Find the allowed word that a misspelt one most likely means; None where none is near."""
    return next(iter(difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)), None)
