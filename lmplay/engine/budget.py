"""The token budget of a mini-batch: as asked for, or, with `--mini-batch-size auto`, measured by steps, remembered, and halved when memory runs out.
Engine floor.
"""
from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.batcher import Batch
from ..device.memory import forget_peak, free_memory, is_out_of_memory, memory_in_use, memory_left, memory_there, peak_memory, wait_for
from ..device.random_state import random_state, restore_random_state, restore_torch_random_state, torch_random_state
from ..documents import read_json_or_yaml
from ..errors import TrainingError, UserError
from ..files import write_text
from ..objectives.base import Objective
from ..optim.set import OptimizerSet
from ..plan.names import DEFAULT_OBJECTIVE
from ..plan.settings import StageSettings
from .batches import Grouping, TrainBatch, pieces_to_time, whole_units
from .run import Run
from .step import train_step

FILE = "mini_batch_rooms.json"
"""Where token budgets are remembered, in the output folder; may be removed, and then they are measured again."""
# A budget of twice the tokens has to be this much faster.
GAIN = 1.03
# Steps that are timed for each budget, if the first of them takes less than this many seconds.
_TIMED, _SHORT_SECONDS = 3, 1.0
# Of the memory that is left no more than this share is asked for: too much ends the process on a CPU, and under Windows a GPU would borrow slow memory instead.
_SHARE = 0.8


