"""The ranks that write folders of shards together, behind the training: each its own files, and rank 0 what makes them a state."""
from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ..files import check_free_bytes, temporary_name
from .folder import Divided, File, write_own
from .format import content_bytes
from .hashed import Cancelled

_POLL = 0.05  # seconds

Job = tuple[Path, Divided]
"""A state to write, and this rank's part of it."""


class Messages(Protocol):
    """How ranks tell rank 0 what they have written, from any thread, without waiting for each other."""

    rank: int
    size: int

    @property
    def main_pid(self) -> int:
        """The process of rank 0."""

    def post(self, key: str, text: str) -> None:
        """Leave a text for rank 0; raises OSError when that is not possible."""

    def posted(self, key: str) -> list[str] | None:
        """Return the texts of all other ranks, on rank 0; None when they are not all there yet. Raises OSError when some ranks have gone."""


class Writers:
    """Writes the shards of states; all ranks make the same calls in the same order."""

    def __init__(self, messages: Messages):
        self.rank, self.size = messages.rank, messages.size
        self._messages = messages
        self._count = 0

    def write(self, jobs: Sequence[Job], cancelled: Callable[[], bool], error: OSError | None = None) -> dict[Path, dict[str, File]]:
        """Write this rank's part of states into folders with temporary names.

        :param error: why this rank has nothing to write: the save fails for all.
        :return: on rank 0, when all ranks have written theirs, for each state of which all have a part the files of all; elsewhere nothing.
        :raises OSError: on rank 0 when any rank could not write, or has gone.
        :raises Exception: on the rank where it occurs, once the others know of it.
        """
        self._count += 1
        key, mine = f"save {self._count}", dict[str, dict[str, File]]()
        fault: Exception | None = error
        try:
            if not self.rank and jobs:
                check_free_bytes(jobs[0][0].parent, sum(divided.bytes + content_bytes(divided.rest) for _, divided in jobs))
            for path, divided in jobs:
                mine[path.name] = write_own(self._folder(path), divided, self.rank, self.size, cancelled)
        except Exception as found:  # the others hear of it, whatever it is
            fault = found
        if self.rank:
            self._messages.post(key, json.dumps({"files": mine, "error": _described(fault)}))
            if fault is not None and not isinstance(fault, OSError):
                raise fault
            return {}
        try:
            theirs = self._wait(key, cancelled)  # also after an error here: nobody is at work in the folder when it is removed
        finally:
            if fault is not None:
                raise fault
        return {path: {name: file for files in (mine, *theirs) for name, file in files[path.name].items()}
                for path, _ in jobs if all(path.name in files for files in theirs)}

    def clear(self, paths: Sequence[Path]) -> None:
        """Remove what is left of the folders with temporary names of states; on rank 0."""
        if not self.rank:
            for path in paths:
                shutil.rmtree(self._folder(path), ignore_errors=True)

    def _folder(self, path: Path) -> Path:
        """Return the temporary name of a state."""
        return temporary_name(path, self._messages.main_pid)

    def _wait(self, key: str, cancelled: Callable[[], bool]) -> list[dict[str, dict[str, File]]]:
        """Wait until all other ranks have written, and return their files; raises OSError when one could not."""
        while (texts := self._messages.posted(key)) is None:
            if cancelled():
                raise Cancelled(errno.ECANCELED, "cancelled")
            time.sleep(_POLL)
        found = [json.loads(text) for text in texts]
        for rank, said in enumerate(found, 1):
            if said["error"] is not None:
                raise OSError(said["error"][0], f"rank {rank}: {said['error'][1]}")
        return [said["files"] for said in found]


def _described(error: Exception | None) -> tuple[int | None, str] | None:
    """Say what went wrong, for rank 0."""
    if isinstance(error, OSError):
        return error.errno, error.strerror or str(error)
    return None if error is None else (errno.EIO, f"{type(error).__name__}: {error}")
