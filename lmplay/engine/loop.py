"""Training: the stages of a plan in order, and when to record, validate, save and stop.  Engine floor.

Read this file first: :func:`train` is the program.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from ..cadence import Every
from ..data.batcher import Batch
from ..errors import LmplayError, TrainingError, Unavailable
from ..stats.modelstats import add_save
from . import checkpoint, generations
from .record import Recorder, try_to_write_stats
from .run import Run
from .stagework import StageWork


def train(run: Run) -> int:
    """Follow the plan from where it is to its end, or to a request to stop.

    :param run: an open run.
    :return: the exit code: 0 when the plan is complete, else that of the request; the state is saved in both cases.
    :raises TrainingError: when training cannot go on; the last checkpoint is whole.
    """
    saving, validating = Every(run.settings.save_interval), Every(run.settings.validation_interval)
    run.report.banner(run)
    for stage, state in run.curriculum.remaining():
        work = StageWork(run, stage, state)
        recorder = Recorder(run, work)
        run.report.start_stage(run, work)
        while not work.is_over() and (batch := _next_batch(run, work, recorder, validating)) is not None:
            before = run.runner.samples
            result = work.step(batch)
            if result is None:
                break  # interrupted: nothing has been updated, and the batch will be done again
            recorder.record(batch, result)
            # What is due after a step is done before a request to stop is heard: the run that goes on would not do it.
            if validating.due(before, run.runner.samples):
                with recorder.pause():
                    work.validate()
            if saving.due(before, run.runner.samples):
                with recorder.pause():
                    save(run, stage.name)
            if run.interrupt.requested():
                break
        recorder.flush()
        if run.interrupt.requested() or not _finish(run, work):
            return _stop(run, stage.name)
        if not save(run, stage.name, wait=True) and run.curriculum.is_done:
            _insist(False)
        run.report.end_stage(run, work)
    run.report.done(run)
    return 0


def save(run: Run, stage: str, wait: bool = False) -> bool:
    """Copy the state, and have the copy written while the training goes on; if the one before is still being written, wait for that first.

    :param run: between two steps, everything recorded.
    :param stage: the stage at work.
    :param wait: wait until it has been written.
    :return: False when it could not be written; the file before it is whole then, and the report has said why. True if nobody has waited.
    :raises TrainingError: when the weights are not finite: a good checkpoint is never replaced by a ruined one.
    """
    if not math.isfinite(float(nn.utils.get_total_norm(run.model.module.parameters()))):
        raise TrainingError("the weights are not finite any more; the last checkpoint is whole. A lower --lr or --grad-clip 1 may help.")
    if not run.saver.wait() and run.runner.saves:
        run.runner.saves.pop()  # the one before has failed
    saved_at = {unit: run.runner.stats.totals[f"total_train_{unit}"] for unit in ("samples", "tokens")} | {"seconds": run.runner.seconds}
    add_save(run.runner.saves, saved_at)
    figures = {name: value for name, value in vars(run.runner).items() if name not in ("settings", "runtime")}
    content, figures = run.saver.copy((checkpoint.content_of(run.components), figures))
    then = replace(run, runner=replace(run.runner, **figures))
    run.saver.start(lambda cancelled: _write(then, content, stage, cancelled))
    return run.saver.wait() if wait else True


def _write(run: Run, content: dict[str, Any], stage: str, cancelled: Callable[[], bool]) -> bool:
    """Write the statistics, then the checkpoint that they belong to: killed in between, the run does the steps again, and no file is missing.

    :param run: as it was when the content was copied.
    """
    try_to_write_stats(run)
    try:
        generations.save(run.path, content, stage, run.settings.keep, cancelled)
    except checkpoint.Cancelled:
        return False
    except OSError as error:
        run.report.save_failed(run.path, error)
        return False
    run.report.saved(run.path)
    return True


def _next_batch(run: Run, work: StageWork, recorder: Recorder, validating: Every) -> Batch | None:
    """Give the next batch; if the data fails (a damaged row, a hub gone away), save what has been done and let the error go on."""
    try:
        batch = work.next_batch()
        if batch is not None and validating.due(run.runner.samples, run.runner.samples + len(batch.samples)):
            work.fetch_validation()  # now: failing after the step it would be too late to save, as the run that goes on would not validate
        return batch
    except LmplayError:
        recorder.flush()
        save(run, work.stage.name, wait=True)
        raise


def _finish(run: Run, work: StageWork) -> bool:
    """End a stage; if what its last validation reads has gone away, save what has been done and let the error go on."""
    try:
        return work.finish()
    except Unavailable:
        save(run, work.stage.name, wait=True)
        raise


def _stop(run: Run, stage: str) -> int:
    """Save and end on request."""
    _insist(save(run, stage, wait=True))
    run.report.stopped(run)
    assert run.interrupt.exit_code is not None
    return run.interrupt.exit_code


def _insist(saved: bool) -> None:
    """Fail the run when a save that it ends with has failed."""
    if not saved:
        raise TrainingError("the state could not be saved; the last checkpoint is whole, and the same command goes on from it.")
