"""The command `lmp_export`: it hears signals first, then imports the rest."""
from __future__ import annotations

import sys

from ..signals import be_deaf, listen


def main(argv: list[str] | None = None) -> int:
    """Write a model for other programs.

    :param argv: arguments; None = those of the process, which then ends with this call.
    :return: the exit code, see :func:`lmplay.export.command.run`.
    """
    if argv is None:
        listen("lmp_export", "stopped")
    from .command import run

    try:
        return run(argv)
    finally:
        if argv is None:
            be_deaf()


if __name__ == "__main__":
    sys.exit(main())
