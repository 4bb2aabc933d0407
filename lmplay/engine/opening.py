"""The one way to open a run: everything is opened and checked before the first step, and nothing is written until then.  Engine floor.

:func:`outline` reads settings, plan and model file, :func:`open_stages` opens the sources, :func:`open_run` makes the rest. Previews stop after the first two.
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import nn

from ..checkpoints.averages import are_averages_in, optimizers_in
from ..checkpoints.base import put_on
from ..checkpoints.best import best_names
from ..checkpoints.drift import changes, foreign_sizes
from ..checkpoints.format import Verified, checkpoint_bytes, versions
from ..checkpoints.lock import Lock
from ..checkpoints.resume import adopt, choose_state, set_history_aside
from ..checkpoints.rotation import Found, check_free_space, clean_up, existing
from ..checkpoints.saver import Saver
from ..checkpoints.weights import check_target, save_weights, write_alone
from ..checkpoints.writers import Writers
from ..data.collate import can_pin
from ..data.fingerprints import describe_changes, describe_readings
from ..data.round_trip import check_round_trip
from ..data.stage import StageData
from ..data.stream import nothing_to_train_on
from ..device.compile_cache import keep_compiled
from ..device.machine import threads_to_use
from ..device.model import DeviceModel
from ..device.random_state import seed_everything
from ..device.ranks import Ranks
from ..device.runtime import Runtime
from ..errors import Faults, Unavailable, UserError, nearest_word, printable
from ..exp import experiments, get_experiment, split_name
from ..exp.folding import is_folded
from ..files import NotAFile, check_folder, check_is_file, check_is_state, make_folder
from ..modules.adapters import freeze_base
from ..objectives import load_objective
from ..optim.freeze import apply_freeze
from ..optim.groups import follow_rules
from ..optim.optimizers import build_like, build_optimizers, optimizers_of
from ..optim.set import OptimizerSet
from ..paths import expanded
from ..plan.curriculum import Curriculum, StageState
from ..plan.follow import keep_written
from ..plan.names import CODE, optimizer_row
from ..plan.options import ADDED, CHANGING, FLAGS, Change
from ..plan.schema import Plan, Stage
from ..plan.settings import Settings, StageSettings, resolve_stage, settings_from_json
from ..plan.used import flat_settings
from ..report.callbacks import Notifier, draw_plots
from ..report.completions import CompletionWriter, read_prompts
from ..report.report import Report
from ..stats.run_record import RunRecord
from ..stats.writing import stats_files
from ..tokenizer import Tokenizer
from ..track.callback import Callbacks
from ..words import compact
from . import sharding
from .accord import Accord
from .adapting import check_adapters
from .answers import check_writing
from .batches import position_of
from .components import LrSchedulersComponent, ModelComponent, RunnerComponent
from .interrupt import Interrupt
from .model_spec import ModelSpec, check_tokenizer, choose_model, make_tokenizer
from .nonfinite import NonfiniteGuard
from .run import OpenStage, Run
from .settings_record import settings_record, stages_of_checkpoint, write_settings
from .teacher import check_teachers
from .verifying import verify_states

Say = Callable[[str], None]
# A new model whose size differs by more than this factor from the one that was asked for is warned of.
_FAR = 1.25


@dataclass(frozen=True)
class Outline:
    """A run before sources are opened and weights are made: what settings, plan and model file say.

    `settings` have what the checkpoint decides; `found` is the checkpoint to go on from, None = a new run; `curriculum` is as far as it has been followed.
    """

    settings: Settings
    plan: Plan
    path: Path
    found: Found | None
    curriculum: Curriculum
    spec: ModelSpec

    @property
    def stored(self) -> dict[str, Any] | None:
        """What the checkpoint holds."""
        return self.found.content if self.found is not None else None

    @property
    def stored_optimizer(self) -> str | None:
        """The optimizer that the checkpoint has a state of; None where training does not continue with it."""
        return None if self.stored is None or self.settings.ignore_optimizer else _optimizer_of(self.stored)

    def stage_settings(self, stage: Stage, begun: bool = False) -> StageSettings:
        """Work out what holds for a stage; one that has begun goes on with its optimizer."""
        return resolve_stage(self.settings, stage, self.spec.args["context_len"], self.stored_optimizer if begun else None)

    def without_adapter(self) -> Outline:
        """Give the same for a model that has not yet the adapter that the checkpoint was trained with."""
        return replace(self, spec=replace(self.spec, adapted=None))

    def tokenizer(self, data: Iterable[StageData]) -> Tokenizer:
        """Give the model's tokenizer; a new one may learn from the data of the stages."""
        return self.spec.tokenizer or make_tokenizer(self.settings, self.plan, list(data))


