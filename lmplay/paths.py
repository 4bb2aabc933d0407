"""Finding files: where a name without a folder lies, what a folder and what a glob hold, even where links form loops."""
from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path

from .errors import UserError
from .files import is_state

EXPORT_RECORD = "lmplay.json"
"""What an export has in its folder beside the files of transformers: it says where it is from."""


def in_folder(name: str, folder: str | Path) -> Path:
    """Say where a model file is: a name without a folder (`./idea.lmp` has one) lies in the output folder.

    :param name: as the user gave it.
    :param folder: the output folder.
    :return: the path; one in the current folder where there is such a file and none in `folder`: earlier versions put it there.
    """
    name = plain(name)
    path = expanded(name)
    there = expanded(folder) / path
    return path if os.path.dirname(name) or (is_state(path) and not there.exists()) else there


def expanded(name: str | Path) -> Path:
    """Write out the home folder that a name may begin with; where nobody has it (`~nobody/x`), the name stays as it is."""
    return Path(os.path.expanduser(name))


def plain(name: str) -> str:
    """Leave out what a shell adds to the name of a folder when it completes it."""
    return name.rstrip("/\\") or name


def walk_files(root: Path) -> Iterator[str]:
    """Find the files of a folder and of the folders in it, in no order; links are followed, each folder is read once, and hidden ones are skipped.

    Paths are plain strings, as those of a million files as `Path` would fill 500 MB.

    :raises UserError: when one of the folders cannot be read: its files must not be missing silently.
    """
    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror or error}); check its rights and its disk.")

    seen = {os.path.realpath(root)}
    for folder, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        yield from (os.path.join(folder, name) for name in names if not name.startswith("."))
        real = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders) if not name.startswith(".")}
        folders[:] = sorted({path: name for name, path in reversed(list(real.items())) if path not in seen}.values())
        seen.update(real.values())


def glob_files(pattern: str) -> Iterator[str]:
    """Find the files that a glob names, in no order: `*`, `?`, `[...]`, and `**` for any number of folders.

    Python's own `**` follows every link again and again: with two that lead upwards it never ends.

    :raises UserError: when a folder below `**` cannot be read.
    """
    path = Path(pattern)
    if "**" not in path.parts:
        yield from (str(Path(file)) for file in glob.iglob(pattern) if os.path.isfile(file))
        return
    root = glob_root(path)
    wanted = path.parts[len(root.parts):]
    yield from (file for file in walk_files(root) if _matches(Path(file).parts[len(root.parts):], wanted) and os.path.isfile(file))


def glob_root(path: Path) -> Path:
    """Return the folder that all files of a glob are in."""
    return Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))


def _matches(parts: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Tell whether the parts of a path are those of a pattern."""
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_matches(parts[start:], wanted[1:] or ("*",)) for start in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and _matches(parts[1:], wanted[1:])
