"""A run as plain data: what :mod:`.opening` has opened and :mod:`.loop` trains.  Engine floor."""
from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoints.saver import Saver
from ..component import Component
from ..data.stage import StageData
from ..device.model import DeviceModel
from ..device.runtime import Runtime
from ..objectives.base import Objective
from ..optim.set import OptimizerSet
from ..paths import expanded
from ..plan.curriculum import Curriculum, StageState
from ..plan.schema import Stage
from ..plan.settings import Settings, StageSettings
from ..report.callbacks import Notifier
from ..report.completions import CompletionWriter
from ..report.report import Report
from ..stats.run_record import RunRecord
from .accord import Accord
from .components import LrSchedulersComponent, ModelComponent, RunnerComponent
from .interrupt import Interrupt


@dataclass(frozen=True)
class OpenStage:
    """A stage that is left: the plan's entry, its state, its settings, its open data and its objective."""

    stage: Stage
    state: StageState
    settings: StageSettings
    data: StageData
    objective: Objective


@dataclass
class Run:
    """All that training works on.

    `path` is the model file, whose stem is the run's name; `stages` are those that are left, in order; the five components of a checkpoint come next;
    `changes` say what is not as it was at the checkpoint, `began_at` are the totals there; `closing` ends what has to be ended with
    the run: first the saver, then the `threads` that make batches, then the lock. `settings_record` is what :mod:`.settings_record` writes.
    """

    settings: Settings
    path: Path
    stages: dict[str, OpenStage]
    curriculum: Curriculum
    model: ModelComponent
    runner: RunnerComponent
    optimizers: OptimizerSet
    lr_schedulers: LrSchedulersComponent
    device_model: DeviceModel
    report: Report
    notifier: Notifier
    interrupt: Interrupt
    completions: CompletionWriter
    saver: Saver
    changes: list[str]
    accord: Accord = field(default_factory=Accord)
    settings_record: dict[str, Any] = field(default_factory=dict)
    began_at: Counter[str] = field(default_factory=Counter)
    threads: ExitStack = field(default_factory=ExitStack)
    closing: ExitStack = field(default_factory=ExitStack)

    @property
    def components(self) -> tuple[Component, ...]:
        """The five parts of a checkpoint, in order."""
        return self.curriculum, self.model, self.runner, self.optimizers, self.lr_schedulers

    @property
    def runtime(self) -> Runtime:
        """Device, precision, ranks."""
        return self.device_model.runtime

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes files."""
        return self.runtime.ranks.is_main

    @property
    def record(self) -> RunRecord:
        """Statistics, resumes, saves, clock."""
        return self.runner.record

    @property
    def out_dir(self) -> Path:
        """Where statistics and data sets go."""
        return expanded(self.settings.out_dir)

    def done_here(self, total: str) -> int:
        """Give what has been added to a total since the run was opened."""
        return self.record.stats.totals[total] - self.began_at[total]

    def parameters(self) -> list[Any]:
        """List the model's parameters."""
        return list(self.device_model.raw.parameters())
