"""Training: the stages of a plan in order, and when to record, validate, save and stop.  Engine floor.

Read this file first: :func:`train` is the program.
"""
from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ..checkpoints.weights import save_weights
from ..errors import ElsewhereError, LmplayError, TrainingError, Unavailable, UserError
from .batches import TrainBatch
from .interrupt import AGAIN, Stopped
from .profile import StepProfile
from .record import Recorder
from .run import OpenStage, Run
from .save import SaveClock, keep_best, save, write_weights
from .settings_record import note_validations
from .stage import StageRunner
from .telling import run_end, run_start, stage_end, stage_start, stop


def train(run: Run) -> int:
    """Follow the plan from where it is to its end, or to a request to stop.

    :param run: an open run.
    :return: the exit code: 0 when the plan is complete, else that of the request; the state is saved in both cases.
    :raises TrainingError: when training cannot go on; the last checkpoint is intact.
    """
    run.report.banner(run_start(run))
    saves, profile = SaveClock(run), StepProfile(run)
    run.closing.callback(profile.close)
    saved = True
    for open_stage in run.stages.values():
        stage = _begin(run, open_stage)
        if stage is None:
            _insist(saved)
            return _end(run)
        recorder = Recorder(run, stage)
        run.report.start_stage(stage_start(run, stage))
        note_validations(run, stage.name, stage.held_out, stage.validations)
        run.notifier.event("stage", run.record.progress, stage.name)
        _validate(run, stage, recorder)  # if the run was stopped in it
        while not stage.ended_early and (batch := _next_batch(run, stage, recorder)) is not None:
            started = time.monotonic()
            with _saved_where_input_fails(run, stage, recorder):
                done = stage.step(batch)
            if done is None:
                break  # interrupted: nothing has been updated, and the batch will be done again
            recorder.record(*done)
            run.interrupt.step_seconds = time.monotonic() - started
            profile.step_done()
            stage.note_progress()
            _validate(run, stage, recorder)
            _check_limits(run)
            if run.interrupt.stopping():
                break
            if _save_is_due(run, saves):
                with recorder.pause():
                    saves.save(stage.name)
        recorder.flush()
        if run.interrupt.stopping() or not _finish(run, stage):
            _insist(save(run, stage.name, wait=True))
            return _end(run)
        saved = saves.save(stage.name, wait=True)
        _insist(saved or not run.curriculum.is_done)  # else the next stage's save tries again
        run.report.end_stage(stage_end(run, stage))
        run.notifier.event("stage done", run.record.progress, stage.name)
    takes_part = run.is_main or run.runtime.ranks.saves_together
    weights = save_weights(run.settings, partial(write_weights, run), run.optimizers) if takes_part else None
    run.report.done(run_end(run), weights)
    return 0


def _begin(run: Run, open_stage: OpenStage) -> StageRunner | None:
    """Begin a stage; None on a request to stop: all that has been done is saved."""
    def begin() -> StageRunner:
        with run.interrupt.at_once():
            stage = StageRunner(run, open_stage)
            stage.begin()
            return stage

    try:
        return run.accord.alike(begin)
    except Stopped:
        return None


def _next_batch(run: Run, stage: StageRunner, recorder: Recorder) -> TrainBatch | None:
    """Give the next batch; if the data fails (a damaged row, a hub gone away, a disk), save what has been done and re-raise."""
    try:
        with run.interrupt.at_once():
            batch = stage.next_batch()
        if batch is not None or stage.batches.end is not None:
            return batch
    except Stopped:
        pass  # the position is that after the last step, however far the reading has gone
    except Exception as error:
        recorder.flush()
        run.accord.announce(error)
        if run.done_here("total_train_steps"):
            _insist(save(run, stage.name, wait=True))
        raise
    with _saved_where_input_fails(run, stage, recorder):
        _agree(run)
    return None


def _agree(run: Run) -> None:
    """Stop all ranks at the request that has come to this one."""
    with run.interrupt.until_stopped():
        run.accord.alike(lambda: None)


@contextmanager
def _saved_where_input_fails(run: Run, stage: StageRunner, recorder: Recorder) -> Iterator[None]:
    """If another rank fails, or goes, in this block, or a reward does, save what has been done before it and re-raise."""
    try:
        yield
    except LmplayError as error:
        if isinstance(error, UserError) or run.accord.failed_elsewhere(error):
            recorder.flush()
            if run.done_here("total_train_steps"):
                _insist(save(run, stage.name, wait=True))
        raise


def _validate(run: Run, stage: StageRunner, recorder: Recorder) -> None:
    """Do the validation and the evaluations that are due, and keep the best state; on an error of their data, or of another rank, save: the run
    that goes on does them again."""
    due = stage.state.evaluation_due
    if not stage.state.validation_due and not due:
        return
    with recorder.pause():
        try:
            if stage.state.validation_due and stage.validate():
                _keep_best(run, stage)
            stage.evaluate(due)
        except (Unavailable, UserError, ElsewhereError):
            _insist(save(run, stage.name, wait=True))
            raise


def _keep_best(run: Run, stage: StageRunner) -> None:
    """Keep the state as the best one of the stage."""
    keep_best(run, stage.name if stage.settings.patience is not None else None)


def _save_is_due(run: Run, saves: SaveClock) -> bool:
    """Tell whether it is time to save; where all ranks have to help, rank 0 tells them."""
    def due() -> bool:
        return (run.is_main and run.interrupt.take_save()) or saves.due()

    if not run.runtime.ranks.saves_together:
        return due()
    is_due = False
    with run.interrupt.until_stopped():
        is_due = run.accord.from_main(due)
    return is_due


def _finish(run: Run, stage: StageRunner) -> bool:
    """End a stage; if the data of its last validation fails, save what has been done and re-raise."""
    try:
        return stage.finish(partial(_keep_best, run, stage))
    except (Unavailable, UserError, ElsewhereError):
        if stage.stats.totals["total_train_steps"]:
            _insist(save(run, stage.name, wait=True))
        raise


def _check_limits(run: Run) -> None:
    """Ask to stop when this run has done what it was told to do; a request that came before has its own exit code."""
    if run.interrupt.exit_code is not None and not run.interrupt.shared:
        return
    for flag, limit, total in (("--max-steps", run.settings.max_steps, "total_train_steps"),
                               ("--max-samples-this-run", run.settings.max_samples_this_run, "total_train_samples")):
        if 0 < limit <= run.done_here(total):
            if run.interrupt.exit_code is None:
                run.interrupt.request(AGAIN, f"{flag} {limit}")
            _agree(run)


def _end(run: Run) -> int:
    """End on request, with nothing left to save."""
    run.report.stopped(stop(run), run_end(run), run.settings)
    assert run.interrupt.exit_code is not None
    return run.interrupt.exit_code


def _insist(saved: bool) -> None:
    """Fail the run when a save that it ends with has failed."""
    if not saved:
        raise TrainingError("the state could not be saved; the last checkpoint is intact, and the same command continues from it.")
