"""Messages on standard output (text, or a JSON object per line) and in NAME.log.  Report floor, no torch.

Neither may end a run: if the disk is full or the reader has gone away, training goes on, with one warning where that is possible.
"""
from __future__ import annotations

import json
import math
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import printable, tell
from ..files import check_is_file, no_link


class Console:
    """Prints and logs messages, from any thread.

    :param quiet: print only warnings, errors and what is always shown.
    :param as_json: print JSON objects: time, level, event, and the event's fields (without any, `text`).
    :param logs: keep a log file.
    """

    def __init__(self, quiet: bool = False, as_json: bool = False, logs: bool = True):
        self.bar: Any = None  # the progress line on the terminal, if there is one
        self._quiet, self._as_json = quiet, as_json
        self._said: list[str] | None = [] if logs else None  # lines until there is a log file; None when it cannot be written
        self._log: Path | None = None
        self._lock = threading.RLock()

    def say(self, text: str, event: str = "message", level: str = "info", shown: bool = True, always: bool = False, **fields: Any) -> None:
        """Print and log a message.

        :param text: one or more lines; may begin with an empty one.
        :param event: the kind of message, for programs.
        :param level: info, warning or error.
        :param shown: False = as text in the log file only.
        :param always: print it even when quiet.
        :param fields: the same facts, for programs.
        """
        text = "\n".join(map(printable, text.split("\n")))  # names of files and of stages may hold what moves the cursor
        with self._lock:
            self._write(text)
            if self._quiet and not always and level == "info":
                return
            if self._as_json:
                said = fields or {"text": text.strip("\n")}
                self._print(json.dumps({"time": _now(), "level": level, "event": event, **_finite(said)}, ensure_ascii=False, default=str))
            elif shown:
                self._print(text)

    def open_log(self, path: Path) -> None:
        """Append to a log file from here on; earlier messages are written too."""
        with self._lock:
            self._log, said = path, self._said or []
            self._append("".join(said))

    def _write(self, text: str) -> None:
        """Write to the log file, each line with the time."""
        stamp = _now()
        lines = "".join(f"{stamp}  {line}\n" for line in text.strip("\n").split("\n"))
        if self._log is not None:
            self._append(lines)
        elif self._said is not None:
            self._said.append(lines)

    def _append(self, lines: str) -> None:
        """Append to the log file; it is opened each time, so that it may be moved, and that a kill loses nothing."""
        if self._said is None or self._log is None:
            return
        try:
            check_is_file(self._log)
            with open(self._log, "ab", opener=no_link) as file:
                file.write(lines.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._said = None
            self.say(f"WARNING: {self._log} cannot be written ({error.strerror or error}); training goes on without it.", level="warning")

    def _print(self, text: str) -> None:
        """Print above the progress line."""
        if self.bar is not None:
            self.bar.clear()
        tell(text)
        if self.bar is not None:
            self.bar.refresh()


def _now() -> str:
    """Return the local time, with its difference from UTC."""
    return datetime.fromtimestamp(time.time()).astimezone().isoformat(timespec="seconds")


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite by None: JSON has no word for them."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
