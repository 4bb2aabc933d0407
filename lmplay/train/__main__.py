"""The command `lmp_trainer`: it hears signals first, then imports the rest."""
from __future__ import annotations

import sys

from ..signals import listen


def main(argv: list[str] | None = None) -> int:
    """Train, or do what else the flags ask for.

    :param argv: arguments; None = those of the process, which then ends with this call.
    :return: the exit code, see :func:`lmplay.train.command.run`.
    """
    if argv is None:
        listen("lmp_trainer")
        from ..streams import open_closed

        open_closed()
    from .command import run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
