"""Saving a run: what is saved, and what is said of it.  Engine floor; :mod:`lmplay.checkpoints.saver` does the work."""
from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..cadence import AUTO, AUTO_SAVES, SAVE_SHARE, Cadence, intervals
from ..checkpoints.best import best_file
from ..checkpoints.format import content_of
from ..checkpoints.weights import make_folder_of, refused_by_name, weights_content, write_alone
from ..device.memory import has_room, peak_memory
from ..errors import TrainingError
from ..exp.folding import is_folded
from ..modules.sharded import total_norm
from ..stats.run_record import RunRecord
from .adapting import bring_back_base
from .record import try_to_write_stats
from .run import Run

# A disk that is full for this many saves in a row stays full.
MOST_FAILED_SAVES = 3


class SaveClock:
    """Tells when it is time to save, by the counts and by the time since the last save."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic):
        self._run, self._clock = run, clock
        self._bounded = run.settings.save_interval == AUTO
        self.every = intervals(run.settings.save_interval, AUTO_SAVES)
        self._pause = 0.0  # what the last save took of the training itself
        self._reset()

    def due(self) -> bool:
        """Tell whether it is time."""
        run = self._run
        seconds = {"seconds": (self._pause + run.interrupt.save_seconds) / SAVE_SHARE} if self._bounded else {}
        return Cadence(self.every, seconds).due(self._last, {**run.record.counts(), "seconds": self._clock() - self._since})

    def save(self, stage: str, wait: bool = False) -> bool:
        """Save, see :func:`save`."""
        started = self._clock()
        saved = save(self._run, stage, wait)
        if not wait:
            self._pause = self._clock() - started
        self._reset()
        return saved

    def _reset(self) -> None:
        """Begin to count anew."""
        self._since, self._last = self._clock(), {**self._run.record.counts(), "seconds": 0.0}


def save(run: Run, stage: str, wait: bool = False) -> bool:
    """Copy the state, and have the copy written while the training goes on; if the one before is still being written, wait for that first.

    :param run: between two steps, everything recorded.
    :param stage: the stage at work.
    :param wait: wait until it has been written.
    :return: False when it could not be written; the previous file is intact then, and the report has said why. True if nobody has waited, on other
        ranks than rank 0, which saves for all, and where they have parts of the state and not all are there to give them.
    :raises TrainingError: when the weights are not finite: a good checkpoint is never replaced by a ruined one; when too many saves in a row have failed.
    """
    together = run.runtime.ranks.saves_together
    if not (run.is_main or together) or (together and not run.accord.can_save()):
        return True
    if not math.isfinite(float(total_norm(run.device_model.raw.parameters()))):
        raise TrainingError("the weights are not finite any more; the last checkpoint is intact. A lower --lr or --grad-clip 1 may help.")
    written = run.accord.gather(lambda: _check_saver(run))[0] if together else _check_saver(run)
    if not run.is_main:
        _help(run, written)
        return True
    bring_back_base(run)
    run.record.note_save()
    run.record.note_memory(peak_memory(run.runtime.device))
    run.saver.save(content_of(run.components), stage, run.record, before=lambda record: try_to_write_stats(run, record),
                   saved=lambda record, seconds: _tell_saved(run, record, seconds), failed=lambda error: run.report.save_failed(run.path, error))
    return run.saver.wait() if wait else True


def keep_best(run: Run, stage: str | None) -> None:
    """Keep the state as the best one so far.

    :param stage: the stage at work, if it may end early.
    """
    if run.is_main:
        try:
            run.saver.keep_best(content_of(run.components), stage, partial(has_room, run.runtime.device))
        except OSError as error:
            run.report.best_not_kept(best_file(run.path), error)
    elif run.saver.writes_folders:
        with suppress(OSError):  # no memory: then no rank writes it
            run.saver.keep_best(content_of((run.model, run.optimizers)), stage, partial(has_room, run.runtime.device))
    else:
        run.saver.send(content_of((run.model, run.optimizers)))


def write_weights(run: Run, target: Path) -> None:
    """Write the model alone: as a file, or where states are folders, as a folder, of which each rank writes its part.

    A model that is folded for use becomes a file in any case, for which rank 0 has all of it.

    :param run: all ranks that save together make this call.
    :raises UserError: when it cannot be written.
    """
    content: dict[str, Any] = {"state_args": run.model.state_args(), "state": run.model.state()}
    if run.saver.writes_folders and not is_folded(run.model.experiment):
        run.accord.alike(run.saver.wait)
        run.accord.alike(lambda: make_folder_of(target))
        run.accord.alike(lambda: _write_part(run, target, content))
    elif run.is_main:
        write_alone(target, run.saver.copied(content) if run.runtime.ranks.shards else content)
    else:
        run.saver.send(content)


def _write_part(run: Run, target: Path, content: dict[str, Any]) -> bool:
    """Write this rank's part of the model; True, or UserError where it or, on rank 0, another rank could not write."""
    with refused_by_name(target):
        run.saver.write_folder(target, weights_content(content))
    return True


def _help(run: Run, written: bool) -> None:
    """Do what rank 0 needs of the others for a save: it collects a file, and of a folder each writes its part; `written` tells of the save before."""
    content = content_of((run.model, run.optimizers))
    if run.saver.writes_folders:
        run.saver.save_part(content, written)
    else:
        run.saver.send(content)


def _check_saver(run: Run) -> bool:
    """Tell whether the save before has written its state; raises TrainingError when too many in a row have failed, and what a rank's own part has raised."""
    written = run.saver.wait()
    if not run.is_main:
        return True
    if not written and run.record.saves:
        run.record.saves.pop()  # the one before has failed
    if run.saver.failed >= MOST_FAILED_SAVES:
        raise TrainingError(f"the last {run.saver.failed} saves have all failed: what is trained from here on would be lost. The last checkpoint is intact; "
                            "free some space for the next, and the same command continues from it.")
    return written


def _tell_saved(run: Run, record: RunRecord, seconds: float) -> None:
    """Say that a state has been saved.

    :param record: of that state.
    :param seconds: that it took.
    """
    run.interrupt.save_seconds = seconds
    run.report.saved(run.path)
    run.notifier.event_elsewhere("saved", record.progress, record.stage)