def outline(settings: Settings, plan: Plan, whole: bool = True, verified: Verified | None = None) -> Outline:
    """Say what a run will be; nothing is changed.

    :param settings: of the command line.
    :param plan: what to follow.
    :param whole: False for what is left of a wrong plan, which is not compared with that of the checkpoint.
    :param verified: see :func:`.verifying.verify_states`.
    :raises UserError: when the checkpoint, the plan and the flags do not agree.
    """
    path = settings.model_file(plan)
    found = choose_state(settings, path, [stage.name for stage in plan.stages], verified)
    stored = found.content if found is not None else None
    if stored is not None:
        _check_trust(settings, path, stored)
        before = stored["runner"]["state_args"]["settings"]
        settings = keep_settings(settings, path, before, _optimizer_of(stored))
        plan = keep_written(plan, before, stored["curriculum"]["state_args"]["plan"]) if whole else plan
    curriculum = Curriculum(plan)
    spec = choose_model(settings, plan, path, stored, verified)
    if stored is not None and whole:
        curriculum.check_past(stored["curriculum"]["state_args"]["plan"], stored["curriculum"]["state"])
        curriculum.restore(stored["curriculum"]["state"])
    return Outline(settings, curriculum.plan, path, found, curriculum, spec)


def open_stages(outline: Outline, stages: Iterable[tuple[Stage, StageState]], say: Say) -> dict[str, OpenStage]:
    """Open the sources of stages, so that a file missing in the last is known now.

    :param stages: each with how far it has been done.
    :param say: is told of accepted changes of the data.
    :return: the open stages by name, in order.
    :raises UserError: all faults together.
    """
    opened, faults, accepted = dict[str, OpenStage](), Faults(), list[str]()
    for stage, state in stages:
        settings = data = objective = None
        with faults.collected():
            settings = outline.stage_settings(stage, begun=state.fingerprints is not None)
        with faults.collected():
            objective = load_objective(settings.objective, settings.objective_settings) if settings is not None else None
        with faults.collected():
            data = StageData(stage, outline.settings.datasets_folder, outline.settings.seed, outline.settings.validation_seed, state.rules,
                             objective is not None and objective.reads_pairs, objective is not None and objective.reads_tasks)
            if data.warnings and stage.dataset and state.fingerprints is None:
                _check_gives_samples(stage.name, data)
        if settings is None or data is None or objective is None:
            continue
        with faults.collected():
            found = OpenStage(stage, state, settings, data, objective)
            if not stage.dataset:
                continue
            if settings.validation_samples is None and (held_out := data.open_validation()) is not None and held_out.endless:
                faults.lines.append(f"stage '{stage.name}': validation samples: found all, and the held-out rows have no end; give a number.")
            if objective.reads_pairs and settings.smallest_batch < 2:
                faults.lines.append(f"stage '{stage.name}': batch_size {settings.smallest_batch} holds no pair, which is two pieces; give 2 or more.")
            if not data.length_is_known:
                needing = [f"lr_schedule {settings.lr_schedule.in_words()}"] if settings.lr_schedule.needs_length else []
                needing += [f"{key} as a list of parts" for key in CHANGING if getattr(settings, f"{key}_schedule") is not None]
                needing += ["a warmup below 1"] if 0 < settings.warmup < 1 else []
                faults.lines += [f"stage '{stage.name}': {key} needs a length that is known; give samples, tokens or steps." for key in needing]
            differences = _note_changes(found)
            if not differences:
                pass
            elif outline.settings.accept_changed_data:
                accepted += differences
                _carry_over(found, outline.found)
            else:
                faults.lines += [f"{change}: the position in it means nothing any more. Bring the data back, or go on nevertheless with --accept-changed-data; "
                                 "or choose another --model, or --reset-history to start over." for change in differences]
            if state.context_len not in (None, settings.context_len):
                faults.lines.append(f"stage '{stage.name}' was begun with context_len {state.context_len}, and now it is {settings.context_len}; "
                                    "change it back.")
            opened[stage.name] = found
    faults.refuse()
    for found in opened.values():
        for warning in found.data.warnings:
            say(f"WARNING: stage '{found.stage.name}': {warning}")
    for change in accepted:
        say(f"accepted: {change}; the stage continues from its position, so some rows may come again and some not at all")
    return opened


def _check_gives_samples(name: str, data: StageData) -> None:
    """Read a stage up to its first sample; raises UserError where it has none."""
    stream = data.open_samples()
    try:
        if stream.next() is not None:
            return
        nothing = str(nothing_to_train_on(name, stream.skipped))
    except UserError as error:
        nothing = f"stage '{name}': {error}"
    raise UserError("; ".join(line.removesuffix(".") for line in (nothing, *data.warnings)) + ".")


