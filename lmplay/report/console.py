"""Where what is said goes: standard output (as text, or a JSON object a line) and NAME.log.  Engine floor, no torch.

Neither may end a run: a disk that is full, or a reader that has gone away, is told of once where that is possible, and training goes on.
"""
from __future__ import annotations

import json
import math
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import tell


class Console:
    """Says a thing once, wherever it is to be heard; may be called from any thread."""

    def __init__(self, quiet: bool = False, as_json: bool = False):
        """
        :param quiet: print only what is always shown.
        :param as_json: print JSON objects: time, level, event, and the fields that belong to it (else `text`).
        """
        self.bar: Any = None  # the progress line on the terminal, if there is one
        self._quiet, self._as_json = quiet, as_json
        self._said: list[str] | None = []  # lines until there is a log file; None once there is none any more
        self._log: Path | None = None
        self._lock = threading.RLock()

    def say(self, text: str, event: str = "message", level: str = "info", shown: bool = True, always: bool = False, **fields: Any) -> None:
        """Say something.

        :param text: a line or more; may begin with an empty one.
        :param event: what it is about, for programs.
        :param level: info, warning or error.
        :param shown: False = in the log file only (as JSON it is shown).
        :param always: even when quiet.
        :param fields: the same, for programs.
        """
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
        """Write to a log file from here on, behind what it has; what has been said so far is written too.

        :param path: the file.
        """
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
        """Append to the log file; opened anew each time, so that it may be moved away, and that nothing is lost by a kill."""
        if self._said is None or self._log is None:
            return
        try:
            with open(self._log, "ab") as file:
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
    """Give the local time, with its difference from UTC."""
    return datetime.fromtimestamp(time.time()).astimezone().isoformat(timespec="seconds")


def _finite(value: Any) -> Any:
    """Write what is no number as null: JSON has no other word for it."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
