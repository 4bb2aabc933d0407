"""The command `lmp_generator`: it hears Ctrl+C first, then imports the rest."""
from __future__ import annotations

import signal
import sys

from ..signals import listen


def main(argv: list[str] | None = None) -> int:
    """Write texts.

    :param argv: arguments; None = those of the process, which then ends with this call.
    :return: the exit code, see :func:`lmplay.generate.command.run`.
    """
    if argv is None:
        listen("lmp_generator", signal.SIGINT)
    from .command import run

    try:
        return run(argv)
    finally:
        if argv is None:  # there is nothing left but the end of the process
            signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