def open_run(settings: Settings, plan: Plan, report: Report, interrupt: Interrupt, callbacks: Callbacks | None = None,
             accord: Accord | None = None) -> Run | None:
    """Open and check everything, load what there is to load, and make the folders.

    :param settings: of the command line.
    :param plan: what to follow.
    :param report: is told what happens.
    :param interrupt: asked whether to stop.
    :param callbacks: are told what happens, too.
    :param accord: of the ranks that train together; rank 0 opens first, and it alone writes. None = a single process.
    :return: the run; None when the plan has already been done.
    :raises UserError: for anything that is wrong with the input; nothing has been written then.
    """
    accord = accord or Accord()
    ranks, path = accord.ranks, settings.model_file(plan)
    if settings.model is not None and not os.path.dirname(settings.model) and path.parent == Path():
        report.say(f"{path} is in the current folder, and the run goes on with it there; since version 0.1 a name without a folder lies in "
                   f"{settings.out_dir}: to go on there, move all {path.stem}*.lmp into it.")
    for folder in {path.parent, expanded(settings.out_dir)}:
        check_folder(folder, "output folder")
    if settings.profile is not None:
        check_folder(expanded(settings.profile).parent, "folder of --profile")
    _check_places(settings, path, [stage.name for stage in plan.stages])
    with ExitStack() as closing:
        lock = Lock(path, expanded(settings.out_dir), [stage.name for stage in plan.stages])
        closing.callback(lock.release)
        if ranks.is_main:
            lock.take()
        prompts = read_prompts(expanded(settings.sample_prompts)) if settings.sample_prompts else list(dict.fromkeys(plan.prompts or ()))
        verified = verify_states(settings, path, [stage.name for stage in plan.stages], accord)
        runtime, ahead, stages = accord.main_first(
            lambda: check_all(settings, plan, lambda ahead: ahead.curriculum.remaining(), report.say, Faults(), ranks, verified))
        averaged = bool(ahead.settings.ema) or any(optimizer_row(stage.settings.optimizer).averages for stage in stages.values())
        check_target(ahead.settings, path, [stage.name for stage in plan.stages], averaged)
        if ahead.stored is not None and ahead.curriculum.is_done:
            if ranks.is_main:
                _already_done(ahead, report)
            return None
        if ahead.settings.divides_model:
            sharding.check(ahead.settings, stages.values())
        elif ahead.settings.shard:
            report.say("--shard: there is one process, which has the whole model; it trains as without --shard.")
        run = _make(ahead, runtime, stages, report, interrupt, callbacks, prompts, accord)
        _check_space(run)
        accord.check_same(partial(_facts, run))
        with interrupt.held():
            ranks.begin(runtime.device, run.device_model.raw)
        interrupt.at_work = True  # from here on files change
        accord.alike(partial(_prepare_folders, run, ahead.found, lock))
        run.threads = closing.enter_context(ExitStack())
        closing.push(partial(_end, run))
        run.closing = closing.pop_all()
        return run


def _optimizer_of(stored: dict[str, Any]) -> str:
    """Name the optimizer that a checkpoint has a state of."""
    return next((str(member["optimizer"]) for member in stored["optimizers"]["state_args"].values()), stored["runner"]["state_args"]["settings"]["optimizer"])


def _check_places(settings: Settings, path: Path, stages: list[str]) -> None:
    """Check that nothing but files has the names of the run's files, and no link those of its states and of files that it appends to.

    :raises UserError: naming each folder, named pipe, socket, device or link.
    """
    out, name, faults = expanded(settings.out_dir), path.stem, []
    appended = [out / f"{name}{rest}" for rest in (".log", "_samples.jsonl", "_train.csv", "_validate.csv", "_evaluate.csv")]
    states = [path, *existing(path, [*stages, *best_names(stages)])]
    for file in (*states, *(file for stage in (None, *stages) for file in stats_files(out, name, stage)), out / f"{name}_settings.json", *appended):
        try:
            (check_is_state if file in states else check_is_file)(file)
            if file in appended and file.is_symlink():
                faults.append(f"{file}: it is a link, and what the run appends to it would be written elsewhere. Remove it, or choose another --out-dir.")
            elif file in states and file.is_symlink():
                faults.append(f"{file}: it is a link to {os.readlink(file)}, which may belong to another run, and a save would replace the link by a file. "
                              "Give the --model that it leads to, or put a copy in its place.")
        except NotAFile as error:
            faults.append(f"{file}: {error.strerror}, and the run keeps a file of that name. Move it elsewhere, or choose another --model or --out-dir.")
    if faults:
        raise UserError(*faults)


