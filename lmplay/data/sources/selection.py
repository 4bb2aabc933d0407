"""Which files a path means: a file, a folder or a glob, and the splits that their names tell.  Data floor, no torch; imports ground and plan."""
from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath

from ...errors import UserError, nearest, printable
from ...files import NotAFile, check_is_file
from ...paths import expanded, glob_files, glob_root, walk_files
from ...plan.catalog import FORMATS, PACKED_SUFFIXES
from ...words import counted
from .base import VALIDATION_NAMES
from .contents import head_of, kind_of

_UNPACKABLE = ("text", "jsonl", "json", "csv", "tsv")
READABLE = f"{', '.join(FORMATS)}, and {' and '.join(PACKED_SUFFIXES)} of the text ones"
# Beside the data in a clone of a data set, and not part of it.
_NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
# About the data where tables are beside them; in a folder of texts alone they are texts as others.
_ABOUT = re.compile(r"(?:readme|licen[cs]e|copying|notice|authors|changelog|citation|contributing|dataset[-_]?card|requirements)(?![a-z])", re.IGNORECASE)
# A part of a split: its number, the number of parts, and the digest that the hub's library once wrote behind them.
_PART = r"[-_]?[0-9]+(?:[-_]of[-_][0-9]+)?(?:-[0-9a-f]{16})?"
# The words are those of the hub. Only a whole word counts: a book may be called "train dreams", and a diary "dev-diary".
_SPLIT = re.compile(rf"(?:(?P<train>train|training)|(?P<validation>{'|'.join(VALIDATION_NAMES)})|(?P<test>test|testing|eval|evaluation))(?:{_PART})?",
                    re.IGNORECASE)
_HINT = re.compile("train|val|dev|test", re.IGNORECASE)  # all of these words have one of these in them
_NUMBERED = re.compile(r"[-_]?[0-9]+[-_]of[-_][0-9]+(?:-[0-9a-f]{16})?$")
# Files that are named in a line for the user; the others are counted.
_NAMED = 4


@dataclass(frozen=True)
class Selection:
    """The files of one source, in reading order.

    `names` are the files' paths below the folder `root`, and `title` is what the source is called, as it can be printed.
    `notes` say which files of a folder or glob these are, and which are left out and why. `has_validation` tells whether there are validation files
    beside those to train on.
    """

    title: str
    root: Path
    names: list[str]
    notes: tuple[str, ...] = ()
    has_validation: bool = False


def format_of(path: str | PurePath) -> str | None:
    """Tell how a file is read.

    :param path: its path.
    :return: a value of `FORMATS`, None where it isn't read.
    """
    stem, dot, ending = str(path).lower().rpartition(".")
    if (plain := FORMATS.get(dot + ending)) is not None:  # which a million files ask
        return plain if stem and stem[-1] not in "/\\" else None
    packed = dot + ending in PACKED_SUFFIXES
    if packed:
        stem, dot, ending = stem.rpartition(".")
    kind = FORMATS.get(dot + ending) if stem and stem[-1] not in "/\\" else None
    return kind if not packed or kind in _UNPACKABLE else None


def is_packed(name: str) -> bool:
    """Tell whether a file's name says that it has to be unpacked."""
    return name.lower().endswith(PACKED_SUFFIXES)


def select(path: str, wanted: str | None, split: str) -> Selection | None:
    """Find the files to read.

    :param path: a file, a folder or a glob.
    :param wanted: the split that is trained on, None for the training split, or for everything where nothing is split.
    :param split: "train" or "validation".
    :return: the files; None where "validation" is asked for and there is none.
    :raises UserError: when nothing is there or nothing is readable, or when it is not clear what is to be read.
    """
    found = expanded(path)
    if not found.is_dir():
        check_regular(path, found)
    if found.is_file():
        if wanted:
            raise UserError(f"source {path}: 'split' chooses among the files of a folder, and this is one file; leave it out.")
        if not format_of(found) and kind_of(head_of(found), printable(str(found)), None) == "text":
            raise UserError(f"source {path}: '{found.suffix}' files are not read; what is read is {READABLE}.")
        return Selection(printable(found.name), found.parent, [found.name]) if split == "train" else None
    root, names = _list_files(path, found)
    title = found.resolve().name if found.is_dir() else found.relative_to(root.parent).as_posix()
    return select_among(path, names, root, title, wanted, split, is_glob=not found.is_dir())


