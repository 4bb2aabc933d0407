"""`--mini-batch-size auto`: how many tokens a mini-batch has room for, found by measuring steps, and remembered.  Engine floor."""
from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.collate import MiniBatch, collate
from ..data.continuation import Piece
from ..data.samples import Sample
from ..data.sentences import Cut
from ..device.memory import free_memory, is_out_of_memory, memory_in_use, memory_left, memory_there, peak_memory, wait_for
from ..device.random_state import random_state, restore_random_state
from ..errors import UserError
from ..files import read_json_or_yaml, write_text
from ..optim.optimizers import STATE_COPIES
from ..plan.settings import StageSettings
from .step import train_step

if TYPE_CHECKING:
    from .opening import Run

FILE = "mini_batch_rooms.json"
"""Where what was found is remembered, in the output folder; may be removed, and then it is measured again."""
# So much faster a room of twice the tokens has to be.
GAIN = 1.03
# Mini-batches that are timed for each room, if the first of them takes less than so many seconds.
_TIMED, _SHORT_SECONDS = 3, 1.0
# Of the memory that is left on a CPU, where taking too much ends the process, no more than this share is asked for.
_SHARE = 0.8


def choose_room(run: Run, stage: StageSettings, joined: bool) -> None:
    """Settle how many tokens the mini-batches of a stage have room for: a run that goes on keeps what it had, else what was found before counts, else it is
    measured. What that depends on must not have changed.

    :param run: its model is in the state in which the stage trains it; nothing of it changes but `runner.room`.
    :param stage: what holds for the stage.
    :param joined: pieces go through the model one behind the other.
    """
    of = _describe(run, stage, joined)
    if run.runner.room.get("of") == of:
        return
    known = [entry for entry in _read(run) if entry["of"] == of]
    if known:
        run.report.say(f"mini-batches have room for {known[0]['tokens']:,} tokens, as measured before ({_path(run)})")
    speeds = {} if known else measure(run, stage, joined)
    run.runner.room = {"of": of, "tokens": known[0]["tokens"] if known else _fastest(speeds) or stage.context_len}
    if not known:
        run.report.say(f"mini-batches have room for {run.runner.room['tokens']:,} tokens, the fastest of "
                       + (", ".join(f"{tokens:,} ({speed:,.0f} tokens/s)" for tokens, speed in speeds.items()) or "none that fit"))
        _remember(run)


def halve_room(run: Run) -> None:
    """Go on with half of the room, and remember that."""
    run.runner.room["tokens"] //= 2
    _remember(run)


def measure(run: Run, stage: StageSettings, joined: bool) -> dict[int, float]:
    """Time forward and backward with full pieces of random tokens: one in a mini-batch, then twice as many, until that is hardly faster, does not fit, or
    is the whole batch. Afterwards everything is as before.

    :return: tokens/s for each room (tokens) that fits, in order.
    """
    speeds: dict[int, float] = {}
    count, length, device = 1, stage.context_len, run.runner.runtime.device
    with _untouched(run):
        began_with, out_of_memory = memory_in_use(device), False
        while True:
            mini_batch = _full(run, stage, count, joined)
            try:
                speed = count * length / _seconds(run, mini_batch, alone=count == stage.batch_size)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                out_of_memory = True
            if out_of_memory:
                return speeds
            slower = speed < GAIN * max(speeds.values(), default=0.0)
            speeds[count * length] = speed
            if slower or count >= stage.batch_size or not _twice_fits(device, began_with):
                return speeds
            count = min(2 * count, stage.batch_size)


def _fastest(speeds: dict[int, float]) -> int | None:
    """Choose the smallest room from which on it gets hardly faster."""
    best: int | None = None
    for tokens, speed in speeds.items():
        if best is None or speed >= GAIN * speeds[best]:
            best = tokens
    return best


def _describe(run: Run, stage: StageSettings, joined: bool) -> dict[str, Any]:
    """List all that the best room depends on, as JSON would give it back."""
    settings, runtime, model = run.settings, run.runner.runtime, run.model
    device = runtime.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} {platform.machine()}, {torch.get_num_threads()} threads"
    of = {"device": name, "memory_gib": round((memory_there(device) or 0) / 2**30), "torch": torch.__version__, "precision": runtime.precision,
          "matmul_precision": settings.matmul_precision,
          "compiled": [settings.compile_mode, settings.compile_backend, settings.activation_memory_budget] if settings.compile_model else None,
          "activation_checkpointing": settings.activation_checkpointing, "joined": joined, "tune_allocator": settings.tune_allocator,
          "optimizer": run.optimizers.kind, "model": model.experiment, "args": model.args, "vocabulary": model.tokenizer.vocab_size,
          "trained": sum(parameter.numel() for parameter in model.module.parameters() if parameter.requires_grad),
          "batch_size": stage.batch_size, "context_len": stage.context_len}
    return dict(json.loads(json.dumps(of, default=str)))