def _check_trust(settings: Settings, path: Path, stored: dict[str, Any]) -> None:
    """Refuse a checkpoint that names the class of an optimizer: code is run only where it was typed, or is trusted; raises UserError."""
    for name in (_optimizer_of(stored), str(stored["runner"]["state_args"]["settings"]["optimizer"])):
        if CODE.fullmatch(name) and not settings.trusted and settings.optimizer != name:
            raise UserError(f"model {path}: was trained with the optimizer {name}, and code that a file names is run only if it is trusted: add "
                            f"--trust-config, or type --optimizer {name} yourself.")


def keep_settings(settings: Settings, path: Path, before: dict[str, Any], optimizer: str) -> Settings:
    """Go on with what the position in the data and the optimizers' state depend on; what was typed must not differ.

    :param settings: of the command line.
    :param path: the model file, for messages.
    :param before: the settings that the file was written with.
    :param optimizer: the one that the file has a state of.
    :return: the settings to go on with.
    :raises UserError: naming the flags that differ.
    """
    before = {**{name: getattr(Settings, name) for name in ADDED}, "validation_seed": before["seed"], **before}  # files of version 0.1 have one seed for both
    kept = {flag.name: before[flag.name] for flag in FLAGS if flag.change is Change.KEPT}
    if not settings.ignore_optimizer:
        kept["optimizer"] = optimizer if "optimizer" in settings.explicit else before["optimizer"]
    words = {name: f"without --{name}" if value is None else f"with --{name} {value}" for name, value in kept.items()}
    faults = [f"model {path}: was trained {words[name]}, and --{name} {getattr(settings, name)} is given; leave that out"
              + (", or add --ignore-optimizer to go on with a fresh one." if name == "optimizer" else ", or start over with --reset-history.")
              for name, value in kept.items() if name in settings.explicit and getattr(settings, name) != value]
    if faults:
        raise UserError(*faults)
    return replace(settings, **kept)


def check_model(ahead: Outline, runtime: Runtime | None, stages: Sequence[Stage]) -> None:
    """Build the model without weights, to refuse now what it cannot do.

    :param runtime: where it will be; None where that is not known.
    :param stages: those that are to be trained.
    :raises UserError: for wrong sizes, for flags that the model does not support, for patterns that match nothing, and for optimizers that cannot be built.
    """
    faults, shapes, args = Faults(), None, ahead.spec.args
    with faults.collected():
        shapes = ahead.spec.build(vocab_size=8, meta=True)
    if shapes is None and "num_heads" in args:  # the names of the parameters can be checked nevertheless
        with suppress(UserError):
            shapes = replace(ahead.spec, args={**args, "num_heads": 1}).build(vocab_size=8, meta=True)
    if shapes is not None:
        if runtime is not None:
            with faults.collected():
                runtime.packs(shapes)
            with faults.collected():
                runtime.save_memory(shapes)
        for stage in stages:
            with faults.collected():
                freeze(shapes, stage, ahead.settings)
        with faults.collected():
            _check_optimizers(ahead, shapes, stages)
        with faults.collected():
            check_adapters(ahead.spec, stages, ahead.plan.stages, runtime.device if runtime is not None else None)
    faults.refuse()


def _check_optimizers(ahead: Outline, shapes: nn.Module, stages: Sequence[Stage]) -> None:
    """Build the optimizers of stages for a model without weights, to refuse now what they cannot do; raises UserError with all faults."""
    faults = Faults()
    follow_rules(shapes, next((stage.optimizer_rules for stage in stages if stage.optimizer_rules), ()))
    built: list[StageSettings] = []
    for stage in stages:
        with suppress(UserError):  # which are told when the stage is opened
            used = ahead.stage_settings(stage)
            if not any((used.optimizer, used.optimizer_settings) == (other.optimizer, other.optimizer_settings) for other in built):
                built.append(used)
    for used in built:
        if used.optimizer:  # that of a wrong plan may be unknown
            with faults.collected():
                optimizers_of(used, shapes)
    faults.refuse()


def freeze(module: nn.Module, stage: Stage, settings: Settings) -> list[str]:
    """Set what a stage trains.

    :param module: the raw model; where it has an adapter, that alone is trained.
    :param stage: its `freeze` are the patterns.
    :param settings: whether all is frozen by default.
    :return: the names of the frozen parameters.
    :raises UserError: when a pattern matches nothing, or nothing is left to train.
    """
    if stage.adapter is not None:
        freeze_base(module)
        return [name for name, parameter in module.named_parameters(remove_duplicate=False) if not parameter.requires_grad]
    try:
        return apply_freeze(module, stage.freeze or (), settings.default_freeze)
    except UserError as error:
        raise UserError(*(f"stage '{stage.name}': {fault}" for fault in error.faults)) from None