class TokenBudget:
    """How many tokens a mini-batch of a stage may have."""

    def __init__(self, run: Run, stage: StageSettings, grouping: Grouping, objective: Objective):
        self._run, self._stage, self._grouping, self._objective = run, stage, grouping, objective
        self.is_measured = run.settings.mini_batch_size == "auto"
        self._borrower = ""

    @property
    def tokens(self) -> int:
        """The budget; 0 = mini-batches go by pieces."""
        return int(self._run.runner.token_budget["tokens"]) if self.is_measured else self._run.settings.token_budget(self._stage.context_len)

    def settle(self) -> None:
        """With `--mini-batch-size auto`, set the budget: from the checkpoint, from the file of earlier measurements, or by a measurement. What it depends on
        must not have changed.

        The model is in the state in which the stage trains it; nothing of it changes.
        """
        if not self.is_measured:
            return
        run, of = self._run, self._describe()
        if run.runner.token_budget.get("of") == of:
            return
        known = next((entry for entry in self._read() if entry["of"] == of), None)
        if known is not None:
            run.runner.token_budget = {"of": of, "tokens": known["tokens"]}
            run.report.say(f"mini-batches of at most {known['tokens']:,} tokens, as measured before ({self._path})")
            return
        speeds = measure(run, self._stage, self._grouping, self._objective)
        run.runner.token_budget = {"of": of, "tokens": _fastest(speeds) or self._stage.context_len}
        run.report.say(f"mini-batches of at most {self.tokens:,} tokens, the fastest of "
                       + (", ".join(f"{tokens:,} ({speed:,.0f} tokens/s)" for tokens, speed in speeds.items()) or "none that fit"))
        self._remember()

    def attempts(self, longest: int) -> Iterator[AbstractContextManager[int]]:
        """Yield an attempt; with `--mini-batch-size auto`, after an out-of-memory error another one with half of the budget.

        ``for attempt in budget.attempts(longest): with attempt as tokens: …``

        :param longest: the tokens of the longest piece, which a smaller budget would not split.
        :raises TrainingError: when memory runs out and smaller mini-batches were not asked for, or there are none.
        """
        run, random_before = self._run, torch_random_state()
        while True:
            before, failed = self.tokens, [False]
            yield self._attempt(before, longest, failed)
            if not failed[0]:
                return
            # here the error is gone, and with it what its frames held
            if run.saver.best_is_on_gpu:
                self._release_best(before, longest)
                mend = "the best state, which was kept on the GPU, is on the CPU now"
            else:
                run.runner.token_budget["tokens"] //= 2
                if not self._borrower:
                    self._remember()
                mend = f"from here on {self.tokens:,}"
            run.optimizers.zero_grad()
            restore_torch_random_state(random_before)
            free_memory(run.runtime.device)
            told = f" with {before:,} tokens in a mini-batch" if before else ""
            run.report.say(f"{self._who}out of memory{told}: {mend}; the current mini-batches are done again")

    def _release_best(self, tokens: int, longest: int) -> None:
        """Move the best state out of the way; raises TrainingError where that is not possible."""
        try:
            self._run.saver.release_best()
        except OSError as error:
            raise TrainingError(self._no_memory(tokens, longest, smallest=True)) from error

    @contextmanager
    def lent(self, borrower: str) -> Iterator[None]:
        """Let another model use the budget inside this block: where it is halved, that holds for this model alone and is not remembered; messages name it."""
        before = self._run.runner.token_budget
        self._run.runner.token_budget, self._borrower = {**before}, borrower
        try:
            yield
        finally:
            self._run.runner.token_budget, self._borrower = before, ""

    @contextmanager
    def _attempt(self, tokens: int, longest: int, failed: list[bool]) -> Iterator[int]:
        """Note that memory runs out where half of the budget may help; else say what may."""
        try:
            yield tokens
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            size = self._grouping.mini_batch_size
            smallest = tokens <= longest if tokens else size == 1
            if (smallest or not self.is_measured) and not self._run.saver.best_is_on_gpu:
                raise TrainingError(self._no_memory(tokens, longest, smallest)) from error
            failed[0] = True

    def _no_memory(self, tokens: int, longest: int, smallest: bool) -> str:
        """Say what may help when memory has run out."""
        context_len, size = self._stage.context_len, self._grouping.mini_batch_size
        told = f"{tokens:,} tokens" if self._run.settings.mini_batch_tokens else \
            f"one piece of up to {min(longest + 1, context_len)} tokens" if smallest else f"{size} pieces of up to {context_len} tokens"
        smaller = "" if smallest else "--mini-batch-size auto finds the size that fits, or give a smaller one (the result stays the same); then "
        other = "a smaller --context-len or another teacher" if self._borrower else "--activation-checkpointing on, a smaller --context-len or model"
        return f"{self._who}out of memory with {told} in a mini-batch; the last checkpoint is intact. What may help: {smaller}--amp, {other}."

    @property
    def _who(self) -> str:
        """Begin a message of another model than the run's."""
        return f"{self._borrower}: " if self._borrower else ""

    def _describe(self) -> dict[str, Any]:
        """List all that the best budget depends on, as JSON would give it back."""
        run, stage = self._run, self._stage
        settings, runtime, model = run.settings, run.runtime, run.model
        device = runtime.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} {platform.machine()}, {torch.get_num_threads()} threads"
        of = {"device": name, "memory_gib": round((memory_there(device) or 0) / 2**30), "torch": torch.__version__, "precision": runtime.precision,
              "matmul_precision": settings.matmul_precision,
              "compiled": [settings.compile_mode, settings.compile_backend, settings.activation_memory_budget] if settings.compile_model else None,
              "activation_checkpointing": settings.activation_checkpointing, "joined": self._grouping.packed, "tune_allocator": settings.tune_allocator,
              "optimizer": run.optimizers.kind, "model": model.experiment, "args": model.args, "vocabulary": model.tokenizer.vocab_size,
              "trained": sum(parameter.numel() for parameter in run.parameters() if parameter.requires_grad),
              "batch_size": stage.batch_size, "context_len": stage.context_len}
        if stage.objective != DEFAULT_OBJECTIVE:
            of["objective"] = stage.objective
        return dict(json.loads(json.dumps(of, default=str)))

    @property
    def _path(self) -> Path:
        """Where budgets are remembered."""
        return self._run.out_dir / FILE

    def _read(self) -> list[dict[str, Any]]:
        """Read what was measured before; a file that is missing, or is not one of ours, says nothing."""
        try:
            found = read_json_or_yaml(self._path, "file")
            return [entry for entry in found if isinstance(entry["tokens"], int) and entry["tokens"] > 0 and isinstance(entry["of"], dict)]
        except (UserError, TypeError, KeyError):
            return []

    def _remember(self) -> None:
        """Write the budget beside those of others; where that cannot be, it will be measured again."""
        mine = self._run.runner.token_budget
        entries = [mine, *(entry for entry in self._read() if entry["of"] != mine["of"])]
        try:
            write_text(self._path, json.dumps(entries, indent=1) + "\n")
        except OSError as error:
            self._run.report.say(f"WARNING: {self._path} could not be written ({error.strerror or error}): another run will measure again")


