"""Chat templates rendered in a process of their own, as a single expression of one may take all time or memory.  Data floor, no torch.

The process is this file, run by a plain interpreter. It is started when the first template is rendered, stays for the next, and ends when its input does: at
the latest with the program that started it.
"""
from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# The time that a template has for one sequence of roles; it needs a thousandth of that.
SECONDS = 5
# What it may take of memory, beyond what the libraries need, and write.
_BYTES, _CHARACTERS = 2**29, 10**6
_REASON_CHARACTERS = 300


class NotRendered(Exception):
    """A template refuses what it was given, or takes too much; the message is the reason."""


class _Renderer:
    """The process, as seen from the program that starts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: dict[str, Any]) -> str:
        """See :func:`render`."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self.end()
            process = self._process = self._process or _start()
            answer, timed_out = _exchange(process, json.dumps(question).encode() + b"\n")
            if timed_out or not answer:
                self.end()
                raise NotRendered(f"it takes more than {SECONDS} s" if timed_out else "the process that renders it has died")
        found = json.loads(answer)
        if "written" not in found:
            raise NotRendered(found["reason"])
        return str(found["written"])

    def end(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    assert pipe is not None
                    pipe.close()


_renderer = _Renderer()
atexit.register(_renderer.end)


def render(template: str, messages: Sequence[Mapping[str, str]], **values: str | bool) -> str:
    """Render a chat template as `transformers` does, within limits of time, memory and length.

    :param template: in Jinja.
    :param messages: what it is given, each with `role` and `content`.
    :param values: the other values that it is given.
    :return: what it writes.
    :raises NotRendered: when it raises something, or is beyond the limits.
    """
    return _renderer.ask({"template": template, "messages": list(messages), "values": values})


def _exchange(process: subprocess.Popen[bytes], question: bytes) -> tuple[bytes, bool]:
    """Send a line and wait for the answer, a line too; tells whether the time has run out, after which the process is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    over: list[bool] = []

    def end() -> None:
        over.append(True)
        process.kill()

    clock = threading.Timer(SECONDS, end)
    clock.start()
    try:
        process.stdin.write(question)
        process.stdin.flush()
        return process.stdout.readline(), bool(over)
    except OSError:
        return b"", bool(over)
    finally:
        clock.cancel()
        clock.join()


def _start() -> subprocess.Popen[bytes]:
    """Start the process, and wait until it can render."""
    program = f"import sys; sys.path[:] = {[str(path) for path in sys.path]!r}; from {__name__} import main; main()"
    # What a terminal sends to its programs is not for this one.
    apart: dict[str, Any] = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)} if os.name == "nt" else {"start_new_session": True}
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, **apart)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def main() -> None:
    """Be the process: answer each line of the input, until it ends."""
    if hasattr(signal, "alarm"):  # the program that starts this one may ignore or block it
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    from transformers.utils.chat_template_utils import render_jinja_template

    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not look like an answer
    _limit_memory()
    output.write(b"\n")
    output.flush()
    for line in sys.stdin.buffer:
        question = json.loads(line)
        if hasattr(signal, "alarm"):
            signal.alarm(2 * SECONDS)  # in case nobody is left who would end it
        try:
            written = render_jinja_template([question["messages"]], chat_template=question["template"], **question["values"])[0][0]
            answer = {"written": written} if len(written) <= _CHARACTERS else {"reason": f"it writes more than {_CHARACTERS:,} characters"}
        except MemoryError:
            answer = {"reason": f"it takes more than {_BYTES >> 20} MiB of memory"}
        except Exception as error:  # a template is a program and may raise anything
            answer = {"reason": str(error).strip()[:_REASON_CHARACTERS] or type(error).__name__}
        output.write(json.dumps(answer).encode() + b"\n")
        output.flush()


def _limit_memory() -> None:
    """Limit the memory of this process to what it has and a little more, where the system can."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _BYTES, used + _BYTES))