def check_all(settings: Settings, plan: Plan, chosen: Callable[[Outline], list[tuple[Stage, StageState]]], say: Say,
              faults: Faults, ranks: Ranks | None = None, verified: Verified | None = None) -> tuple[Runtime, Outline, dict[str, OpenStage]]:
    """Outline a run, check its model, and open its stages.

    :param chosen: gives the stages to open, each with how far it has been done.
    :param say: see :func:`open_stages`.
    :param faults: what has been found wrong already.
    :param ranks: that train together; None = a single process.
    :param verified: see :func:`.verifying.verify_states`.
    :raises UserError: all faults together.
    """
    runtime = ahead = None
    opened: dict[str, OpenStage] = {}
    with faults.collected():
        runtime = start_device(settings, ranks)
    settings = _as_meant(settings, plan, faults)
    with faults.collected():
        ahead = outline(settings, plan, "plan" not in faults.left_out, verified)
    ahead, model_is_known = _without_left_out(ahead, settings, plan, faults.left_out)
    stages = chosen(ahead)
    if model_is_known:
        with faults.collected():
            check_model(ahead, runtime, [stage for stage, _ in stages])
    with faults.collected():
        opened = open_stages(ahead, stages, say)
    for stage in opened.values() if model_is_known else ():
        faults.lines += check_writing(stage)
    if faults.lines and ahead.spec.tokenizer is None:
        with faults.collected():
            check_tokenizer(settings, plan)
    faults.refuse()
    assert runtime is not None
    return runtime, ahead, opened


def _as_meant(settings: Settings, plan: Plan, faults: Faults) -> Settings:
    """Replace a misspelt experiment by the one that is nearest, so that what it says of the other faults can be found, too."""
    name = settings.experiment(plan)
    with faults.collected():
        get_experiment(name)
    meant = None if name in experiments() or split_name(name)[1] else nearest_word(name, experiments())
    if meant is None:
        return settings
    return replace(settings, exp=meant, model=settings.model or str(settings.model_file(plan)), explicit=settings.explicit | {"exp"})


def _without_left_out(ahead: Outline | None, settings: Settings, plan: Plan, left_out: set[str]) -> tuple[Outline, bool]:
    """Leave aside what only follows from values that are wrong and have been taken out, so that it is not told as a fault.

    :param ahead: None where the model is not known.
    :param left_out: see :class:`lmplay.errors.Faults`.
    :return: the outline, and whether it is known which parameters the model has.
    """
    if ahead is None:
        ahead, left_out = Outline(settings, plan, Path(), None, Curriculum(plan), ModelSpec("", {"context_len": 0}, None)), left_out | {"exp"}
    if "optimizer" in left_out:
        ahead = replace(ahead, settings=replace(ahead.settings, betas=None, eps=None, momentum=None))
    if ahead.spec.stored_weights is not None:
        return ahead, True
    args = dict(ahead.spec.args)
    if "num_heads" in args and {"embed_dim", "num_heads"} & left_out:
        args["num_heads"] = 1
    if {"exp", "context_len"} & left_out:
        args["context_len"] = max([args["context_len"], *(stage.longest_context for stage in plan.stages)])
    return replace(ahead, spec=replace(ahead.spec, args=args)), not {"exp", "num_blocks", "settings"} & left_out


def start_device(settings: Settings, ranks: Ranks | None = None) -> Runtime:
    """Set up device, threads and the cache of compiled code.

    :raises UserError: when the device is not there.
    """
    runtime = Runtime(settings, ranks)
    if (threads := threads_to_use(torch.get_num_threads())) != torch.get_num_threads():
        torch.set_num_threads(threads)
    if settings.compile_model and settings.compile_backend == "inductor":
        keep_compiled()
    return runtime