@contextmanager
def _untouched(run: Run) -> Iterator[None]:
    """Bring back all that a step changes beside the weights, which are not updated: random numbers, buffers, gradients, scaler. The optimizer's state is
    there meanwhile, or as much memory."""
    module, runtime, optimizer = run.model.module, run.runner.runtime, run.optimizers.optimizer
    random, scaler = random_state(), runtime.scaler.state_dict()
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad and not optimizer.state]
    ballast = [torch.ones_like(parameter) for parameter in trained for _ in range(STATE_COPIES[run.optimizers.kind])]
    try:
        yield
    finally:
        module.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        runtime.scaler.load_state_dict(scaler)
        restore_random_state(random)
        ballast.clear()
        free_memory(runtime.device)


class _Still(torch.optim.Optimizer):
    """An optimizer that changes nothing."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Do nothing."""


def _seconds(run: Run, mini_batch: MiniBatch, alone: bool) -> float:
    """Time forward and backward of a mini-batch, after one that warms up: with a gradient to add to, unless it is alone in its step."""
    runtime, raw = run.runner.runtime, run.model.module
    times: list[float] = []

    @contextmanager
    def timed() -> Iterator[None]:
        wait_for(runtime.device)
        started = time.perf_counter()
        yield
        wait_for(runtime.device)
        times.append(time.perf_counter() - started)

    def step(count: int) -> None:
        train_step(raw, run.wrapped, _Still(raw.parameters(), {}), runtime, [mini_batch] * count, grad_clip=0.0, watch=range(0), interrupted=lambda: False,
                   forward=timed)

    for _ in range(2 if alone else 1):
        step(1 if alone else 2)
    del times[0]
    if times[0] < _SHORT_SECONDS:
        for _ in range(_TIMED if alone else 1):
            step(1 if alone else _TIMED)
    return min(times)


def _full(run: Run, stage: StageSettings, count: int, joined: bool) -> MiniBatch:
    """Make a mini-batch of as many pieces of random tokens that fill the context, drawn beside the random numbers of the run."""
    tokens = np.random.default_rng(0).integers(0, run.model.tokenizer.vocab_size, (count, stage.context_len))
    pieces = [Piece(Sample("", ""), row, 1, "", Cut.END, 0, True, starts=row[:0], cuttable=row[:0]) for row in tokens]
    [mini_batch] = collate(pieces, count, run.runner.runtime.length_multiple, stage.context_len, 0, joined)
    return mini_batch


def _twice_fits(device: torch.device, began_with: int | None) -> bool:
    """Tell whether there is memory for twice as much as has been used on top of what it began with; where nobody knows, it is tried."""
    left, peak, now = memory_left(device), peak_memory(device), memory_in_use(device)
    if left is None or peak is None or now is None or began_with is None:
        return True
    return began_with + 2 * (peak - began_with) - now < _SHARE * left


def _path(run: Run) -> Path:
    """Say where rooms are remembered."""
    return Path(run.settings.out_dir).expanduser() / FILE


def _read(run: Run) -> list[dict[str, Any]]:
    """Read what was found; a file that is missing, or is not one of ours, says nothing."""
    try:
        found = read_json_or_yaml(_path(run), "file")
        return [entry for entry in found if isinstance(entry["tokens"], int) and entry["tokens"] > 0 and isinstance(entry["of"], dict)]
    except (UserError, TypeError, KeyError):
        return []


def _remember(run: Run) -> None:
    """Write the room of the run beside those of others; where that cannot be, it will be measured again."""
    entries = [run.runner.room, *(entry for entry in _read(run) if entry["of"] != run.runner.room["of"])]
    try:
        write_text(_path(run), json.dumps(entries, indent=1) + "\n")
    except OSError as error:
        run.report.say(f"WARNING: {_path(run)} could not be written ({error.strerror or error}): another run will measure again")
