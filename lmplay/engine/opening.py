"""Putting a run together: everything is opened and checked before the first step, and nothing is written until then.  Engine floor."""
from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..checkpoints.best import best_names
from ..checkpoints.drift import changes, foreign_sizes
from ..checkpoints.format import checkpoint_bytes
from ..checkpoints.lock import Lock
from ..checkpoints.resume import Found, adopt, choose_state, set_history_aside
from ..checkpoints.rotation import check_free_space, clean_up
from ..checkpoints.saver import Saver
from ..checkpoints.weights import check_target, save_weights
from ..data.fingerprints import describe_changes
from ..data.stage import StageData
from ..device.compile_cache import keep_compiled
from ..device.machine import threads_to_use
from ..device.random_state import seed_everything
from ..device.runtime import Runtime
from ..errors import Unavailable, UserError
from ..files import check_folder, make_folder, write_text
from ..optim.freeze import apply_freeze
from ..optim.optimizers import STATE_COPIES, build_optimizer
from ..plan.curriculum import Curriculum, StageState
from ..plan.schema import Plan, Stage
from ..plan.settings import Settings, StageSettings, resolve_stage
from ..report.callbacks import Notifier, draw_plots
from ..report.completions import CompletionWriter, read_prompts
from ..report.report import Report
from ..track.callback import Callbacks
from .components import LrSchedulersComponent, ModelComponent, OptimizersComponent, RunnerComponent
from .interrupt import Interrupt
from .model_spec import make_tokenizer, plan_model


