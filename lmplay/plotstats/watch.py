"""Drawing again while runs go on.  Plotstats floor: the ground.

The trainer replaces whole files, so a reader has the old or the new one; a missing or damaged one is reported once and tried again.
"""
from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import NoReturn

from ..errors import UserError


def watch(folder: Path, seconds: float, draw: Callable[[Container[Path] | None], list[str]]) -> NoReturn:
    """Draw at once, and again whenever a statistics file has changed, until Ctrl+C.

    :param seconds: between two looks at the folder.
    :param draw: draws what shows the given files (None = everything), and returns or raises what was wrong.
    """
    seen: dict[Path, tuple[int, int, int]] | None = None
    said: list[str] = []
    while True:
        found, started = look(folder), time.perf_counter()
        if found != seen:
            try:
                faults = draw(None if seen is None or found.keys() != seen.keys() else {path for path in found if found[path] != seen[path]})
                seen = found
                print(f"{time.strftime('%H:%M:%S')}  drawn in {time.perf_counter() - started:.1f} s; Ctrl+C ends\n", flush=True)
            except UserError as error:
                faults, seen = list(error.faults), None
            for fault in faults if faults != said else ():
                print(f"lmp_plotstats: {fault}", file=sys.stderr)
            said = faults
        time.sleep(seconds)


def look(folder: Path, patterns: Sequence[str] = ("*_stats.json",)) -> dict[Path, tuple[int, int, int]]:
    """Return of each file, by default of statistics, what changes with it: time of modification, size and inode."""
    found = {}
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        try:
            state = path.stat()
        except OSError:
            continue  # gone since it was listed
        found[path] = (state.st_mtime_ns, state.st_size, state.st_ino)
    return found
