"""On a terminal, how far a long look at files is.  Data floor, no torch; imports nothing of lmplay."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A look that takes less is not worth a line.
_SECONDS = 2.0


@contextmanager
def shown(what: str, total: int | None = None, unit: str = "B") -> Iterator[Callable[[int], object]]:
    """Show a line that goes away when the block ends, if the block takes longer than two seconds.

    :param what: what is done, with which file.
    :param total: how much there is to do, None where that is not known.
    :param unit: of what is counted, bytes by default.
    :return: to be called with how much more has been done.
    """
    if not sys.stderr.isatty():
        yield lambda more: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, unit_scale=True, desc=what, delay=_SECONDS, dynamic_ncols=True, leave=False, file=sys.stderr) as bar:
        yield bar.update
