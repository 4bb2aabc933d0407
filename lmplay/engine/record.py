"""Taking note of steps: into the statistics at once on a CPU, one step late on a GPU, so that it never waits.  Engine floor."""
from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.profiler import record_function

from ..data.batcher import Batch
from ..device.arrival import Arrival
from ..device.memory import peak_memory
from ..report.records import StepDone
from ..stats.figures import Progress, values
from ..stats.run_record import RunRecord
from .batches import TrainBatch
from .evaluate import add_words
from .profile import PAUSE
from .run import Run
from .stage import StageRunner
from .step import StepSums

# The statistics files are written this often (seconds), for those who plot while a run goes on; less often where that would take more than this share.
_WRITE_SECONDS = 15.0
_WRITE_SHARE = 0.005


@dataclass
class _Pending:
    """A step whose numbers are on their way from the device."""

    batch: Batch
    progress: Progress
    arrival: Arrival
    """Of loss sum, gradient norm, lost updates, sums of the objective's own figures and loss sum of each source as one tensor; then of the predictions."""
    own: list[str]
    """The names of the objective's own figures."""
    count: float
    """What the loss sum goes over, of all updates."""
    updates: int
    predicted: list[int]
    """The numbers of the pieces in the batch that there are predictions of."""
    known: dict[str, float]
    """Figures that need no waiting."""


class Recorder:
    """Adds each step of a stage to the statistics."""

    def __init__(self, run: Run, stage: StageRunner):
        self._run, self._stage = run, stage
        self._pending: _Pending | None = None
        self._mark = now = time.perf_counter()
        self._next_write = now + _WRITE_SECONDS

    def record(self, batch: TrainBatch, sums: StepSums) -> None:
        """Take note of a step that has been done: counts now, its numbers when they have come."""
        now = time.perf_counter()
        step_seconds, self._mark = max(now - self._mark, 0.0), now  # a virtual machine's clock may go back, and the columns must not
        record, stage = self._run.record, self._stage
        record.seconds += step_seconds
        counts = batch.batch.counts()
        counts.update(padding=batch.n_padding, places=batch.n_slots)
        for stats in (record.stats, stage.stats):
            stats.count_step(len(batch.batch.samples), batch.batch.n_truth, counts)
        stage.by_source.count(batch.batch)
        record.reach()
        known = {"step_seconds": step_seconds, "data_seconds": stage.data_seconds, "padding": float(batch.n_padding), "places": float(batch.n_slots),
                 "forced_cuts": float(counts["forced_cuts"]), "bytes_lost": float(counts["bytes_lost"]), "lr": stage.lr, "steps": 1.0}
        before, self._pending = self._pending, self._send(batch.batch, sums, known)
        if before is not None:
            self._add(before)
        if not self._run.runtime.asynchronous:
            self.flush()
        if now > self._next_write and not self._run.saver.busy:
            with self.pause():
                try_to_write_stats(self._run, record)
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
        with record_function(PAUSE):
            yield
        self._mark = time.perf_counter()

    def _send(self, batch: Batch, sums: StepSums, known: dict[str, float]) -> _Pending:
        """Start the copies to the CPU."""
        lost = torch.zeros_like(sums.loss_sum) if sums.lost is None else sums.lost
        scalars = [sums.loss_sum, sums.grad_norm, lost, *sums.figures.values()]
        numbers = torch.cat([torch.stack([scalar.float() for scalar in scalars]), sums.source_sums])
        return _Pending(batch, self._run.record.progress, Arrival([numbers, *sums.predictions.values()]), list(sums.figures), sums.count, sums.updates,
                        list(sums.predictions), known)

    def _add(self, step: _Pending) -> None:
        """Add a step's numbers to the statistics and the progress line."""
        numbers, *predictions = step.arrival.wait()
        loss_sum, grad_norm, lost, *rest = numbers.tolist()
        sums, source_sums = rest[:len(step.own)], rest[len(step.own):]
        run, stage = self._run, self._stage
        where = f"stage '{stage.stage.name}', step {step.progress.step:,}"
        if not run.runner.nonfinite.is_usable(where, step.batch, stage.data.names, loss_sum, grad_norm, (int(lost), step.updates)):
            for stats in (run.record.stats, stage.stats):
                stats.totals["skipped_batches"] += 1
                stats.add_train(step.progress, {**step.known, "skipped_batches": 1.0})
            run.notifier.train(step.progress, step.known)
            run.notifier.event("skipped batch", step.progress, stage.stage.name)
            return
        kept = step.updates - lost or step.updates  # where all are lost, to a scaler, the sums are those of all
        count = step.count * kept / step.updates
        figures = {**step.known, "loss_sum": loss_sum, "n_tokens": float(count), **dict(zip(step.own, sums, strict=True))}
        for number, ids in zip(step.predicted, predictions, strict=True) if run.is_main else ():  # others may not have the text
            add_words(figures, step.batch.pieces[number], ids.numpy())
        if math.isfinite(grad_norm) and count:  # else the gradient scaler has skipped the step
            figures |= {"grad_norm_sum": grad_norm, "grad_norms": 1.0}
        sources = stage.by_source.name(step.batch, [one / kept for one in source_sums])
        run.record.stats.add_train(step.progress, figures)
        stage.stats.add_train(step.progress, figures, sources)
        run.notifier.train(step.progress, figures, sources)
        own = values((figure for figure in stage.objective.figures if figure.progress), figures)
        run.report.progress(StepDone(step.progress, stage.stats.totals["total_train_samples"], len(step.batch.samples), step.batch.progress, stage.lr, loss_sum,
                                     count, sources, own))


def try_to_write_stats(run: Run, record: RunRecord) -> None:
    """Write the statistics files of a run and of the stage at work; what cannot be written is reported and tried again later.

    :param record: the run's, or a copy of it.
    """
    if not run.is_main:
        return
    record.note_memory(peak_memory(run.runtime.device))
    try:
        record.write(run.out_dir, run.model.experiment)
    except OSError as error:
        run.report.save_failed(run.out_dir, error)
