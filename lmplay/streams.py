"""The standard streams: what is printed where nobody reads it.  Ground floor, and light: it is imported early."""
from __future__ import annotations

import os
import sys
from contextlib import suppress

from .errors import UserError


def open_closed() -> None:
    """Give the null device to each standard stream that the caller has closed (`>&-`): no other code need ask, and no later file gets its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, this one
        if getattr(sys, name) is None:
            with suppress(OSError):
                setattr(sys, name, os.fdopen(number, mode, closefd=False))


def put(text: str, end: str = "\n") -> None:
    """Print what a program was asked for, and see that it is written; where the reader has had enough (`| head`), nothing more is.

    :raises UserError: when it cannot be written.
    """
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        drop_output()
        raise UserError(f"its output cannot be written ({error.strerror}); make room, or send it elsewhere.") from None


def drop_output() -> None:
    """Discard what is still to be printed, as it cannot be."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
