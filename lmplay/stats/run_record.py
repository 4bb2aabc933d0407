"""The past of a run: its statistics and those of its stages, where it was resumed and saved, and its clock.  Stats floor, no torch."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from .figures import NATS, Mark, Progress, StageEntry, begin_entry, mark_of
from .totals import ModelStats, add_save
from .writing import read_stats, stats_files, write_stats


@dataclass
class RunRecord:
    """The part of a checkpoint from which the statistics files are written; plain values, so that a copy can be written while training goes on.

    `run` is a random id, drawn when the run begins and kept over all resumes; `model` is the model's name, its file's without suffix.
    """

    model: str = ""
    run: str = field(default_factory=lambda: uuid4().hex[:12])
    stats: ModelStats = field(default_factory=ModelStats)  # of the whole run
    stage_stats: dict[str, ModelStats] = field(default_factory=dict)
    stages: list[StageEntry] = field(default_factory=list)  # those that have begun, in order
    resumes: list[Mark] = field(default_factory=list)
    saves: list[Mark] = field(default_factory=list)
    seconds: float = 0.0  # of training, without validations and saves
    peak_memory: int | None = None  # the most bytes in use; None = unknown

    @property
    def progress(self) -> Progress:
        """How far the run is: steps, samples, tokens and seconds."""
        totals = self.stats.totals
        return Progress(totals["total_train_steps"], totals["total_train_samples"], totals["total_train_tokens"], self.seconds)

    def counts(self) -> dict[str, float]:
        """How far the run is, by the units of :class:`lmplay.cadence.Cadence`."""
        steps, samples, tokens, seconds = self.progress
        return {"steps": steps, "samples": samples, "tokens": tokens, "seconds": seconds}

    @property
    def stage(self) -> str | None:
        """The name of the newest stage that has begun."""
        return self.stages[-1]["name"] if self.stages else None

    def begin_stage(self, name: str, floors: Mapping[str, float | None], loss_unit: str = NATS) -> None:
        """Note that a stage begins here; its validations are of other samples than those before."""
        self.stats.judge_anew()
        self.stages.append(begin_entry(name, self.progress, floors["floor_nats_per_token"], floors["floor_bits_per_byte"], loss_unit))

    def reach(self) -> None:
        """Set the end of the current stage to the run's progress."""
        entry = self.stages[-1]
        _, entry["to_samples"], entry["to_tokens"], entry["to_seconds"] = self.progress

    def note_resume(self) -> None:
        """Note that the run is resumed here."""
        self.resumes.append(mark_of(self.progress))

    def note_save(self) -> None:
        """Note that the run is saved here."""
        add_save(self.saves, mark_of(self.progress))

    def note_memory(self, peak: int | None) -> None:
        """Note the most bytes in use up to here; None = unknown."""
        self.peak_memory = max((value for value in (self.peak_memory, peak) if value is not None), default=None)

    def write(self, folder: Path, experiment: str) -> None:
        """Write the statistics files of the run and of its newest stage into the output folder; raises OSError when they cannot be written."""
        self._write(folder, experiment, None)
        if self.stages:
            self._write(folder, experiment, self.stages[-1])

    def mend(self, folder: Path, experiment: str) -> None:
        """Write the statistics files that are missing, cut off or of another run; raises OSError when they cannot be written."""
        for entry in (None, *self.stages) if self.stages else ():
            found = [read_stats(path).get("clock", {"run": ""}) for path in stats_files(folder, self.model, entry["name"] if entry is not None else None)]
            if any(clock.get("run", self.run) != self.run for clock in found):  # older files have no id
                self._write(folder, experiment, entry)

    def replaces(self, folder: Path, stages: Iterable[str]) -> list[str]:
        """List the ids of other runs whose statistics have the names of this run's; `stages` are those of the plan."""
        clocks = (read_stats(path).get("clock", {}) for stage in (None, *stages) for path in stats_files(folder, self.model, stage))
        return sorted({str(clock["run"]) for clock in clocks if "run" in clock} - {self.run})

    def state(self) -> dict[str, Any]:
        """Return everything as plain values, under the names that files of all versions have."""
        return {"stats": self.stats.state(), "step_stats": {name: stats.state() for name, stats in self.stage_stats.items()},
                "stages": [dict(stage) for stage in self.stages],
                "clock": {"seconds": self.seconds, "resumes": [dict(mark) for mark in self.resumes], "saves": [dict(mark) for mark in self.saves],
                          "peak_memory": self.peak_memory, "run": self.run, "model": self.model}}  # as with the clock, each run has its own

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a `state`."""
        self.stats.restore(state["stats"])
        for name, stats in state["step_stats"].items():
            self.stage_stats[name] = ModelStats()
            self.stage_stats[name].restore(stats)
        self.stages = [stage.copy() for stage in state["stages"]]
        clock = state["clock"]
        self.run = clock.get("run", self.run)  # files of version 0.1 have none, and get one now
        self.seconds, self.resumes = clock["seconds"], list(clock["resumes"])
        self.saves, self.peak_memory = list(clock.get("saves", ())), clock.get("peak_memory")  # files of version 0.1 have neither

    def _write(self, folder: Path, experiment: str, entry: StageEntry | None) -> None:
        """Write the two files of the run (entry None), or of a stage, with the marks within it."""
        if entry is None:
            write_stats(folder, self.model, experiment, None, self.stats, self.stages, self.resumes, self.stage_stats, self.saves, self.peak_memory, self.run)
            return
        resumes, saves = ([mark for mark in marks if entry["from_samples"] <= mark["samples"] <= entry["to_samples"]]
                          for marks in (self.resumes, self.saves))
        write_stats(folder, self.model, experiment, entry["name"], self.stage_stats[entry["name"]], [entry], resumes, saves=saves,
                    peak_memory=self.peak_memory, run=self.run)
