"""The command `lmp_generator`: it hears signals first, then imports the rest."""
from __future__ import annotations

import sys
from collections.abc import Callable

from ..signals import NOT_BEGUN, heard


def main(argv: list[str] | None = None) -> int:
    """Write texts; see :func:`lmplay.generate.command.run`."""
    return heard("lmp_generator", NOT_BEGUN, argv, _load)


def _load() -> Callable[[list[str] | None], int]:
    from .command import run

    return run


if __name__ == "__main__":
    sys.exit(main())
