"""Which files a path means: a file, a folder or a glob, and the splits that their names tell.  Data floor, no torch; imports ground and plan."""
from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from ...errors import UserError, nearest, printable
from ...files import NotAFile, check_is_file
from ...paths import glob_files, glob_root, walk_files
from ...plan.catalog import FORMATS, PACKED_SUFFIXES
from .base import VALIDATION_NAMES

_UNPACKABLE = ("text", "jsonl", "json", "csv", "tsv")
READABLE = f"{', '.join(FORMATS)}, and {' and '.join(PACKED_SUFFIXES)} of the text ones"
# Beside the data in a clone of a data set, and not part of it.
_NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
# The words are those of the hub. A space may not follow: a book may be called "train dreams.txt".
_SPLIT = re.compile(rf"(?:(?P<train>train|training)|(?P<validation>{'|'.join(VALIDATION_NAMES)})|(?P<test>test|testing|eval|evaluation))(?=[-._0-9]|$)")


@dataclass(frozen=True)
class Selection:
    """The files of one source, in reading order.

    `names` are the files' paths below what was asked for, and `title` is what the source is called: both as they can be printed.
    """

    title: str
    files: tuple[Path, ...]
    names: tuple[str, ...]


def format_of(path: PurePath) -> str | None:
    """Tell how a file is read.

    :param path: its path.
    :return: a value of `FORMATS`, None where it isn't read.
    """
    kind = FORMATS.get(PurePath(path.stem).suffix.lower() if _is_packed(path) else path.suffix.lower())
    return kind if not _is_packed(path) or kind in _UNPACKABLE else None


def select(path: str, wanted: str | None, split: str) -> Selection | None:
    """Find the files to read.

    :param path: a file, a folder or a glob.
    :param wanted: the split that is trained on, None for the training split, or for everything where nothing is split.
    :param split: "train" or "validation".
    :return: the files; None where "validation" is asked for and there is none.
    :raises UserError: when nothing is there or nothing is readable, or when it is not clear what is to be read.
    """
    found = Path(path).expanduser()
    if not found.is_dir():
        _check_file(path, found)
    if found.is_file():
        if wanted:
            raise UserError(f"source {path}: 'split' chooses among the files of a folder, and this is one file; leave it out.")
        if not format_of(found):
            raise UserError(f"source {path}: '{found.suffix}' files are not read; what is read is {READABLE}.")
        return Selection(printable(found.name), (found,), (printable(found.name),)) if split == "train" else None
    root, files = _list_files(path, found)
    splits: dict[str, list[Path]] = {}
    for file in files:
        splits.setdefault(_split_of(file.relative_to(root)), []).append(file)
    if len(splits) == 1 and not found.is_dir():
        splits = {"": files}  # a glob that finds one split only has chosen it
    chosen = _choose(path, splits, wanted, split)
    if chosen is None:
        return None
    files = _of_one_format(path, root, splits[chosen])
    title = found.resolve().name if found.is_dir() else found.relative_to(root.parent).as_posix()
    title += f" {chosen}" if chosen not in ("", "train") else ""
    return Selection(printable(title), tuple(files), tuple(printable(file.relative_to(root).as_posix()) for file in files))


def _list_files(path: str, found: Path) -> tuple[Path, list[Path]]:
    """List the readable files of a folder or a glob, sorted; gives the folder that all are in, too."""
    if found.is_dir():
        root = found
        files = list(walk_files(root))
    elif glob.has_magic(path):
        root = glob_root(found)
        files = _once(glob_files(str(found)))
    else:
        raise _missing(path, found)
    readable = sorted(file for file in files if format_of(file) and file.name not in _NOT_DATA)
    for file in readable:
        _check_file(path, file)
    if not readable:
        raise UserError(f"source {path}: nothing there can be read ({len(files)} files found); what is read is {READABLE}.")
    return root, readable


def _check_file(path: str, file: Path) -> None:
    """Refuse a named pipe, a socket or a device: reading one may never end."""
    try:
        check_is_file(file)
    except NotAFile as error:
        raise UserError(f"source {path}: {file}: {error.strerror}; copy what it gives into a file, or leave it out.") from None


def _once(files: Iterable[Path]) -> list[Path]:
    """List each file once, by its shortest path."""
    found: dict[str, Path] = {}
    for file in sorted(files, key=lambda file: (len(file.parts), file)):
        found.setdefault(os.path.realpath(file), file)
    return list(found.values())


def _split_of(path: PurePath) -> str:
    """Tell the split that a file's folder or name begins with, "" for none."""
    for part in path.parts:
        found = _SPLIT.match(part)
        if found and found.lastgroup:
            return found.lastgroup
    return ""


def _choose(path: str, splits: dict[str, list[Path]], wanted: str | None, split: str) -> str | None:
    """Choose the split to read; None where "validation" is asked for and there is none."""
    named = ", ".join(sorted(filter(None, splits)))
    if wanted:
        if re.search(r"[^\w.-]", wanted):
            raise UserError(f"source {path}: split '{wanted}' is a slice or a sum, which only data sets of the hub have; name one of: {named}.")
        train = _split_of(PurePath(wanted))
        if not train or train not in splits:
            has = f"it has {named}" if named else "its files are not named after splits (train, validation, test)"
            raise UserError(f"source {path}: has no split '{wanted}'; {has}.{nearest(wanted, filter(None, splits))}")
    else:
        train = "train" if "train" in splits else ""
        if train not in splits:
            raise UserError(f"source {path}: has only {named} files and none to train on; name the split in 'split', or name the files themselves.")
    own = "validation" if "validation" in splits and train != "validation" else None
    return train if split == "train" else own


def _of_one_format(path: str, root: Path, files: list[Path]) -> list[Path]:
    """Leave out notes beside tables, and refuse what is most likely the same rows twice."""
    tables = [file for file in files if format_of(file) != "text"]
    files = tables or files
    first = sorted({format_of(file): file for file in reversed(files)}.values())
    if len(first) > 1:
        names = " and ".join(file.name for file in first)
        globs = " or ".join(f"'{root / '**' / ('*' + _ending(file))}'" for file in first)
        raise UserError(f"source {path}: holds tables of several formats ({names}), perhaps the same rows twice; choose one with a glob: {globs}.")
    unpacked: dict[Path, Path] = {}
    for file in files:
        twin = unpacked.setdefault(file.with_suffix("") if _is_packed(file) else file, file)
        if twin is not file:
            raise UserError(f"source {path}: holds both {twin.name} and {file.name}, the same rows twice; remove one, or choose with a glob.")
    return files


def _is_packed(path: PurePath) -> bool:
    """Tell whether a file has to be unpacked."""
    return path.suffix.lower() in PACKED_SUFFIXES


def _ending(path: PurePath) -> str:
    """Give what a file's name must end in to be read the same way."""
    return "".join(path.suffixes[-2:] if _is_packed(path) else path.suffixes[-1:])


def _missing(path: str, found: Path) -> UserError:
    """Make the error for a path where nothing is."""
    if "://" in path:
        return UserError(f"source {path}: addresses are not read; download the file, or give the name of a data set on the hub (owner/name).")
    beside = os.listdir(found.parent) if found.parent.is_dir() else []
    return UserError(f"source {path}: no such file or folder.{nearest(found.name, beside)}")
