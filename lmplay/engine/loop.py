"""Training: the stages of a plan in order, and when to record, validate, save and stop.  Engine floor.

Read this file first: :func:`train` is the program.
"""
from __future__ import annotations

from ..cadence import Every
from ..errors import TrainingError
from . import checkpoint
from .record import Recorder, write_all
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
        while not work.is_over() and (batch := work.next_batch()) is not None:
            before = run.runner.samples
            result = work.step(batch)
            if result is None:
                break  # interrupted: nothing has been updated, and the batch will be done again
            recorder.record(batch, result)
            if run.interrupt.requested():
                break
            if validating.due(before, run.runner.samples):
                with recorder.pause():
                    work.validate()
            if saving.due(before, run.runner.samples):
                with recorder.pause():
                    save(run, stage.name)
        recorder.flush()
        if run.interrupt.requested():
            return _stop(run, stage.name)
        work.finish()
        _insist(save(run, stage.name))
        run.report.end_stage(run, work)
    run.report.done(run)
    return 0


def save(run: Run, stage: str) -> bool:
    """Write the checkpoint and the statistics that belong to it.

    :param run: between two steps, everything recorded.
    :param stage: the stage at work.
    :return: False when it could not be written; the file before it is whole then, and the report has said why.
    """
    try:
        checkpoint.save(run.path, run.components, stage)
        write_all(run)
    except OSError as error:
        run.report.save_failed(run.path, error)
        return False
    run.report.saved(run.path)
    return True


def _stop(run: Run, stage: str) -> int:
    """Save and end on request."""
    _insist(save(run, stage))
    run.report.stopped(run)
    assert run.interrupt.exit_code is not None
    return run.interrupt.exit_code


def _insist(saved: bool) -> None:
    """Fail the run when a save that it ends with has failed."""
    if not saved:
        raise TrainingError("the state could not be saved; the last checkpoint is whole, and the same command goes on from it.")