def make_model(ahead: Outline, runtime: Runtime, stages: Iterable[OpenStage], say: Say, tell: Say,
               while_compiling: Callable[[], AbstractContextManager[None]] = nullcontext, place: Callable[..., nn.Module] | None = None) \
        -> tuple[ModelComponent, DeviceModel, OptimizerSet]:
    """Make model and optimizers, from the run's seed on.

    :param stages: a new tokenizer may learn from their data.
    :param say: is told what of the initial model does not fit.
    :param tell: is told what is compiled.
    :param while_compiling: what goes around that, see :meth:`lmplay.device.runtime.Runtime.wrap`.
    :param place: puts the model on the device, see :func:`.sharding.place`; None = the whole of it.
    """
    settings, spec = ahead.settings, ahead.spec
    opened = list(stages)
    tokenizer = ahead.tokenizer(stage.data for stage in opened)
    spec.check_stored(tokenizer.vocab_size)

    def build(filled: bool = True, part: tuple[int, int] = (0, 1)) -> nn.Module:
        seed_everything(settings.seed)
        return spec.build(tokenizer.vocab_size, filled=filled, part=part)

    def whole() -> nn.Module:
        module = build()
        if spec.initial_weights is not None:
            ModelComponent(spec.experiment, spec.args, tokenizer, module).restore(spec.initial_weights(tokenizer, say))
        if spec.adapted is not None:
            put_on(module, spec.adapted, spec.experiment)
        return module.to(runtime.device)

    if place is None or not settings.divides_model:
        module = whole()
    else:
        initial = None if spec.initial_weights is None else sharding.Initial(partial(spec.initial_weights, tokenizer, say), spec.stored_weights is not None,
                                                                             spec.experiment)
        module = place(build, initial, ahead.stored is not None)
    model = ModelComponent(spec.experiment, spec.args, tokenizer, module)
    if spec.adapted is not None:
        model.adapter = dict(spec.adapted["state_args"]["adapter"])
    optimizers = _make_optimizers(ahead, opened, module)
    return model, DeviceModel(module, runtime.wrap(module, spec.args["context_len"], tell, while_compiling), runtime), optimizers


def _make_optimizers(ahead: Outline, stages: list[OpenStage], module: nn.Module) -> OptimizerSet:
    """Make the optimizers of the first stage, or those that the checkpoint has a state of."""
    stored = ahead.stored_optimizer
    if not stages:
        return build_optimizers(stored or ahead.settings.optimizer, module, ahead.settings.lr, ahead.settings.weight_decay)
    first = stages[0].settings
    if stored is None or ahead.stored is None:
        return optimizers_of(first, module)
    # as they were built, also where this stage has other settings: it begins without state then, as it would without a stop
    same = replace(first, optimizer=stored, optimizer_settings=next(iter(ahead.stored["optimizers"]["state_args"].values())).get("settings", {}))
    return build_like(ahead.stored["optimizers"]["state"], partial(optimizers_of, same, module))


def _already_done(ahead: Outline, report: Report) -> None:
    """Say that there is nothing to do, and write the weights, if they are asked for."""
    assert ahead.found is not None
    latest = ahead.settings.resume == "latest"
    if latest:
        adopt(ahead.settings, ahead.path, ahead.found, [], report.say)
    record, folder = RunRecord(ahead.path.stem), expanded(ahead.settings.out_dir)
    if latest and folder.is_dir():
        record.restore(ahead.found.content["runner"]["state"])
        _mend_stats(record, folder, ahead.plan, ahead.spec.experiment, report)
    before = settings_from_json(ahead.found.content["runner"]["state_args"]["settings"])
    flags = [f"--{flag.name.replace('_', '-')}" for flag in FLAGS if flag.change not in (Change.ASIDE, Change.SILENT)
             and flag.name in ahead.settings.explicit and getattr(ahead.settings, flag.name) != getattr(before, flag.name)]
    report.already_done(ahead.path if latest else ahead.found.path, ahead.plan, flags)
    report.weights(_save_weights_of(ahead))


def _save_weights_of(ahead: Outline) -> Path | None:
    """Write the weights of a plan that is complete, if they are asked for."""
    assert ahead.found is not None
    content, as_folder = ahead.found.content, ahead.settings.checkpoint_format == "sharded" and not is_folded(ahead.spec.experiment)
    if ahead.settings.save_weights_only is None or ahead.spec.tokenizer is None:
        return None
    model, optimizers = content["model"], None
    if not as_folder or are_averages_in(content):  # else they stay where they are, and are written one after the other
        module = ahead.spec.build(ahead.spec.tokenizer.vocab_size)
        module.load_state_dict(model["state"])
        model, optimizers = {**model, "state": module.state_dict()}, optimizers_in(content, module)
    return save_weights(ahead.settings, lambda target: write_alone(target, model, as_folder), optimizers)


