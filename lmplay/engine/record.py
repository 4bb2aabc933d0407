"""Taking note of steps: into the statistics at once on a CPU, one step late on a GPU, so that it never waits.  Engine floor."""
from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ..data.batcher import Batch
from ..stats.figures import Progress
from ..stats.writing import write_stats
from .evaluate import add_words
from .nonfinite import is_usable
from .opening import Run
from .stage import StageRunner
from .step import StepResult

# The statistics files are written this often (seconds), for those who plot while a run goes on; less often where that would take more than such a share.
_WRITE_SECONDS = 15.0
_WRITE_SHARE = 0.005


@dataclass
class _Pending:
    """A step whose numbers are on their way from the device."""

    batch: Batch
    progress: Progress
    figures: torch.Tensor  # loss sum, gradient norm, loss sum of each source where they are told apart; on the CPU once `arrived`
    predictions: dict[int, torch.Tensor]
    arrived: torch.cuda.Event | None
    known: dict[str, float]  # figures that need no waiting


class Recorder:
    """Adds each step of a stage to the statistics."""

    def __init__(self, run: Run, work: StageRunner):
        self._run, self._work = run, work
        self._pending: _Pending | None = None
        self._mark = now = time.perf_counter()
        self._next_write = now + _WRITE_SECONDS

    def record(self, batch: Batch, result: StepResult) -> None:
        """Take note of a step that has been done: counts now, its numbers when they have come."""
        now = time.perf_counter()
        known = {"step_seconds": now - self._mark, "data_seconds": self._work.data_seconds, "padding": float(result.padding), "places": float(result.places)}
        self._mark = now
        runner = self._run.runner
        runner.seconds += known["step_seconds"]
        counts = batch.counts()
        counts.update(padding=result.padding, places=result.places)
        known |= {"forced_cuts": float(counts["forced_cuts"]), "lr": self._work.lr}
        for stats in (runner.stats, self._work.stats):
            stats.count_step(len(batch.samples), batch.n_truth, counts)
        self._work.by_source.count(batch)
        progress = runner.progress
        entry = self._work.entry
        entry["to_samples"], entry["to_tokens"], entry["to_seconds"] = progress.samples, progress.tokens, progress.seconds
        before, self._pending = self._pending, self._send(batch, progress, result, known)
        if before is not None:
            self._add(before)
        if not runner.runtime.asynchronous:
            self.flush()
        if now > self._next_write and not self._run.saver.busy:
            with self.pause():
                try_to_write_stats(self._run)
            self._next_write = self._mark + max(_WRITE_SECONDS, (self._mark - now) / _WRITE_SHARE)

    def flush(self) -> None:
        """Wait for the numbers of the last step; afterwards the statistics say all that has been done."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._add(pending)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do something else than training: with all steps in the statistics, and the clock stopped."""
        self.flush()
        yield
        self._mark = time.perf_counter()

    def _send(self, batch: Batch, progress: Progress, result: StepResult, known: dict[str, float]) -> _Pending:
        """Start the copies to the CPU."""
        figures = torch.cat([torch.stack([result.loss_sum.float(), result.grad_norm.float()]), result.source_sums])
        if figures.device.type != "cuda":
            return _Pending(batch, progress, figures.cpu(), {number: ids.cpu() for number, ids in result.predictions.items()}, None, known)
        figures = figures.to("cpu", non_blocking=True)
        predictions = {number: ids.to("cpu", non_blocking=True) for number, ids in result.predictions.items()}
        arrived = torch.cuda.Event()
        arrived.record()
        return _Pending(batch, progress, figures, predictions, arrived, known)

    def _add(self, step: _Pending) -> None:
        """Add a step's numbers to the statistics and the progress line."""
        if step.arrived is not None:
            step.arrived.synchronize()
        loss_sum, grad_norm, *source_sums = step.figures.tolist()
        where = f"stage '{self._work.stage.name}', step {step.progress.step:,}"
        stage_stats, run_stats = self._work.stats, self._run.runner.stats
        if not is_usable(self._run, where, step.batch, self._work.data.names, loss_sum, grad_norm):
            for stats in (run_stats, stage_stats):
                stats.totals["skipped_batches"] += 1
                stats.add_train(step.progress, {**step.known, "steps": 1.0, "skipped_batches": 1.0})
            self._run.runner.listeners.train(step.progress, {**step.known, "steps": 1.0})
            self._run.runner.listeners.event("skipped batch", step.progress, self._work.stage.name)
            return
        pieces = step.batch.pieces
        sums: dict[str, float] = {}
        for number, ids in step.predictions.items():
            add_words(sums, pieces[number], ids.numpy())
        figures = {**step.known, **sums, "steps": 1.0, "loss_sum": loss_sum, "n_tokens": float(step.batch.n_truth)}
        if math.isfinite(grad_norm) and step.batch.n_truth:  # else the gradient scaler has skipped the step
            figures |= {"grad_norm_sum": grad_norm, "grad_norms": 1.0}
        sources = self._work.by_source.name(step.batch, source_sums)
        run_stats.add_train(step.progress, figures)
        stage_stats.add_train(step.progress, figures, sources)
        self._run.runner.listeners.train(step.progress, figures, sources)
        self._run.report.progress(self._run, self._work, step.batch, loss_sum, sources)


def try_to_write_stats(run: Run) -> None:
    """Write the statistics files of the run and of the stage at work; what cannot be written is reported and tried again later."""
    try:
        _write_stats(run)
    except OSError as error:
        run.report.save_failed(Path(run.settings.out_dir), error)


def _write_stats(run: Run) -> None:
    """Write the files, or raise OSError."""
    folder, runner = Path(run.settings.out_dir).expanduser(), run.runner
    runner.note_memory()
    write_stats(folder, run.path.stem, run.model.experiment, None, runner.stats, runner.stages, runner.resumes, runner.step_stats, runner.saves,
                runner.peak_memory)
    if runner.stages:
        entry = runner.stages[-1]
        resumes, saves = ([place for place in places if entry["from_samples"] <= place["samples"] <= entry["to_samples"]]
                          for places in (runner.resumes, runner.saves))
        write_stats(folder, run.path.stem, run.model.experiment, entry["name"], runner.step_stats[entry["name"]], [entry], resumes, saves=saves,
                    peak_memory=runner.peak_memory)
