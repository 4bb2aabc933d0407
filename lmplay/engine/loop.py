"""Training: the stages of a plan in order, and when to record, validate, save and stop.  Engine floor.

Read this file first: :func:`train` is the program.
"""
from __future__ import annotations

import math
import time

from torch import nn

from ..cadence import Every
from ..data.batcher import Batch
from ..errors import LmplayError, TrainingError, Unavailable
from ..plan.curriculum import StageState
from ..plan.schema import Stage
from . import checkpoint
from .interrupt import AGAIN, Stopped
from .record import Recorder, try_to_write_stats
from .run import Run
from .stagework import StageWork
from .weights import save_weights


def train(run: Run) -> int:
    """Follow the plan from where it is to its end, or to a request to stop.

    :param run: an open run.
    :return: the exit code: 0 when the plan is complete, else that of the request; the state is saved in both cases.
    :raises TrainingError: when training cannot go on; the last checkpoint is whole.
    """
    saving, validating = Every(run.settings.save_interval), Every(run.settings.validation_interval)
    run.report.banner(run)
    for stage, state in run.curriculum.remaining():
        work = _start(run, stage, state)
        if work is None:
            return _end(run)
        recorder = Recorder(run, work)
        run.report.start_stage(run, work)
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
        if run.interrupt.requested() or not work.finish():
            return _stop(run, stage.name)
        _insist(save(run, stage.name))
        run.report.end_stage(run, work)
    run.report.done(run, save_weights(run.settings, {"state_args": run.model.state_args(), "state": run.model.state()}))
    return 0


def save(run: Run, stage: str) -> bool:
    """Write the statistics, then the checkpoint that they belong to: killed in between, the run does the steps again, and no file is missing.

    :param run: between two steps, everything recorded.
    :param stage: the stage at work.
    :return: False when the checkpoint could not be written; the file before it is whole then, and the report has said why.
    :raises TrainingError: when the weights are not finite: a good checkpoint is never replaced by a ruined one.
    """
    if not math.isfinite(float(nn.utils.get_total_norm(run.model.module.parameters()))):
        raise TrainingError("the weights are not finite any more; the last checkpoint is whole. A lower --lr or --grad-clip 1 may help.")
    started = time.monotonic()
    try_to_write_stats(run)
    try:
        run.best.write(run.path, stage, run.stage_settings[stage].patience is not None)
        checkpoint.save(run.path, run.components, stage)
    except OSError as error:
        run.report.save_failed(run.path, error)
        return False
    run.interrupt.save_seconds = time.monotonic() - started
    run.report.saved(run.path)
    return True


def _start(run: Run, stage: Stage, state: StageState) -> StageWork | None:
    """Begin a stage; None on a request to stop: all that has been done is saved."""
    try:
        with run.interrupt.at_once():
            return StageWork(run, stage, state)
    except Stopped:
        return None


def _next_batch(run: Run, work: StageWork, recorder: Recorder) -> Batch | None:
    """Give the next batch; if the data fails (a damaged row, a hub gone away), save what has been done and let the error go on."""
    try:
        with run.interrupt.at_once():
            return work.next_batch()
    except Stopped:
        return None  # the position is that after the last step, however far the reading has gone
    except LmplayError:
        recorder.flush()
        save(run, work.stage.name)
        raise


def _validate(run: Run, work: StageWork, recorder: Recorder) -> None:
    """Do the validation that is due, if one is, and keep the best state; if its data has gone away, save: the run that goes on does it."""
    if not work.state.validation_due:
        return
    with recorder.pause():
        try:
            if work.validate():
                run.best.keep(run.components)
        except Unavailable:
            save(run, work.stage.name)
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
    _insist(save(run, stage))
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
