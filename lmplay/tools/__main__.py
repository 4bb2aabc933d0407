"""The command `lmp_checkpoint`: it hears signals first, then imports the rest."""
from __future__ import annotations

import sys
from collections.abc import Callable

from ..signals import heard


def main(argv: list[str] | None = None) -> int:
    """Convert, verify, average or show states; see :func:`lmplay.tools.command.run`."""
    return heard("lmp_checkpoint", "stopped", argv, _load)


def _load() -> Callable[[list[str] | None], int]:
    from .command import run

    return run


if __name__ == "__main__":
    sys.exit(main())
