"""The command `lmp_export`: it hears signals first, then imports the rest."""
from __future__ import annotations

import sys
from collections.abc import Callable

from ..signals import heard


def main(argv: list[str] | None = None) -> int:
    """Write a model for other programs; see :func:`lmplay.export.command.run`."""
    return heard("lmp_export", "stopped", argv, _load)


def _load() -> Callable[[list[str] | None], int]:
    from .command import run

    return run


if __name__ == "__main__":
    sys.exit(main())