def _make(ahead: Outline, runtime: Runtime, stages: dict[str, OpenStage], report: Report, interrupt: Interrupt, callbacks: Callbacks | None,
          prompts: list[str], accord: Accord) -> Run:
    """Make model, optimizers and all that belongs to the run, and give them what the checkpoint has."""
    settings = ahead.settings
    if runtime.device.type == "cuda" and not can_pin():
        report.say("WARNING: no memory can be pinned here, so the program waits for each copy to and from the GPU, and steps take longer.")
    model, device_model, optimizers = make_model(ahead, runtime, stages.values(), report.say, report.compiled,
                                                  nullcontext if interrupt.shared else interrupt.at_once,
                                                  partial(sharding.place, settings=settings, runtime=runtime, accord=accord, interrupt=interrupt))
    check_round_trip(model.tokenizer, ((name, stage.data) for name, stage in stages.items()), report.say, refuse=ahead.found is None)
    check_teachers(stages.values(), settings, model.tokenizer)
    if ahead.stored is None:
        _compare_size(settings, model, report.say)
        _warn_of_random_base(ahead, stages, report.say)
    notifier = Notifier(callbacks)
    runner = RunnerComponent(settings, runtime, notifier, NonfiniteGuard(settings, lambda: runtime.scaler.is_enabled(), report.say),
                             RunRecord(ahead.path.stem))
    completions = CompletionWriter(prompts, expanded(settings.out_dir) / f"{ahead.path.stem}_samples.jsonl", settings.sample_tokens, settings.seed,
                                   report.say, settings.sample_count, settings.sample_temperature)
    run = Run(settings, ahead.path, stages, ahead.curriculum, model, runner, optimizers, LrSchedulersComponent(settings),
              device_model, report, notifier, interrupt, completions, _make_saver(ahead, runtime.ranks, report.say),
              foreign_sizes(settings, ahead.plan), accord)
    if ahead.stored is not None:
        _restore(run, ahead.stored)
    for stage in stages.values():
        try:
            run.record.stats.declare(stage.objective.figures)
        except ValueError as error:
            raise UserError(f"stage '{stage.stage.name}': its objective {stage.settings.objective} cannot be used here ({error}).") from None
    return run


def _make_saver(ahead: Outline, ranks: Ranks, say: Say) -> Saver:
    """Make what saves states, as files or as folders of shards."""
    folders = ahead.settings.checkpoint_format == "sharded"
    ranks.saves_together |= folders and ranks.size > 1
    return Saver(ahead.path, ahead.settings.keep, ranks.collect if ranks.shards else None, Writers(ranks) if folders else None, say)


def _warn_of_random_base(ahead: Outline, stages: dict[str, OpenStage], say: Say) -> None:
    """Warn when an adapter is trained on a new model, whose weights would stay random for good."""
    first = next(iter(stages.values()), None)
    if first is not None and first.settings.adapter is not None and ahead.spec.initial_weights is None and split_name(ahead.spec.experiment)[0] != "hf":
        say(f"WARNING: stage '{first.stage.name}': its adapter is trained on a new model, whose random weights stay as they are. Give --initial-model, an "
            "experiment hf:... with weights, or a stage without an adapter before it.")


def _compare_size(settings: Settings, model: ModelComponent, say: Say) -> None:
    """Warn when a new model is far from the size that was asked for, as its tokenizer has learned fewer tokens than it was to."""
    built = sum(parameter.numel() for parameter in model.module.parameters())
    if settings.params is not None and not 1 / _FAR < built / settings.params < _FAR:
        say(f"WARNING: --params {compact(settings.params)}: the model has {built:,} parameters, because its tokenizer found no more than "
            f"{model.tokenizer.vocab_size:,} tokens in the texts. Take --tokenizer train:{model.tokenizer.vocab_size}, so that the size is chosen for it.")


def _restore(run: Run, stored: dict[str, Any]) -> None:
    """Give the components what the checkpoint has."""
    for component in run.components[1:]:
        if not (component.name == "optimizers" and run.settings.ignore_optimizer):
            try:
                component.restore(stored[component.name]["state"])
            except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                raise UserError(f"model {run.path}: its {component.name} cannot be restored ({type(error).__name__}: {error}); it is damaged, or not of this "
                                "version. It is left as it is; choose another --model, or --reset-history to start over.") from error
    run.model.forms = dict(stored["model"]["state_args"].get("forms", {}))  # files of version 0.1 lack it
    run.runner.stages = stages_of_checkpoint(stored, run.curriculum, run.model.args["context_len"])
    if run.settings.ignore_optimizer:
        run.lr_schedulers.start_warmup()
    run.began_at = run.record.stats.totals.copy()
    if run.settings.resume != "latest":
        run.notifier.begin_another()
    run.record.note_resume()
    run.changes = changes(run.settings, stored, run.curriculum, {name: stage.settings for name, stage in run.stages.items()},
                          run.runner.runtime.described)


def _note_changes(stage: OpenStage) -> list[str]:
    """Say which sources of a begun stage are not what they were, and of others how they are read now."""
    state, data = stage.state, stage.data
    if state.fingerprints is None:
        return []
    now = data.fingerprints()
    data.warnings += describe_readings(state.fingerprints, now)
    differences = describe_changes(state.fingerprints, now)
    if not differences:
        state.fingerprints = now
    return [f"stage '{state.name}': the data of {change} has changed since the checkpoint" for change in differences]


