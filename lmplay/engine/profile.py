"""`--profile`: a trace of a few steps, and a table of what they spend their time on.  Engine floor.

The trace is in the format that https://ui.perfetto.dev and chrome://tracing show.
"""
from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from ..paths import expanded

if TYPE_CHECKING:
    from .run import Run

# The first steps of a run make compiled code, buffers and the optimizer's state; the next ones are recorded.
_BEFORE, _RECORDED = 5, 5
DATA, PAUSE = "lmplay: wait for data", "lmplay: validate, save, write"
"""Names of ranges in a trace, for :func:`torch.profiler.record_function`."""
# What a range or an operator is, by its name. The outermost range counts; else the innermost operator that is known.
_RANGES = {"waiting for data": re.escape(DATA), "validations, saves, statistics": re.escape(PAUSE), "optimizer": r"Optimizer\.",
           "head and loss": "LinearCrossEntropy"}
_OPERATORS = {"attention": "scaled_?dot_?product|flash|attention",
              "matrix products": r"^aten::(add|b|badd)?mm(_out)?$|^aten::_scaled_mm|^mkldnn::|_linear|^aten::(linear|matmul)$",
              "generated code": "compiled|graph"}
_REST, _HOST = "other operators", "Python, and waiting for the device"
_OPERATORS_SHOWN = 8


class StepProfile:
    """Records steps of a run, where `--profile` asks for it."""

    def __init__(self, run: Run):
        self._run = run
        self._path = None if run.settings.profile is None or not run.is_main else expanded(run.settings.profile)
        self._steps = 0
        self._began = 0.0
        self._recording: profile | None = None

    def step_done(self) -> None:
        """Begin or end the recording where it is time for it."""
        if self._path is None:
            return
        self._steps += 1
        if self._steps == _BEFORE:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._run.runtime.device.type == "cuda" else [])]
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the library tells the terminal of its beginning and end
            self._synchronize()
            self._recording = profile(activities=activities, acc_events=True)
            self._recording.start()
            self._began = time.perf_counter()
        elif self._steps == _BEFORE + _RECORDED:
            self.close()

    def close(self) -> None:
        """End the recording, with the steps that there are."""
        if self._path is None:
            return
        path, self._path = self._path, None
        n_steps = self._steps - _BEFORE
        if self._recording is None or n_steps < 1:
            if self._recording is not None:
                self._recording.stop()
            self._run.report.say(f"--profile {path}: nothing was recorded; the first {_BEFORE} steps of a run are left out, and it ended before the next.")
            return
        self._synchronize()
        seconds = time.perf_counter() - self._began
        self._recording.stop()
        try:
            _write(self._recording, path)
        except (OSError, RuntimeError) as error:
            self._run.report.say(f"WARNING: --profile {path}: cannot be written ({getattr(error, 'strerror', None) or error}).")
        self._run.report.say(table(self._recording.events() or [], seconds, n_steps, self._run.runtime.device.type == "cuda", path))
        self._recording = None

    def _synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        if self._run.runtime.device.type != "cpu":
            torch.accelerator.synchronize(self._run.runtime.device)


def table(events: Iterable[Any], seconds: float, n_steps: int, on_gpu: bool, path: Path) -> str:
    """Say what recorded steps have spent their time on.

    :param events: of torch's profiler.
    :param seconds: from the beginning of the recording to its end.
    :param on_gpu: times are those of the GPU, and the rest is time in which it has had nothing to do; else those of the CPU.
    """
    parts: dict[str, float] = defaultdict(float)
    operators: dict[str, float] = defaultdict(float)
    for event in events:
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if spent > 0 and (on_gpu or not event.is_async):
            kind = kind_of(_names(event))
            parts[kind] += spent
            if kind not in (*_RANGES, _HOST) or kind == "head and loss":
                operators[event.name] += spent
    total = max(1e6 * seconds, sum(parts.values()))
    parts[_HOST] += total - sum(parts.values())
    lines = [f"{n_steps} steps, {total / 1e3 / n_steps:.1f} ms each; the trace is in {path} (https://ui.perfetto.dev shows it)",
             f"  {'ms a step':>10}  {'share':>5}"]
    lines += [f"  {time / 1e3 / n_steps:>10.2f}  {time / total:>5.0%}  {part}" for part, time in _largest(parts)]
    lines += ["  the operators with most of it", *(f"  {time / 1e3 / n_steps:>10.2f}  {time / total:>5.0%}  {name}"
                                                  for name, time in _largest(operators)[:_OPERATORS_SHOWN])]
    return "\n".join(lines)


def kind_of(names: list[str]) -> str:
    """Tell what an operator is a part of.

    :param names: those of the ranges and operators that it is in, the outermost first; the last one is its own.
    """
    for name in names:
        for kind, pattern in _RANGES.items():
            if re.search(pattern, name):
                return kind
    for name in reversed(names):
        for kind, pattern in _OPERATORS.items():
            if re.search(pattern, name, re.IGNORECASE):
                return kind
    return _REST


def _largest(times: dict[str, float]) -> list[tuple[str, float]]:
    """Sort names by their times, the largest first."""
    return sorted(times.items(), key=lambda one: -one[1])


def _names(event: Any) -> list[str]:
    """List the names of the ranges and operators that an event is in, the outermost first, and its own."""
    names = []
    while event is not None:
        names.append(event.name)
        event = event.cpu_parent
    return names[::-1]


def _write(recording: profile, path: Path) -> None:
    """Write the trace whole or not at all."""
    temporary = path.with_name(f".{os.getpid()}.{path.name}")  # the ending says whether it is packed
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        recording.export_chrome_trace(str(temporary))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
