"""A tracker in its own thread: whatever it does, training goes on.  Stats floor."""
from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .callback import Callback, Forwarding

# With more calls waiting than this, a slow tracker is given up.
_MOST_WAITING = 10_000
# Seconds that a tracker may take to finish at the end of the run, and when the run is stopped: then a user waits.
_PATIENCE, _PATIENCE_STOPPED = 60.0, 20.0


class Background(Forwarding):
    """Calls a tracker from a thread, in order; one that fails or hangs is given up, with one warning."""

    def __init__(self, name: str, tracker: Callback, say: Callable[[str], None], patience: float = _PATIENCE, most_waiting: int = _MOST_WAITING):
        """
        :param name: of the tracker, for the warning.
        :param say: warns the user.
        :param patience: seconds to wait at the end.
        :param most_waiting: calls that may wait.
        """
        self._name, self._tracker, self._say, self._patience = name, tracker, say, patience
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(most_waiting)
        self._given_up = False
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self.wants_pictures = tracker.wants_pictures
        self._thread.start()

    def end(self, status: str, pictures: list[Path]) -> None:
        """Wait until everything has been written, but no longer than `patience`."""
        super().end(status, pictures)
        self._put(None)
        patience = self._patience if status == "done" else min(self._patience, _PATIENCE_STOPPED)
        self._thread.join(0 if self._given_up else patience)
        if self._thread.is_alive():
            self._give_up(f"has not finished within {patience:g} s")

    def _call(self, method: str, *arguments: Any) -> None:
        """Put a call of the tracker into the queue."""
        self._put(lambda: getattr(self._tracker, method)(*arguments))

    def _put(self, call: Callable[[], None] | None) -> None:
        """Put a call, or the end (None), into the queue."""
        if self._given_up:
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._give_up("hangs")

    def _work(self) -> None:
        """Make the calls, in the thread."""
        while (call := self._calls.get()) is not None and not self._given_up:
            try:
                call()
            except Exception as error:
                first = next(iter(str(error).splitlines()), "")
                self._give_up(f"failed ({type(error).__name__}: {first})")
                return

    def _give_up(self, reason: str) -> None:
        """Call the tracker no more."""
        if not self._given_up:
            self._given_up = True
            self._say(f"WARNING: --track {self._name} {reason}; training goes on without it.")
