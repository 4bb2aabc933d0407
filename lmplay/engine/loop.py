"""Training: the stages of a plan in order, and when to record, validate, save and stop.  Engine floor.

Read this file first: :func:`train` is the program.
"""
from __future__ import annotations

import math
import time
from dataclasses import replace

from torch import nn

from ..cadence import Every
from ..checkpoints.format import content_of
from ..checkpoints.weights import save_weights
from ..data.batcher import Batch
from ..errors import TrainingError, Unavailable, UserError
from ..plan.curriculum import StageState
from ..plan.schema import Stage
from ..stats.histories import add_save
from .components import RunnerComponent
from .interrupt import AGAIN, Stopped
from .opening import Run
from .record import Recorder, try_to_write_stats
from .stage import StageRunner

# A disk that is full for so many saves in a row stays full.
MOST_FAILED_SAVES = 3


def train(run: Run) -> int:
    """Follow the plan from where it is to its end, or to a request to stop.

    :param run: an open run.
    :return: the exit code: 0 when the plan is complete, else that of the request; the state is saved in both cases.
    :raises TrainingError: when training cannot go on; the last checkpoint is whole.
    """
    saving, validating = Every(run.settings.save_interval), Every(run.settings.validation_interval)
    run.report.banner(run)
    saved = True
    for stage, state in run.curriculum.remaining():
        work = _start(run, stage, state)
        if work is None:
            _insist(saved)
            return _end(run)
        recorder = Recorder(run, work)
        run.report.start_stage(run, work)
        run.runner.listeners.event("stage", run.runner.progress, run.runner.stage)
        _validate(run, work, recorder)  # if the run was stopped in it
        while not work.is_over() and (batch := _next_batch(run, work, recorder)) is not None:
            before, started = run.runner.samples, time.monotonic()
            result = work.step(batch)
            if result is None:
                break  # interrupted: nothing has been updated, and the batch will be done again
            recorder.record(batch, result)
            run.interrupt.step_seconds = time.monotonic() - started
            state.validation_due = validating.due(before, run.runner.samples)
            _validate(run, work, recorder)
            _mind_limits(run)
            if run.interrupt.requested():
                break
            if run.interrupt.take_save() or saving.due(before, run.runner.samples):
                with recorder.pause():
                    save(run, stage.name)
        recorder.flush()
        if run.interrupt.requested() or not _finish(run, work):
            return _stop(run, stage.name)
        saved = save(run, stage.name, wait=True)
        _insist(saved or not run.curriculum.is_done)  # the save of the next stage may have more luck
        run.report.end_stage(run, work)
        run.runner.listeners.event("stage done", run.runner.progress, run.runner.stage)
    run.report.done(run, save_weights(run.settings, {"state_args": run.model.state_args(), "state": run.model.state()}))
    return 0


def save(run: Run, stage: str, wait: bool = False) -> bool:
    """Copy the state, and have the copy written while the training goes on; if the one before is still being written, wait for that first.

    :param run: between two steps, everything recorded.
    :param stage: the stage at work.
    :param wait: wait until it has been written.
    :return: False when it could not be written; the file before it is whole then, and the report has said why. True if nobody has waited.
    :raises TrainingError: when the weights are not finite: a good checkpoint is never replaced by a ruined one; when too many saves in a row have failed.
    """
    if not math.isfinite(float(nn.utils.get_total_norm(run.model.module.parameters()))):
        raise TrainingError("the weights are not finite any more; the last checkpoint is whole. A lower --lr or --grad-clip 1 may help.")
    if not run.saver.wait() and run.runner.saves:
        run.runner.saves.pop()  # the one before has failed
    if run.saver.failed >= MOST_FAILED_SAVES:
        raise TrainingError(f"the last {run.saver.failed} saves have all failed: what is trained from here on would be lost. The last checkpoint is whole; "
                            "make room for the next, and the same command goes on from it.")
    saved_at = {unit: run.runner.stats.totals[f"total_train_{unit}"] for unit in ("samples", "tokens")} | {"seconds": run.runner.seconds}
    add_save(run.runner.saves, saved_at)
    run.runner.note_memory()
    figures = {name: value for name, value in vars(run.runner).items() if name not in ("settings", "runtime", "listeners")}
    run.saver.save(content_of(run.components), stage, figures, before=lambda copied: try_to_write_stats(replace(run, runner=replace(run.runner, **copied))),
                   saved=lambda copied, seconds: _tell_saved(run, replace(run.runner, **copied), seconds),
                   failed=lambda error: run.report.save_failed(run.path, error))
    return run.saver.wait() if wait else True


def _tell_saved(run: Run, then: RunnerComponent, seconds: float) -> None:
    """Say that a state has been saved.

    :param then: the figures of that state.
    """
    run.interrupt.save_seconds = seconds
    run.report.saved(run.path)
    run.runner.listeners.event_elsewhere("saved", then.progress, then.stage)


def _start(run: Run, stage: Stage, state: StageState) -> StageRunner | None:
    """Begin a stage; None on a request to stop: all that has been done is saved."""
    try:
        with run.interrupt.at_once():
            return StageRunner(run, stage, state)
    except Stopped:
        return None


def _next_batch(run: Run, work: StageRunner, recorder: Recorder) -> Batch | None:
    """Give the next batch; if the data fails (a damaged row, a hub gone away, a disk), save what has been done and let the error go on."""
    try:
        with run.interrupt.at_once():
            return work.next_batch()
    except Stopped:
        return None  # the position is that after the last step, however far the reading has gone
    except Exception:
        recorder.flush()
        _insist(save(run, work.stage.name, wait=True))
        raise


def _validate(run: Run, work: StageRunner, recorder: Recorder) -> None:
    """Do the validation that is due, if one is, and keep the best state; if its data fails, save: the run that goes on does it."""
    if not work.state.validation_due:
        return
    with recorder.pause():
        try:
            if work.validate():
                run.saver.keep_best(content_of(run.components), work.stage.name if work.settings.patience is not None else None)
        except (Unavailable, UserError):
            _insist(save(run, work.stage.name, wait=True))
            raise


def _finish(run: Run, work: StageRunner) -> bool:
    """End a stage; if the data of its last validation fails, save what has been done and let the error go on."""
    try:
        return work.finish()
    except (Unavailable, UserError):
        if work.stats.totals["total_train_steps"]:
            _insist(save(run, work.stage.name, wait=True))
        raise


def _mind_limits(run: Run) -> None:
    """Ask to stop when this run has done what it was told to do."""
    totals, settings = run.runner.stats.totals, run.settings
    for name, limit, done in (("--max-steps", settings.max_steps, "total_train_steps"),
                              ("--max-samples-this-run", settings.max_samples_this_run, "total_train_samples")):
        if 0 < limit <= totals[done] - run.began_at[done]:
            run.interrupt.request(AGAIN, f"{name} {limit}")


def _stop(run: Run, stage: str) -> int:
    """Save and end on request."""
    _insist(save(run, stage, wait=True))
    return _end(run)


def _end(run: Run) -> int:
    """End on request, with nothing left to save."""
    run.report.stopped(run)
    assert run.interrupt.exit_code is not None
    return run.interrupt.exit_code


def _insist(saved: bool) -> None:
    """Fail the run when a save that it ends with has failed."""
    if not saved:
        raise TrainingError("the state could not be saved; the last checkpoint is whole, and the same command goes on from it.")
