"""Rewards computed in a process of their own: functions of a plan are anybody's code, and a pattern may take all time.  Rewards floor, no torch.

The process is :func:`main`, run by a plain interpreter. It ends when its input does: at the latest with the program that started it. Each line of the input is
a list of texts to judge; there is a line of output for each text and reward, so that it is known which one takes too long.
"""
from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import UserError
from ..words import cut

# The time that an import has, and by default a text, in seconds.
_START_SECONDS, _SECONDS = 120.0, 10.0
# What the process waits longer than the program, which says what has taken too long.
_GRACE_SECONDS = 2.0
_SHOWN = 60  # characters of a text in a message
MOST = 1e30
"""The largest reward, so that float32 holds the sum of a batch."""


class Rewards:
    """The process, as seen from the program that starts it."""

    def __init__(self, specs: Sequence[Mapping[str, Any]]):
        """
        :param specs: a `name` each (of `lmplay.plan.names.REWARDS`, or ``module:function``), and perhaps `settings`, and `seconds`, the most that one text
            may take.
        """
        self._specs = specs
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start the process, unless it runs, and import what it needs.

        :raises UserError: when a function cannot be imported.
        """
        if self._process is not None:
            return
        program = f"import sys; sys.path[:] = {[str(path) for path in sys.path]!r}; from {__name__} import main; main()"
        # What a terminal sends to its programs is not for this one.
        apart: dict[str, Any] = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)} if os.name == "nt" else {"start_new_session": True}
        surroundings = {**os.environ, "PYTHONHASHSEED": "0"}  # a reward that goes through a set gives the same number in each run
        self._process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=surroundings, **apart)
        try:
            self._send(list(self._specs))
            for number in range(len(self._specs)):
                self._receive(number, _START_SECONDS, " to be imported", "")
        except BaseException:
            self.close()
            raise

    def judge(self, texts: Sequence[Mapping[str, str]], interrupted: Callable[[], bool] = lambda: False) -> list[list[float]] | None:
        """Judge texts.

        :param texts: `text`, `answer` and `prompt` of each.
        :param interrupted: asked before each text.
        :return: the rewards of each, in the order of the specs; None when interrupted.
        :raises UserError: when a reward raises something, takes too long, or is no number from -MOST to MOST.
        """
        self.open()
        try:
            self._send(list(texts))
            found = []
            for one in texts:
                if interrupted():
                    self.close()
                    return None
                where = f", for the text {_quoted(one['text'])} and the answer {_quoted(one['answer'])}"
                found.append([self._receive(number, float(spec.get("seconds", _SECONDS)), "", where) for number, spec in enumerate(self._specs)])
            return found
        except BaseException:  # what it would still say belongs to no question any more
            self.close()
            raise

    def close(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    assert pipe is not None
                    pipe.close()

    def _send(self, question: list[Any]) -> None:
        """Send a line; a process that has died is noticed where its answer is missing."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()

    def _receive(self, number: int, seconds: float, what: str, where: str) -> float:
        """Wait for one reward.

        :param number: of the spec.
        :param what: says what for, where it takes too long, and `where` which text is at fault, for messages.
        """
        process, over = self._process, threading.Event()
        assert process is not None
        assert process.stdout is not None

        def end() -> None:
            over.set()
            _kill(process)

        clock = threading.Timer(seconds, end)
        clock.daemon = True
        clock.start()
        try:
            line = process.stdout.readline()
        finally:
            clock.cancel()
        found = json.loads(line) if line.endswith(b"\n") else {"fault": f"takes more than {seconds:g} s{what}" if over.is_set() else "has ended its process"}
        if "fault" in found:
            count = f" ({number + 1} of {len(self._specs)})" if len(self._specs) > 1 else ""
            raise UserError(f"reward {self._specs[number]['name']}{count}: it {found['fault']}{where}. Fix it, and run the same command.")
        return float(found["reward"])


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process, and those that it has started: they would keep its output open."""
    if os.name != "nt":
        with suppress(ProcessLookupError, PermissionError):  # it has ended, and is waited for by nobody yet
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _end_after(seconds: float) -> None:
    """Let the process end after a time, also where the program that would end it is gone; 0 = never."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def main() -> None:
    """Be the process: import what the first line of the input names, and answer each further line, until the input ends."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints must not look like an answer
    sys.path.append(os.getcwd())
    specs, functions = json.loads(sys.stdin.buffer.readline()), []
    for spec in specs:
        found: dict[str, Any] = {"reward": 0.0}
        try:
            functions.append(_load(spec))
        except BaseException as error:  # a module can raise anything on import
            found = {"fault": f"cannot be imported ({_named(error)})"}
        _write(output, found)
    for line in sys.stdin.buffer:
        for one in json.loads(line):
            for spec, function in zip(specs, functions, strict=True):
                _end_after(float(spec.get("seconds", _SECONDS)) + _GRACE_SECONDS)
                _write(output, _judge(function, one))
                _end_after(0.0)


def _load(spec: Mapping[str, Any]) -> Callable[..., Any]:
    """Find a reward, and give it its settings."""
    from functools import partial
    from importlib.metadata import EntryPoint

    from .named import FUNCTIONS

    if spec["name"] in FUNCTIONS:
        function = partial(FUNCTIONS[spec["name"]], **spec.get("settings", {}))
        return lambda text, answer, prompt: function(text, answer)
    loaded: Callable[..., Any] = EntryPoint(spec["name"], spec["name"], "").load()
    if not callable(loaded):
        raise TypeError(f"it is {type(loaded).__name__}, not a function")
    return loaded


def _judge(function: Callable[..., Any], one: Mapping[str, str]) -> dict[str, Any]:
    """Compute a reward; what is wrong is the fault."""
    try:
        reward = function(text=one["text"], answer=one["answer"], prompt=one["prompt"])
    except BaseException as error:  # anybody's code may raise anything, SystemExit too
        return {"fault": f"raises {_named(error)}"}
    if not hasattr(type(reward), "__float__"):
        try:
            shown = cut(repr(reward), _SHOWN)
        except Exception:  # anybody's class
            shown = f"what is {type(reward).__name__}"
        return {"fault": f"returns {shown}, not a number"}
    try:
        value = float(reward)
    except Exception as error:
        return {"fault": f"returns what is no number ({_named(error)})"}
    if not math.isfinite(value):
        return {"fault": f"returns {value}, not a finite number"}
    return {"reward": value} if abs(value) <= MOST else {"fault": f"returns {value:g}, allowed: from {-MOST:g} to {MOST:g}"}


def _write(output: Any, found: Mapping[str, Any]) -> None:
    """Write a line of the output."""
    output.write(json.dumps(found).encode() + b"\n")
    output.flush()


def _named(error: BaseException) -> str:
    """Say what was raised, in one line."""
    try:
        said = " ".join(str(error).split())
    except Exception:  # anybody's class
        said = ""
    return f"{type(error).__name__}: {cut(said, 200)}" if said else type(error).__name__


def _quoted(text: str) -> str:
    """Show the beginning of a text in a message."""
    return json.dumps(cut(text, _SHOWN), ensure_ascii=False)