@dataclass
class Run:
    """All that training needs."""

    settings: Settings
    path: Path
    curriculum: Curriculum
    model: ModelComponent
    runner: RunnerComponent
    optimizers: OptimizersComponent
    lr_schedulers: LrSchedulersComponent
    wrapped: nn.Module
    stage_settings: dict[str, StageSettings]
    stage_data: dict[str, StageData]
    report: Report
    interrupt: Interrupt
    lock: Lock
    prompted: CompletionWriter
    saver: Saver
    changes: list[str] = field(default_factory=list)  # what is not as it was at the checkpoint
    began_at: Counter[str] = field(default_factory=Counter)  # the totals at that point
    closing: ExitStack = field(default_factory=ExitStack)  # what has to be ended with the run, however it ends

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish the save that is being written, or leave it where the user wants to end at once; let others have the model file."""
        at_once = kind is not None and not issubclass(kind, Exception)
        self.closing.callback(self.lock.release)
        with self.closing:
            self.saver.close(give_up=at_once)
            if not at_once:
                self._tell_the_end(kind)

    @property
    def components(self) -> tuple[Curriculum, ModelComponent, RunnerComponent, OptimizersComponent, LrSchedulersComponent]:
        """The five parts of a checkpoint, in order."""
        return self.curriculum, self.model, self.runner, self.optimizers, self.lr_schedulers

    def _tell_the_end(self, kind: type[BaseException] | None) -> None:
        """Tell those who listen how the run ends."""
        asked = self.interrupt.exit_code is not None or (kind is not None and issubclass(kind, Unavailable))
        folder = Path(self.settings.out_dir).expanduser()
        self.runner.listeners.end("done" if self.curriculum.is_done else "stopped" if asked else "failed",
                                  lambda: draw_plots(folder, self.path.stem, self.report.say))


def open_run(settings: Settings, plan: Plan, report: Report, interrupt: Interrupt, callbacks: Callbacks | None = None) -> Run | None:
    """Open and check everything, load what there is to load, and make the folders.

    :param settings: the run's.
    :param plan: what to follow.
    :param report: is told what happens.
    :param interrupt: asked whether to stop.
    :param callbacks: who is told what happens, too.
    :return: the run; None when the plan has already been done.
    :raises UserError: for anything that is wrong with the input; nothing has been written then.
    """
    path = settings.model_file(plan)
    for folder in {path.parent, Path(settings.out_dir).expanduser()}:
        check_folder(folder, "output folder")
    lock = Lock(path)
    try:
        run = _open(settings, plan, report, interrupt, path, lock, callbacks)
    except BaseException:
        lock.release()
        raise
    if run is None:
        lock.release()
    return run


def _open(settings: Settings, plan: Plan, report: Report, interrupt: Interrupt, path: Path, lock: Lock, callbacks: Callbacks | None) -> Run | None:
    """Do the work of :func:`open_run`."""
    if path.parent.is_dir():  # else there is nothing to lock yet
        lock.take()
    prompts = read_prompts(Path(settings.sample_prompts).expanduser()) if settings.sample_prompts else []
    runtime = Runtime(settings)
    if (threads := threads_to_use(torch.get_num_threads())) != torch.get_num_threads():
        torch.set_num_threads(threads)
    if settings.compile_model and settings.compile_backend == "inductor":
        keep_compiled()
    found = choose_state(settings, path, [stage.name for stage in plan.stages])
    check_target(settings, path)
    stored = found.content if found is not None else None
    if stored is not None:
        settings = keep_settings(settings, path, stored["runner"]["state_args"]["settings"])
    model_plan = plan_model(settings, plan, path, stored)
    shapes = model_plan.build(vocab_size=8, meta=True)  # refuses wrong sizes now
    runtime.packs(shapes)
    runtime.save_memory(shapes)
    curriculum = Curriculum(plan)
    if stored is not None:
        curriculum.check_past(stored["curriculum"]["state_args"]["plan"], stored["curriculum"]["state"])
        curriculum.restore(stored["curriculum"]["state"])
        if curriculum.is_done:
            if settings.resume == "latest":
                adopt(settings, path, found, [], report.say)
            report.already_done(path if found is None or settings.resume == "latest" else found.path, plan)
            report.weights(save_weights(settings, stored["model"]))
            return None
    stages = [stage for stage, _ in curriculum.remaining()]
    stage_settings = {stage.name: resolve_stage(settings, stage, model_plan.args["context_len"]) for stage in stages}
    for stage in stages:
        freeze(shapes, stage, settings)
    stage_data = open_stages(settings, curriculum, stage_settings, report)
    tokenizer = model_plan.tokenizer or make_tokenizer(settings, plan, stage_data)

    seed_everything(settings.seed)
    module = model_plan.build(tokenizer.vocab_size)
    model = ModelComponent(model_plan.experiment, model_plan.args, tokenizer, module)
    if model_plan.initial_weights is not None:
        model.restore(model_plan.initial_weights)
    module.to(runtime.device)
    optimizer = build_optimizer(settings.optimizer, module, settings.lr, settings.weight_decay)
    runner = RunnerComponent(settings, runtime, listeners=Notifier(callbacks))
    run = Run(settings, path, curriculum, model, runner, OptimizersComponent(settings.optimizer, optimizer),
              LrSchedulersComponent(settings), runtime.wrap(module, model_plan.args["context_len"], report.compiled, interrupt.at_once),
              stage_settings, stage_data, report, interrupt, lock,
              CompletionWriter(prompts, Path(settings.out_dir).expanduser() / f"{path.stem}_samples.jsonl", settings.sample_tokens, settings.seed, report.say),
              Saver(path, settings.keep))
    if stored is not None:
        _restore(run, stored)
        run.changes = changes(run.settings, stored, curriculum, stage_settings, str(runtime.device))
    else:
        run.changes = foreign_sizes(settings, plan)
    _check_room(run)
    interrupt.at_work = True  # from here on files change
    _prepare_folders(run, found)
    return run


def keep_settings(settings: Settings, path: Path, before: dict[str, Any]) -> Settings:
    """Go on with what the position in the data and the optimizer's state depend on; what was typed must not differ.

    :param settings: the run's.
    :param path: the model file, for messages.
    :param before: the settings that the file was written with.
    :return: the settings to go on with.
    :raises UserError: naming the flags that differ.
    """
    kept = {name: before[name] for name in ("seed", "continuation")}
    if not settings.ignore_optimizer:
        kept["optimizer"] = before["optimizer"]
    faults = [f"model {path}: was trained with --{name} {value}, and --{name} {getattr(settings, name)} is given; leave that out"
              + (", or add --ignore-optimizer to go on with a fresh one." if name == "optimizer" else ", or start anew with --reset-history.")
              for name, value in kept.items() if name in settings.explicit and getattr(settings, name) != value]
    if faults:
        raise UserError(*faults)
    return replace(settings, **kept)


def freeze(module: nn.Module, stage: Stage, settings: Settings) -> list[str]:
    """Set what a stage trains.

    :param module: the raw model.
    :param stage: its `freeze` are the patterns.
    :param settings: whether all is frozen by default.
    :return: the names of the frozen parameters.
    :raises UserError: when a pattern matches nothing, or nothing is left to train.
    """
    try:
        return apply_freeze(module, stage.freeze or (), settings.default_freeze)
    except UserError as error:
        raise UserError(*(f"stage '{stage.name}': {fault}" for fault in error.faults)) from None


def open_stages(settings: Settings, curriculum: Curriculum, stage_settings: dict[str, StageSettings], report: Report) -> dict[str, StageData]:
    """Open the data of all stages that are left, so that a file missing in the last is known now; all faults together."""
    opened, faults, accepted = {}, [], []
    for stage, state in curriculum.remaining():
        try:
            data = StageData(stage, settings.datasets_folder, settings.seed)
            if stage_settings[stage.name].schedule != "constant" and not data.length_is_known:
                faults.append(f"stage '{stage.name}': lr_schedule {stage_settings[stage.name].schedule} needs a length that is known; give samples or tokens.")
            changes = _changes(state, data)
            if settings.accept_changed_data:
                accepted += changes
            else:
                faults += [f"{change}: the position in it means nothing any more. Bring the data back, or go on nevertheless with --accept-changed-data; "
                           "or choose another --model, or --reset-history to start anew." for change in changes]
            context_len = stage_settings[stage.name].context_len
            if state.context_len not in (None, context_len):
                faults.append(f"stage '{stage.name}' was begun with context_len {state.context_len}, and now it is {context_len}; change it back.")
            opened[stage.name] = data
        except UserError as error:
            faults += error.faults
    if faults:
        raise UserError(*faults)
    for change in accepted:
        report.say(f"accepted: {change}; the stage goes on from its position, so some rows may come again and some not at all")
    return opened


def _changes(state: StageState, data: StageData) -> list[str]:
    """Say which sources of a begun stage are not what they were, and bring its position in line with what they are."""
    before, now = state.fingerprints, data.fingerprints()
    if before is None:
        return []
    changes = describe_changes(before, now)
    if changes:
        state.position = state.position and data.carry_over(state.position, before)
        state.validation_position = None
    state.fingerprints = now
    return [f"stage '{state.name}': the data of {change} has changed since the checkpoint" for change in changes]


def _restore(run: Run, stored: dict[str, Any]) -> None:
    """Give the components what the checkpoint has."""
    for component in run.components[1:]:
        if not (component.name == "optimizers" and run.settings.ignore_optimizer):
            component.restore(stored[component.name]["state"])
    totals = run.runner.stats.totals
    run.began_at = totals.copy()
    if run.settings.resume != "latest":
        run.runner.listeners.begin_another()
    run.runner.resumes.append({"samples": totals["total_train_samples"], "tokens": totals["total_train_tokens"], "seconds": run.runner.seconds})


def _check_room(run: Run) -> None:
    """See that the files of the run will fit on the disk, and that the time limit leaves time to write one.

    :raises UserError: when they will not.
    """
    module = run.model.module
    size = checkpoint_bytes(module, STATE_COPIES[run.optimizers.kind] * sum(parameter.nbytes for parameter in module.parameters()))
    stages = [state.name for state in run.curriculum.states]
    early = [name for name in stages[:-1] if name in run.stage_settings and run.stage_settings[name].patience is not None]
    run.interrupt.expect_save(size)
    check_free_space(run.path, size, [*best_names(early), *stages], run.settings.keep)


def _prepare_folders(run: Run, found: Found | None) -> None:
    """Make the folders, set aside what the run does not go on from, and write the settings beside the statistics."""
    folder = make_folder(Path(run.settings.out_dir).expanduser(), "output folder")
    make_folder(run.path.parent, "output folder")
    run.lock.take()
    clean_up(run.path, folder)
    if run.settings.reset_history and (kept := set_history_aside(run.path, folder, run.curriculum.plan)):
        run.report.say(f"kept the old model as {kept}")
    adopt(run.settings, run.path, found, [stage.name for stage, _ in run.curriculum.remaining()], run.report.say)
    resolved = run.settings.to_json() | {"exp": run.model.experiment, "tokenizer": run.model.tokenizer.name, "device": str(run.runner.runtime.device),
                                         "precision": run.runner.runtime.precision, "model": str(run.path), "model_args": run.model.args,
                                         "plan": run.curriculum.plan.to_json()}
    write_text(folder / f"{run.path.stem}_settings.json", json.dumps(resolved, indent=2) + "\n")
    samples = run.prompted.begin(run.runner.stats.totals["total_train_steps"])
    run.runner.listeners.start(run.path.stem, folder, resolved, resolved.pop("plan"), run.runner.stats, list(run.runner.step_stats.values()), samples)
    if found is not None:
        run.runner.listeners.event("resumed", run.runner.progress, run.runner.stage)
