"""What a run knows of its past: its statistics and those of its stages, where it was resumed and saved, and its clock.  Stats floor, no torch."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .figures import Progress
from .histories import ModelStats, add_save, write_stats


@dataclass
class RunRecord:
    """The part of a checkpoint from which the statistics files are written; plain values, so that a copy can be written while training goes on."""

    stats: ModelStats = field(default_factory=ModelStats)
    """Of the whole run."""
    stage_stats: dict[str, ModelStats] = field(default_factory=dict)
    stages: list[dict[str, Any]] = field(default_factory=list)
    """The stages that have begun, in order: name, done, floors, and from and to in samples, tokens and seconds."""
    resumes: list[dict[str, float]] = field(default_factory=list)
    saves: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    """Of training, without validations and saves."""
    peak_memory: int | None = None
    """The most bytes that were in use; None = unknown."""

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        totals = self.stats.totals
        return Progress(totals["total_train_steps"], totals["total_train_samples"], totals["total_train_tokens"], self.seconds)

    @property
    def stage(self) -> str | None:
        """The name of the newest stage that has begun."""
        return self.stages[-1]["name"] if self.stages else None

    def begin_stage(self, name: str, floors: Mapping[str, float | None]) -> None:
        """Note that a stage begins here."""
        here = self._here()
        self.stages.append({"name": name, "done": False, **{f"{end}_{unit}": value for end in ("from", "to") for unit, value in here.items()}, **floors})

    def reach(self) -> None:
        """Note that the stage at work has come as far as the run."""
        self.stages[-1].update({f"to_{unit}": value for unit, value in self._here().items()})

    def note_resume(self) -> None:
        """Note that the run goes on here."""
        self.resumes.append(self._here())

    def note_save(self) -> None:
        """Note that the run is saved here."""
        add_save(self.saves, self._here())

    def note_memory(self, peak: int | None) -> None:
        """Take note of the most bytes in use up to here."""
        self.peak_memory = max((value for value in (self.peak_memory, peak) if value is not None), default=None)

    def write(self, folder: Path, name: str, experiment: str) -> None:
        """Write the statistics files of the run, and of the newest stage.

        :param folder: the output folder.
        :param name: the run's.
        :param experiment: of its model.
        :raises OSError: when they cannot be written.
        """
        write_stats(folder, name, experiment, None, self.stats, self.stages, self.resumes, self.stage_stats, self.saves, self.peak_memory)
        if self.stages:
            entry = self.stages[-1]
            resumes, saves = ([mark for mark in marks if entry["from_samples"] <= mark["samples"] <= entry["to_samples"]]
                              for marks in (self.resumes, self.saves))
            write_stats(folder, name, experiment, entry["name"], self.stage_stats[entry["name"]], [entry], resumes, saves=saves,
                        peak_memory=self.peak_memory)

    def state(self) -> dict[str, Any]:
        """Give all of it as plain values; the names are those in files of all versions."""
        return {"stats": self.stats.state(), "step_stats": {name: stats.state() for name, stats in self.stage_stats.items()},
                "stages": [dict(stage) for stage in self.stages],
                "clock": {"seconds": self.seconds, "resumes": [dict(mark) for mark in self.resumes], "saves": [dict(mark) for mark in self.saves],
                          "peak_memory": self.peak_memory}}

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state` says."""
        self.stats.restore(state["stats"])
        for name, stats in state["step_stats"].items():
            self.stage_stats[name] = ModelStats()
            self.stage_stats[name].restore(stats)
        self.stages = [dict(stage) for stage in state["stages"]]
        clock = state["clock"]
        self.seconds, self.resumes = clock["seconds"], list(clock["resumes"])
        self.saves, self.peak_memory = list(clock.get("saves", ())), clock.get("peak_memory")  # files of version 0.1 have neither

    def _here(self) -> dict[str, float]:
        """Mark where the run is: samples, tokens, seconds."""
        return {unit: getattr(self.progress, unit) for unit in ("samples", "tokens", "seconds")}
