"""Which kind of source a path names, and what opens it, imported on demand.  Data floor, no torch.

A new kind is one file, which gives an :class:`Opener`, and one row: in `KINDS` of lmplay/plan/catalog.py, or an entry point of another package.
"""
from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from ...plan.catalog import DATA_SUFFIXES, SourceKind, kind_of, nearest_source
from .base import AnySource, SourceSpec

FILES = SourceKind("", "files of this machine", f"{__package__}.local:FILES")
HUB = SourceKind("", "data sets of the hub", f"{__package__}.hub:HUB")
# Other ends of names that mean a file, not a data set of the hub.
_OTHER_SUFFIXES = (".7z", ".bz2", ".doc", ".docx", ".epub", ".feather", ".html", ".log", ".pdf", ".py", ".rst", ".tar", ".tex", ".xlsx", ".xml",
                   ".xz", ".yaml", ".yml", ".zip")


@dataclass(frozen=True)
class Opener:
    """What opens the sources of one kind; that of another package may be any object with an `open`, and what else it has of these counts.

    `open` is :func:`open_source` for this kind. `locate(path, folder)` checks a path as the user wrote it, relative to a folder, and gives it as it is stored,
    or raises UserError. `remote` sources need the network; the paths of those `of_files` are of files on this machine.
    """

    open: Callable[[SourceSpec, str, Path], AnySource | None]
    locate: Callable[[str, Path], str] | None = None
    remote: bool = False
    of_files: bool = False


def open_source(spec: SourceSpec, split: str, folder: Path) -> AnySource | None:
    """Open a source.

    :param spec: the source asked for; its path says the kind.
    :param split: "train" for the rows to train on, "validation" for the source's own validation rows.
    :param folder: the data sets folder; what has to be downloaded, unpacked or converted is kept there, and nothing is written elsewhere.
    :return: the source; None where "validation" is asked for and it has no such rows of its own.
    :raises UserError: one clear line for each thing that is wrong with it.
    """
    return opener_of(spec.path).open(spec, split, folder)


def opener_of(path: str) -> Opener:
    """Import what opens a source; raises as :func:`find_kind` does."""
    found = find_kind(path).load()
    return found if isinstance(found, Opener) else Opener(found.open, remote=getattr(found, "remote", False))


def find_kind(path: str) -> SourceKind:
    """Find the kind of source that a path names.

    :param path: what the plan says.
    :return: the kind whose prefix it has; `FILES` where it exists, is a glob or looks like a path; else `HUB`.
    :raises UserError: when it has a prefix that no kind has.
    """
    kind = kind_of(path) or (FILES if _looks_local(path) else HUB)
    if kind is HUB and ":" in path:
        raise UserError(f"source {path}: neither a file or folder that exists nor the name of a data set on the hub (owner/name), and no installed package "
                        f"offers sources that begin with '{path.partition(':')[0]}:'.{nearest_source(path)}")
    return kind


def _looks_local(path: str) -> bool:
    """Tell a path, which need not exist, from the name of a data set on the hub."""
    if os.path.exists(os.path.expanduser(path)) or glob.has_magic(path):
        return True
    ends = path.lower().endswith((*DATA_SUFFIXES, *_OTHER_SUFFIXES))
    return ends or path.startswith((".", "/", "~")) or "\\" in path or path.count("/") > 1
