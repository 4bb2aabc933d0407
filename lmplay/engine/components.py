"""The components of a checkpoint but for `curriculum` (plan floor) and `optimizers` (:class:`lmplay.optim.set.OptimizerSet`).  Engine floor."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import nn

from ..checkpoints.weights import check_weights
from ..device.random_state import random_state, restore_random_state
from ..device.runtime import Runtime
from ..modules.adapters import adapter_state
from ..modules.sharded import copy_into, is_sharded
from ..optim.schedules import warmup_factor
from ..plan.schedules import Place
from ..plan.settings import Settings, StageSettings
from ..report.callbacks import Notifier
from ..stats.run_record import RunRecord
from ..tokenizer import Tokenizer
from .nonfinite import NonfiniteGuard


@dataclass
class ModelComponent:
    """The raw model, and all that is needed to build it again: experiment, arguments, tokenizer.

    While an adapter is trained, its state is the adapter's alone, and `adapter` says what it is: settings, layers, and the `base` that it is on
    (:mod:`lmplay.checkpoints.base`).
    """

    experiment: str
    args: dict[str, Any]
    tokenizer: Tokenizer
    module: nn.Module
    forms: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """How the texts of each source begin, by the stages that have begun (:meth:`lmplay.data.stage.StageData.forms`)."""
    adapter: dict[str, Any] | None = None
    name: str = "model"

    def state_args(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        built = {"experiment": self.experiment, "args": dict(self.args), "tokenizer": self.tokenizer.spec, "forms": dict(self.forms)}
        return built if self.adapter is None else {**built, "adapter": dict(self.adapter)}

    def state(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`; of a sharded model the parameters themselves, so that one with two names is seen to be the same."""
        return self.module.state_dict(keep_vars=is_sharded(self.module)) if self.adapter is None else adapter_state(self.module)

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`lmplay.component.Component`; keys and shapes must match exactly."""
        check_weights(self.state(), state, self.experiment)
        if not is_sharded(self.module):
            self.module.load_state_dict(state, strict=self.adapter is None)
            return
        for name, own in self.state().items():
            copy_into(own, state[name])


@dataclass
class RunnerComponent:
    """What belongs to the run: statistics and clock, random states, the gradient scaler, what callbacks keep."""

    settings: Settings
    runtime: Runtime
    notifier: Notifier
    nonfinite: NonfiniteGuard
    record: RunRecord = field(default_factory=RunRecord)
    token_budget: dict[str, Any] = field(default_factory=dict)
    """With `--mini-batch-size auto`: the `tokens` of a mini-batch, and what they were measured for (`of`)."""
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each stage has used, or will use (:func:`lmplay.plan.used.stage_settings`)."""
    name: str = "runner"

    def state_args(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {"settings": self.settings.to_json(), "stages": dict(self.stages), "runs_on": self.runtime.described}

    def state(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        record = self.record.state()
        return {**record, "random": random_state(), "scaler": self.runtime.scaler.state_dict(), "room": dict(self.token_budget),
                "in_row": self.nonfinite.state(), "clock": {**record["clock"], "listeners": self.notifier.state()}}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`lmplay.component.Component`; files of version 0.1 lack what is asked for here with a default."""
        self.record.restore(state)
        if "listeners" in state["clock"]:
            self.notifier.restore(state["clock"]["listeners"])
        self.token_budget = dict(state.get("room", {}))
        self.nonfinite.restore(state.get("in_row", {}))
        if state["scaler"] and self.runtime.scaler.is_enabled():
            self.runtime.scaler.load_state_dict(state["scaler"])
        restore_random_state(state["random"])


@dataclass
class LrSchedulersComponent:
    """The learning rate: a function of how far the stage is, of the steps since its warm-up began, and of where its schedule is."""

    settings: Settings
    steps: int = 0
    progress: float | None = 0.0
    began: float = 0.0  # progress at which the warm-up began
    place: Place | None = None  # None = the schedule has not begun
    name: str = "lr_schedulers"

    def lr(self, stage: StageSettings, done: Mapping[str, float]) -> float:
        """Give the learning rate of the next step.

        :param stage: the settings of the stage.
        :param done: the `steps`, `samples` and `tokens` that the stage has been trained on.
        """
        now = {**done, "progress": self.progress}
        chain = stage.lr_schedule
        self.place = chain.move(self.place or chain.begin, now)
        warmed = (self.progress or 0.0) - self.began if 0 < stage.warmup < 1 else self.steps
        return stage.lr * (warmup_factor(warmed, stage.warmup, self.settings.optimizer_warmup_fraction) * chain.value(self.place, now))

    def judged(self, stage: StageSettings, loss: float) -> None:
        """Take note of a validation during a stage; `loss` is in nats per token."""
        if self.place is not None:
            self.place = stage.lr_schedule.judged(self.place, loss)

    def judge_anew(self) -> None:
        """Forget the lowest loss, as validations judge other samples from here on."""
        if self.place is not None:
            self.place = replace(self.place, best=None, stale=0)

    def advance(self, progress: float | None) -> None:
        """Take note of a step and of how much of the stage has been read for it."""
        self.steps += 1
        self.progress = progress

    def start_stage(self) -> None:
        """Begin a stage."""
        self.progress, self.place = 0.0, None
        self.start_warmup()

    def start_warmup(self) -> None:
        """Begin a warm-up, at the start of a stage and where the optimizer's state is fresh."""
        self.steps, self.began = 0, self.progress or 0.0

    def state_args(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {"main": {"warmup_steps": self.settings.optimizer_warmup_steps, "warmup_fraction": self.settings.optimizer_warmup_fraction,
                         "disabled": self.settings.disable_optimizer_warmup}}

    def state(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        place = None if self.place is None else asdict(self.place)
        return {"main": {"steps": self.steps, "progress": self.progress, "began": self.began, "place": place}}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`lmplay.component.Component`; older files lack what is asked for here with a default."""
        main = state["main"]
        self.steps, self.progress, self.began, place = main["steps"], main["progress"], main.get("began", 0.0), main.get("place")
        self.place = None if place is None else Place(**place)