def select_among(path: str, names: Sequence[str], root: Path, title: str, wanted: str | None, split: str, is_glob: bool) -> Selection | None:
    """Choose among the files of a folder or a glob.

    :param path: the folder or glob as the user wrote it, for messages.
    :param names: of the files that are there, below `root`.
    :param title: what the source is called, but for its split.
    :param wanted: see :func:`select`, also for what is returned and raised.
    :param is_glob: whether a glob has chosen the names.
    """
    names, left_out = _readable(path, names)
    splits: dict[str, list[str]] = {}
    for name in names:
        splits.setdefault(_split_of(name), []).append(name)
    if len(splits) == 1 and is_glob:
        splits = {"": names}  # a glob that finds one split only has chosen it
    chosen = _choose(path, splits, wanted, split)
    if chosen is None:
        return None
    names = _without_doubles(path, root, splits[chosen], left_out)
    own = None if split == "validation" else _choose(path, splits, wanted, "validation")
    for name in sorted(splits.keys() - {chosen, own}) if split == "train" else ():
        left_out[f"the {name} split" if name else f"in no split, beside {chosen} files"] = splits[name]
    title += f" {chosen}" if chosen not in ("", "train") else ""
    notes = [f"{counted(len(names), 'file')}: {_some(names)}"]
    notes += [f"left out, {reason}: {_some(unread)}" for reason, unread in left_out.items() if unread and split == "train"]
    return Selection(printable(title), root, names, tuple(map(printable, notes)), own is not None)


def check_regular(path: str, file: Path) -> None:
    """Refuse a named pipe, a socket or a device, named by the source's path and its own: reading one may never end."""
    try:
        check_is_file(file)
    except NotAFile as error:
        raise UserError(f"source {path}: {file}: {error.strerror}; copy what it gives into a file, or leave it out.") from None


def _list_files(path: str, found: Path) -> tuple[Path, list[str]]:
    """List the files of a folder or a glob, and the folder that all are in."""
    files: Iterable[str]
    if found.is_dir():
        root, files = found, walk_files(found)
    elif glob.has_magic(path):
        root, files = glob_root(found), _once(glob_files(str(found)))
    else:
        raise _missing(path, found)
    before = 0 if root == Path() and not found.is_dir() else len(os.path.join(root, ""))
    return root, [file[before:].replace(os.sep, "/") for file in files]


