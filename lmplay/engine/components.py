"""The components of a checkpoint that hold tensors or running figures; the fifth, the curriculum, is on the plan floor.  Engine floor."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..device.memory import peak_memory
from ..device.random_state import random_state, restore_random_state
from ..device.runtime import Runtime
from ..errors import UserError
from ..optim.optimizers import load_state
from ..optim.schedules import lr_factor
from ..plan.settings import Settings, StageSettings
from ..report.callbacks import Notifier
from ..stats.figures import Progress
from ..stats.histories import ModelStats
from ..tokenizer import Tokenizer


@dataclass
class ModelComponent:
    """The raw model, and all that is needed to build it again: experiment, arguments, tokenizer."""

    experiment: str
    args: dict[str, Any]
    tokenizer: Tokenizer
    module: nn.Module
    name: str = "model"

    def state_args(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {"experiment": self.experiment, "args": dict(self.args), "tokenizer": self.tokenizer.spec}

    def state(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return self.module.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`lmplay.component.Component`; keys and shapes must match exactly."""
        own = self.module.state_dict()
        faults = [f"model: '{key}' is missing in the file." for key in own if key not in state]
        faults += [f"model: '{key}' is in the file and not in experiment {self.experiment}." for key in state if key not in own]
        faults += [f"model: '{key}' is {list(state[key].shape)} in the file and {list(own[key].shape)} in experiment {self.experiment}."
                   for key in own if key in state and state[key].shape != own[key].shape]
        if faults:
            raise UserError(*faults)
        self.module.load_state_dict(state)


@dataclass
class RunnerComponent:
    """What belongs to the run: statistics, random states, the gradient scaler, the clock."""

    settings: Settings
    runtime: Runtime
    stats: ModelStats = field(default_factory=ModelStats)
    step_stats: dict[str, ModelStats] = field(default_factory=dict)
    stages: list[dict[str, Any]] = field(default_factory=list)  # what the statistics say of each stage begun: name, from, to, floors
    resumes: list[dict[str, float]] = field(default_factory=list)
    saves: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    room: dict[str, Any] = field(default_factory=dict)  # with `--mini-batch-size auto`: the `tokens` of a mini-batch, and what that was found `of`
    skipped_in_row: int = 0  # batches passed over up to here, because loss or gradient was not finite
    overflows_in_row: int = 0  # steps up to here of which the gradient scaler said so
    peak_memory: int | None = None  # bytes; None = not known
    listeners: Notifier = field(default_factory=Notifier)
    name: str = "runner"

    @property
    def samples(self) -> int:
        """All samples trained on so far."""
        return self.stats.totals["total_train_samples"]

    def note_memory(self) -> None:
        """Take note of the most memory that has been in use."""
        peaks = [peak for peak in (self.peak_memory, peak_memory(self.runtime.device)) if peak is not None]
        self.peak_memory = max(peaks, default=None)

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        totals = self.stats.totals
        return Progress(totals["total_train_steps"], totals["total_train_samples"], totals["total_train_tokens"], self.seconds)

    @property
    def stage(self) -> str | None:
        """The name of the newest stage that has begun."""
        return self.stages[-1]["name"] if self.stages else None

    def state_args(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {"settings": self.settings.to_json()}

    def state(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {"stats": self.stats.state(), "step_stats": {name: stats.state() for name, stats in self.step_stats.items()},
                "stages": [dict(stage) for stage in self.stages], "random": random_state(), "scaler": self.runtime.scaler.state_dict(),
                "room": dict(self.room), "in_row": {"skipped": self.skipped_in_row, "overflows": self.overflows_in_row},
                "clock": {"seconds": self.seconds, "resumes": [dict(resume) for resume in self.resumes],
                          "saves": [dict(save) for save in self.saves], "peak_memory": self.peak_memory, "listeners": self.listeners.state()}}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`lmplay.component.Component`."""
        self.stats.restore(state["stats"])
        for name, stats in state["step_stats"].items():
            self.step_stats[name] = ModelStats()
            self.step_stats[name].restore(stats)
        self.stages = [dict(stage) for stage in state["stages"]]
        self.seconds, self.resumes = state["clock"]["seconds"], list(state["clock"]["resumes"])
        self.saves = list(state["clock"].get("saves", ()))  # files of version 0.1 have neither this nor the next three
        self.peak_memory = state["clock"].get("peak_memory")
        if "listeners" in state["clock"]:
            self.listeners.restore(state["clock"]["listeners"])
        self.room = dict(state.get("room", {}))
        in_row = state.get("in_row", {})
        self.skipped_in_row, self.overflows_in_row = in_row.get("skipped", 0), in_row.get("overflows", 0)
        if state["scaler"] and self.runtime.scaler.is_enabled():
            self.runtime.scaler.load_state_dict(state["scaler"])
        restore_random_state(state["random"])


@dataclass
class OptimizersComponent:
    """The optimizer."""

    kind: str
    optimizer: torch.optim.Optimizer
    name: str = "optimizers"

    def state_args(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {"main": {"optimizer": self.kind}}

    def state(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {"main": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`lmplay.component.Component`."""
        try:
            load_state(self.optimizer, state["main"])
        except (ValueError, KeyError) as error:
            raise UserError(f"optimizers: the file's state does not fit ({error}); --ignore-optimizer goes on with a fresh one.") from None


@dataclass
class LrSchedulersComponent:
    """The learning rate: a function of the steps and the progress of the stage, which are all of its state."""

    settings: Settings
    steps: int = 0
    progress: float | None = 0.0
    name: str = "lr_schedulers"

    def lr(self, stage: StageSettings) -> float:
        """Give the learning rate of the next step."""
        warmup_steps = 0 if self.settings.disable_optimizer_warmup else self.settings.optimizer_warmup_steps
        return stage.lr * lr_factor(stage.schedule, self.steps, self.progress, stage.min_fraction, warmup_steps, self.settings.optimizer_warmup_fraction)

    def advance(self, progress: float | None) -> None:
        """Take note of a step and of how much of the stage has been read for it."""
        self.steps += 1
        self.progress = progress

    def start_stage(self) -> None:
        """Begin a stage."""
        self.steps, self.progress = 0, 0.0

    def state_args(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {"main": {"warmup_steps": self.settings.optimizer_warmup_steps, "warmup_fraction": self.settings.optimizer_warmup_fraction,
                         "disabled": self.settings.disable_optimizer_warmup}}

    def state(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {"main": {"steps": self.steps, "progress": self.progress}}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`lmplay.component.Component`."""
        self.steps, self.progress = state["main"]["steps"], state["main"]["progress"]
