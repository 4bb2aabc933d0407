"""Trackers and callbacks (`--track`, `--callback`) are told of each event of a run once.  Report floor, no torch."""
from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..stats.figures import Progress, SourceLoss, columns_of
from ..stats.histories import NO_SOURCES, History
from ..stats.totals import ModelStats
from ..track.callback import Callbacks, RunInfo

_DRAWING_SECONDS = 120.0  # that drawing the plots at the end may take

Figures = dict[str, Any]


class Notifier:
    """Calls the callbacks of a run, in the main thread, with the figures that the statistics files hold.

    It also keeps what these files do not: a validation at the end of a stage shares a row with a regular one at the same step, and callbacks hear both.
    """

    def __init__(self, callbacks: Callbacks | None = None):
        self._callbacks = callbacks or Callbacks()
        self.identity = uuid4().hex[:12]
        self._stats = ModelStats()  # the run's: which figures are declared
        self._newest: Figures | None = None  # the newest regular validation
        self._apart: dict[str, list[Figures]] = {"validation": [], "final_validation": []}  # those at the ends of stages
        self._noted: queue.SimpleQueue[tuple[str, Figures]] = queue.SimpleQueue()

    @property
    def wants_pictures(self) -> bool:
        """Whether a callback wants the plots at the end."""
        return any(member.wants_pictures for member in self._callbacks.members.values())

    def know(self, stats: ModelStats) -> None:
        """Take the declared figures from the run's statistics, where nobody is told of its start: on other ranks than the first."""
        self._stats = stats

    def start(self, name: str, folder: Path, settings: dict[str, Any], plan: dict[str, Any], stats: ModelStats, by_stage: Sequence[ModelStats],
              samples: list[Figures]) -> None:
        """Say that a run begins or continues, and give what it has done so far.

        :param name: the model file's, without its suffix.
        :param folder: where statistics go.
        :param settings: the resolved ones.
        :param by_stage: the statistics of its stages, which have the losses by source.
        :param samples: the completions so far (see :meth:`samples`).
        """
        self._stats = stats
        if not self._callbacks.members:
            return
        finals = list(self._apart["final_validation"])  # a copy: callbacks may read it in another thread
        ends = {figures["step"] for figures in finals}
        validations = _past(stats.validate, [part.validate for part in by_stage], self._names("validate"))
        regular = [row for row in validations if row["step"] not in ends] + self._apart["validation"]
        sets = [{"set": name, **row} for name, history in stats.sets.items() for row in _rows(history, self._names("validate"))]
        past = {"train": _past(stats.train, [part.train for part in by_stage], self._names("train")),
                "validation": sorted(regular, key=lambda row: row["step"]), "final_validation": finals, "samples": samples,
                "evaluation": sorted(sets, key=lambda row: row["step"])}
        self._callbacks.start(RunInfo(name, self.identity, folder, settings, plan, stats.totals["total_train_steps"], past))

    def train(self, progress: Progress, sums: Mapping[str, float], sources: Mapping[str, SourceLoss] = NO_SOURCES) -> None:
        """Say that a step has been done; the arguments are those of :meth:`lmplay.stats.totals.ModelStats.add_train`."""
        if self._callbacks.members:
            self._call_noted()
            self._callbacks.train(self._row("train", progress, sums, sources))

    def validation(self, progress: Progress, sums: Mapping[str, float], final: bool, sources: Mapping[str, SourceLoss] = NO_SOURCES) -> None:
        """Say that a validation has been done; see :meth:`train`."""
        figures = self._row("validate", progress, sums, sources)
        if not final:
            self._newest = figures
        else:
            self._apart["final_validation"].append(figures)
            if self._newest is not None and self._newest["step"] == figures["step"]:
                self._apart["validation"].append(self._newest)
        self._call_noted()
        self._callbacks.validation(figures, final)

    def evaluation(self, name: str, progress: Progress, sums: Mapping[str, float]) -> None:
        """Say that a set has been evaluated; see :meth:`train`."""
        self._call_noted()
        self._callbacks.evaluation({"set": name, **self._row("validate", progress, sums, NO_SOURCES)})

    def samples(self, rows: list[Figures]) -> None:
        """Give the completions of a step; see :class:`lmplay.track.callback.Callback`."""
        self._call_noted()
        self._callbacks.samples(rows)

    def event(self, kind: str, progress: Progress, stage: str | None) -> None:
        """Give an event; see :class:`lmplay.track.callback.Callback`."""
        self._call_noted()
        self._callbacks.event(kind, _location(progress, stage))

    def event_elsewhere(self, kind: str, progress: Progress, stage: str | None) -> None:
        """Note an event in another thread: callbacks hear of it in the main thread, before the next call."""
        self._noted.put((kind, _location(progress, stage)))

    def end(self, status: str, draw: Callable[[], Sequence[Path]]) -> None:
        """Say that the run ends ("done", "stopped" or "failed"); `draw` draws the plots."""
        if self._callbacks.members:
            self._call_noted()
            self._callbacks.end(status, list(draw()) if status == "done" and self.wants_pictures else [])

    def state(self) -> dict[str, Any]:
        """Return what is needed to go on, as plain values, which depend on the clock and a random identity."""
        return {"identity": self.identity, "newest": self._newest, "apart": {kind: list(rows) for kind, rows in self._apart.items()},
                "states": self._callbacks.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a `state`."""
        self.identity, self._newest = state["identity"], state["newest"]
        self._apart = {kind: list(rows) for kind, rows in state["apart"].items()}
        self._callbacks.restore(state["states"])

    def begin_another(self) -> None:
        """Get a new identity, for a run that continues from an earlier state: later steps that were told belong to the run before."""
        self.identity = uuid4().hex[:12]

    def _call_noted(self) -> None:
        """Give the events of other threads."""
        while not self._noted.empty():
            self._callbacks.event(*self._noted.get_nowait())

    def _names(self, kind: str) -> tuple[str, ...]:
        """Name the figures of training or validation that callbacks hear."""
        return columns_of(kind, self._stats.figures) + columns_of(kind, self._stats.figures, clock=True)

    def _row(self, kind: str, progress: Progress, sums: Mapping[str, float], sources: Mapping[str, SourceLoss]) -> Figures:
        """Make a row of the statistics files from a step or validation, with the losses by source."""
        history = History(figures=self._stats.figures)
        history.add(sources, **progress._asdict(), **sums)
        return _rows(history, self._names(kind))[0] | {_loss_of(source): history.source_losses(source)[0] for source in history.sources}


def draw_plots(folder: Path, name: str, say: Callable[[str], None]) -> list[Path]:
    """Draw the statistics of run `name` in another process, and return the pictures; a failure is a warning only."""
    command = [sys.executable, "-m", "lmplay.plotstats", "--out-dir", str(folder), "--models", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DRAWING_SECONDS, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"WARNING: the plots could not be drawn ({error}).")
        return []
    if done.returncode:
        say(f"WARNING: the plots could not be drawn: {done.stderr.strip()}")
    whole = [folder / f"{name}_{kind}_stats.png" for kind in ("train", "validate")]
    return [picture for picture in whole if picture.exists()] + sorted(folder.glob(f"{escape(name)}_step_*_stats.png"))


def _rows(history: History, names: Sequence[str]) -> list[Figures]:
    """List the rows of a history as the statistics files have them."""
    columns = history.columns()
    return [dict(zip(names, values, strict=True)) for values in zip(*(columns[name] for name in names), strict=True)]


def _past(history: History, by_stage: Sequence[History], names: Sequence[str]) -> list[Figures]:
    """List the rows of a history with the losses by source; rows that only a stage's history has hold nothing else."""
    rows = {row["step"]: row for row in _rows(history, names)}
    for part in by_stage:
        for source in part.sources:
            for step, loss in zip(part.rows["step"], part.source_losses(source), strict=True):
                if loss is not None:
                    rows.setdefault(step, {**dict.fromkeys(names), "step": step})[_loss_of(source)] = loss
    return [rows[step] for step in sorted(rows)]


def _location(progress: Progress, stage: str | None) -> Figures:
    """Make the figures of an event."""
    return {"step": progress.step, "samples": progress.samples, "tokens": progress.tokens, "stage": stage}


def _loss_of(source: str) -> str:
    """Name the figure of a source's loss."""
    return f"source/{source}/loss"