def _readable(path: str, names: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Give the files that are of a kind that is read, sorted, and the others by the reason to leave them out."""
    readable: list[str] = []
    left_out: dict[str, list[str]] = {}
    for name in sorted(names, key=_order):
        if os.path.basename(name) in _NOT_DATA:
            left_out.setdefault("about the data", []).append(name)
        elif format_of(name):
            readable.append(name)
        else:
            left_out.setdefault("of kinds that are not read", []).append(name)
    if not readable:
        raise UserError(f"source {path}: nothing there can be read ({len(names)} files found); what is read is {READABLE}.")
    return readable, left_out


def _order(name: str) -> str:
    """Give what names are sorted by: folder by folder."""
    return os.path.normcase(name).replace(os.path.normcase("/"), "\0")


def _once(files: Iterable[str]) -> list[str]:
    """List each file once, by its shortest path."""
    found: dict[str, str] = {}
    real_folder = lru_cache(maxsize=1000)(os.path.realpath)
    for file in sorted(files, key=lambda file: (file.count(os.sep), _order(file))):
        folder, name = os.path.split(file)
        found.setdefault(os.path.realpath(file) if os.path.islink(file) else os.path.join(real_folder(folder), name), file)
    return list(found.values())


def _split_of(name: str) -> str:
    """Tell the split that a file is of, "" for none: a folder has its name, or a part of the file's name between dots is one, with or without a number."""
    if not _HINT.search(name):  # of a million names few have one
        return ""
    *folders, file = name.split("/")
    return next(filter(None, map(_split_of_word, (*folders, *file.split(".")))), "")


@lru_cache(maxsize=10_000)
def _split_of_word(word: str) -> str:
    """Tell the split that a word names, "" for none."""
    found = _SPLIT.fullmatch(word)
    return found.lastgroup or "" if found else ""


def _choose(path: str, splits: dict[str, list[str]], wanted: str | None, split: str) -> str | None:
    """Choose the split to read; None where "validation" is asked for and there is none."""
    named = ", ".join(sorted(filter(None, splits)))
    if wanted:
        if re.search(r"[^\w.-]", wanted):
            raise UserError(f"source {path}: split '{wanted}' is a slice or a sum, which only data sets of the hub have; name one of: {named}.")
        train = _split_of(wanted)
        if not train or train not in splits:
            has = f"it has {named}" if named else "its files are not named after splits (train, validation, test)"
            raise UserError(f"source {path}: has no split '{wanted}'; {has}.{nearest(wanted, filter(None, splits))}")
    else:
        train = "train" if "train" in splits else ""
        if train not in splits:
            raise UserError(f"source {path}: has only {named} files and none to train on; name the split in 'split', or name the files themselves.")
    own = "validation" if "validation" in splits and train != "validation" else None
    return train if split == "train" else own


def _without_doubles(path: str, root: Path, names: list[str], left_out: dict[str, list[str]]) -> list[str]:
    """Leave out what is about the data, and refuse what is most likely the same rows twice: one name in several formats, or packed and unpacked."""
    formats = {*map(format_of, names)}
    if "text" in formats and len(formats) > 1:
        about = [name for name in names if format_of(name) == "text" and _ABOUT.match(os.path.basename(name))]
        left_out.setdefault("about the data", []).extend(about)
        names = sorted({*names} - {*about}, key=_order)
        formats = {*map(format_of, names)}
    by_name: dict[str, dict[str | None, str]] = {}
    for name in names if len(formats) > 1 else ():
        file = os.path.basename(name)
        stem = file.removesuffix(_ending(file))
        by_name.setdefault(_split_of_word(stem) or _NUMBERED.sub("", stem) or stem, {}).setdefault(format_of(name), file)
    first = next((list(found.values()) for found in by_name.values() if len(found) > 1), [])
    if first:
        found, globs = " and ".join(first), " or ".join(f"'{root / '**' / ('*' + _ending(file))}'" for file in first)
        raise UserError(f"source {path}: holds one name in several formats ({found}), perhaps the same rows twice; choose one with a glob: {globs}.")
    unpacked: dict[str, str] = {}
    packed = {name.rpartition(".")[0] for name in names if is_packed(name)}
    for name in names if packed else ():
        plain = name.rpartition(".")[0] if is_packed(name) else name
        if plain in packed and unpacked.setdefault(plain, name) != name:
            twins = " and ".join(map(os.path.basename, (unpacked[plain], name)))
            raise UserError(f"source {path}: holds both {twins}, the same rows twice; remove one, or choose with a glob.")
    return names


def _some(names: list[str]) -> str:
    """Name the first files, and the last where there are many."""
    return ", ".join(names) if len(names) <= _NAMED else f"{', '.join(names[:_NAMED - 1])}, … {names[-1]} ({len(names):,})"


def _ending(name: str) -> str:
    """Give what a file's name must end in to be read the same way."""
    return "".join(PurePath(name).suffixes[-2 if is_packed(name) else -1:])


def _missing(path: str, found: Path) -> UserError:
    """Make the error for a path where nothing is."""
    if "://" in path:
        return UserError(f"source {path}: addresses of this kind are not read; download the file, or give the name of a data set on the hub (owner/name).")
    beside = os.listdir(found.parent) if found.parent.is_dir() else []
    return UserError(f"source {path}: no such file or folder.{nearest(found.name, beside)}")