def measure(run: Run, stage: StageSettings, grouping: Grouping, objective: Objective) -> dict[int, float]:
    """Time forward and backward with full pieces of random tokens: one in a mini-batch, then twice as many, until that is hardly faster, does not fit, or
    is the whole batch. Afterwards everything is as before.

    :return: tokens/s for each budget (tokens) that fits, in order.
    """
    speeds: dict[int, float] = {}
    most = whole_units(stage.batch_size, objective)
    count, length, device = 2 if objective.reads_pairs else 1, stage.context_len, run.runtime.device
    run.record.note_memory(peak_memory(device))
    forget_peak(device)
    with _untouched(run):
        began_with, out_of_memory = memory_in_use(device), False
        while True:
            batch = _full_batch(run, count, grouping, objective)
            try:
                speed = count * length / _seconds(run, objective, batch, alone=count == most)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                out_of_memory = True
            if out_of_memory:
                return speeds
            slower = speed < GAIN * max(speeds.values(), default=0.0)
            speeds[count * length] = speed
            if slower or count >= most or not _twice_fits(device, began_with):
                return speeds
            count = min(2 * count, most)


def _fastest(speeds: dict[int, float]) -> int | None:
    """Choose the smallest budget from which on it gets hardly faster."""
    best: int | None = None
    for tokens, speed in speeds.items():
        if best is None or speed >= GAIN * speeds[best]:
            best = tokens
    return best


@contextmanager
def _untouched(run: Run) -> Iterator[None]:
    """Restore everything that a step changes except the weights, which are not updated: random numbers, buffers, gradients, scaler. Meanwhile the memory of
    the optimizers' state is taken."""
    module, runtime = run.device_model.raw, run.runtime
    random, scaler = random_state(), runtime.scaler.state_dict()
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    placeholder = run.optimizers.placeholder()
    try:
        yield
    finally:
        module.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        runtime.scaler.load_state_dict(scaler)
        restore_random_state(random)
        placeholder.clear()
        free_memory(runtime.device)


def _seconds(run: Run, objective: Objective, batch: TrainBatch, alone: bool) -> float:
    """Time forward and backward of a mini-batch, after one that warms up.

    :param alone: it is the only mini-batch of its step: gradients are dropped first, not added to.
    """
    model, nobody = run.device_model, OptimizerSet("none", {})

    def once() -> float:
        if alone:
            model.raw.zero_grad(set_to_none=True)
        wait_for(model.runtime.device)
        started = time.perf_counter()
        train_step(model, nobody, objective, batch, grad_clip=0.0, interrupted=lambda: False)
        wait_for(model.runtime.device)
        return time.perf_counter() - started

    once()
    seconds = once()
    return min(seconds, *(once() for _ in range(_TIMED))) if seconds < _SHORT_SECONDS else seconds


def _full_batch(run: Run, count: int, grouping: Grouping, objective: Objective) -> TrainBatch:
    """Make a batch of N pieces of random tokens that fill the context, in one mini-batch; drawn by a generator of its own."""
    length = grouping.context_len
    tokens = np.random.default_rng(0).integers(0, run.model.tokenizer.vocab_size, (count, length))
    pieces = pieces_to_time(tokens, objective)
    return TrainBatch(Batch(pieces, {}), grouping.alone().mini_batches(pieces, count * length), count * length, [], range(0))


def _twice_fits(device: torch.device, began_with: int | None) -> bool:
    """Tell whether a mini-batch of twice the size would fit, by the peak so far; True where nobody knows."""
    left, peak, now = memory_left(device), peak_memory(device), memory_in_use(device)
    if left is None or peak is None or now is None or began_with is None:
        return True
    return began_with + 2 * (peak - began_with) - now < _SHARE * left