def _carry_over(stage: OpenStage, found: Found | None) -> None:
    """Adapt the position of a begun stage to its changed data."""
    state, data = stage.state, stage.data
    if state.position is not None and state.fingerprints is not None and found is not None:
        totals = found.content["runner"]["state"]["step_stats"].get(state.name, {})
        with position_of(state.name):
            state.position = data.carry_over(state.position, state.fingerprints, totals.get("total_train_samples", 0) + totals.get("no_tokens", 0))
    state.fingerprints = data.fingerprints()


def _check_space(run: Run) -> None:
    """See that the files of the run will fit on the disk, and that the time limit leaves time to write one.

    :raises UserError: when they will not.
    """
    plain = [stage.settings for stage in run.stages.values() if stage.settings.adapter is None]
    state = max((optimizers_of(settings, run.device_model.raw).state_bytes() for settings in plain), default=0)
    size = checkpoint_bytes(run.device_model.raw, state)
    stages = [state.name for state in run.curriculum.states]
    early = [name for name in stages[:-1] if name in run.stages and run.stages[name].settings.patience is not None]
    bases = [f"base of {name}" for name, stage in run.stages.items() if stage.settings.adapter is not None and stage.state.fingerprints is None]
    run.interrupt.expect_save(size)
    at_once = 2 if run.saver.writes_folders else 1  # the best state and the newest
    check_free_space(run.path, size, [*best_names(early), *stages, *bases], run.settings.keep, at_once)


def _prepare_folders(run: Run, found: Found | None, lock: Lock) -> None:
    """Make the folders, set aside what the run does not go on from, and write the settings beside the statistics; rank 0 does it for all."""
    if not run.is_main:
        run.notifier.know(run.record.stats)
        run.settings_record = settings_record(run)
        return
    folder = make_folder(run.out_dir, "output folder")
    make_folder(run.path.parent, "output folder")
    lock.take()
    clean_up(run.path, folder)
    if run.settings.reset_history and (kept := set_history_aside(run.path, folder, run.curriculum.plan)):
        run.report.say(f"kept the old model as {kept}")
    adopt(run.settings, run.path, found, list(run.stages), run.report.say)
    _mend_stats(run.record, folder, run.curriculum.plan, run.model.experiment, run.report)
    record = run.settings_record = settings_record(run)
    write_settings(run)
    samples = run.completions.begin(run.record.progress.step)
    run.notifier.start(run.path.stem, folder, flat_settings(record), record["plan"], run.record.stats, list(run.record.stage_stats.values()), samples)
    if found is not None:
        run.notifier.event("resumed", run.record.progress, run.record.stage)


def _facts(run: Run) -> dict[str, object]:
    """List what all ranks must have alike, by what it is called."""
    states = [stage.state.fingerprints or stage.data.fingerprints() for stage in run.stages.values()]
    return {"version of lmplay or torch": versions(), "flags": run.settings.to_json(), "plan": run.curriculum.plan.to_json(),
            "checkpoint": (dict(run.began_at), run.record.run if run.record.resumes else None), "data": states,
            "model": (run.model.experiment, run.model.args, crc32(json.dumps(run.model.tokenizer.spec, sort_keys=True).encode()))}


def _mend_stats(record: RunRecord, folder: Path, plan: Plan, experiment: str, report: Report) -> None:
    """Write the statistics that the checkpoint knows and the folder lacks, and say which other run's are replaced."""
    for other in record.replaces(folder, [stage.name for stage in plan.stages]):
        report.say(f"WARNING: {folder} has statistics of another run ({printable(other)}) of a model of the name {record.model}; those of this run "
                   f"({record.run}) replace them. Another --out-dir would keep them.")
    try:
        record.mend(folder, experiment)
    except OSError as error:
        report.save_failed(folder, error)


def _end(run: Run, kind: type[BaseException] | None, *_: object) -> None:
    """Finish the save that is being written, or cancel it where the user wants to end at once, and tell callbacks how the run ends.

    :param kind: the exception with which the run ends, if any.
    """
    at_once = kind is not None and not issubclass(kind, Exception)
    run.saver.close(give_up=at_once)
    if not at_once:
        asked = run.interrupt.exit_code is not None or (kind is not None and issubclass(kind, Unavailable))
        run.notifier.end("done" if run.curriculum.is_done else "stopped" if asked else "failed",
                         lambda: draw_plots(run.out_dir, run.path.stem, run.report.say))
