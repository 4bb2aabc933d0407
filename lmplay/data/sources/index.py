"""A cache of what was computed from files: where their rows begin, their digests.  Data floor, no torch; imports the ground only."""
from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UserError
from ...files import make_folder, write_atomic

if TYPE_CHECKING:
    import numpy as np

# Changes whenever what is kept is computed in another way.
_VERSION = 1
# Reading a smaller file again is faster than looking it up.
_LEAST_BYTES = 1 << 20
# A file written so shortly ago may be written again without its times showing it: clocks of file systems tick a few milliseconds to 2 s apart.
_SETTLED_SECONDS = 2.0


class Index:
    """Keeps arrays of numbers about big files in the data sets folder; where that cannot be written, they are computed each time.

    An array belongs to one path and to one size, time of writing and time of change: so it is never used for other contents.
    """

    def __init__(self, folder: Path | None = None):
        """
        :param folder: the data sets folder; `index/` in it holds the arrays. None keeps nothing.
        """
        self._folder = folder / "index" if folder is not None else None

    def get(self, path: Path, what: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Give an array about a file, computing it if it is not kept.

        :param path: the file.
        :param what: which array; names whatever it depends on but the file.
        :param make: computes it.
        :return: the array.
        :raises OSError: when the file cannot be read; and whatever `make` raises.
        """
        found = path.stat()
        return self.keep(f"{os.path.realpath(path)}\0{what}", repr(_stamp(found)), make, found.st_size, max(found.st_mtime, found.st_ctime))

    def keep(self, about: str, stamp: str, make: Callable[[], np.ndarray], size: int, changed_at: float = 0) -> np.ndarray:
        """Give an array about any number of files, computing it if it is not kept.

        :param about: what it is about, and which array it is; a newer array about the same replaces it.
        :param stamp: what was true of the files before; differs whenever they could.
        :param make: computes the array.
        :param size: bytes that are read for it.
        :param changed_at: when one of the files was last changed, in seconds since 1970.
        :return: the array.
        :raises OSError: when a file cannot be read; and whatever `make` raises.
        """
        if self._folder is None or size < _LEAST_BYTES:
            return make()
        settled = changed_at < time.time() - _SETTLED_SECONDS
        about = _digits(f"{about}\0{_VERSION}")
        kept = self._folder / f"{about}-{_digits(stamp)}.npy"
        array = _read(kept)
        if array is None:
            array = make()
            if settled:
                self._write(kept, about, array)
        return array

    def _write(self, kept: Path, about: str, array: np.ndarray) -> None:
        """Keep an array in place of older ones, if the folder can be written."""
        import numpy as np

        try:
            make_folder(kept.parent, "the data sets folder")
            write_atomic(kept, lambda file: np.save(file, array, allow_pickle=False))
            for old in kept.parent.glob(f"{about}-*.npy"):
                if old != kept:
                    old.unlink(missing_ok=True)
        except (OSError, UserError):
            pass  # it only saves time


def _read(kept: Path) -> np.ndarray | None:
    """Read an array; None where it is not there or is damaged."""
    import numpy as np

    try:
        return np.load(kept, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    """Give what changes with every change of a file."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digits(text: str) -> str:
    """Hash a text to 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()
