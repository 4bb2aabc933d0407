"""Building the optimizers of a model by name.  Math floor."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import torch
from torch import nn

from ..errors import UserError, nearest
from ..modules.adapters import adapter_parameters
from ..plan.names import CODE, OPTIMIZERS, Member, OptimizerRow, optimizer_row
from ..plan.settings import StageSettings
from ..plan.training_keys import OptimizerRule
from .average import Teacher, WeightAverage
from .groups import follow_rules, parameter_groups
from .set import TEACHER, OptimizerSet, Part


def optimizers_of(stage: StageSettings, model: nn.Module, by_name: bool = True) -> OptimizerSet:
    """Build what updates all parameters of a model in a stage, see :func:`build_optimizers`, with learning rates for its width."""
    optimizers = build_optimizers(stage.optimizer, model, stage.lr, stage.weight_decay, by_name, stage.optimizer_settings, stage.optimizer_rules, stage.ema,
                                  stage.teacher_decay)
    optimizers.adapt_to_width(width_ratio(stage, model))
    return optimizers


def begin_teacher(optimizers: OptimizerSet, stage: StageSettings, model: nn.Module) -> None:
    """Let the teacher of a stage begin with the present weights, unless it has begun; without one, keep none."""
    optimizers.teacher = (optimizers.teacher or _teacher_of(model, stage.teacher_decay)) if stage.teacher_decay else None
    if optimizers.teacher is not None:
        optimizers.teacher.begin(stage.teacher_decay)


def _teacher_of(model: nn.Module, decay: float) -> Teacher | None:
    """Make a teacher of what is trained in a model, which is yet to begin; None without a decay."""
    return Teacher([*adapter_parameters(model).values()] or model.parameters(), decay) if decay else None


def width_ratio(stage: StageSettings, model: nn.Module) -> float:
    """Give the width of a model that the learning rate of a stage suits, by that of this model, which is the width of what its head reads; 1 = it suits any.

    :raises UserError: when the head does not tell its width.
    """
    if not stage.lr_width:
        return 1.0
    head: Any = model.head
    terms = head.linear_terms() if hasattr(head, "linear_terms") else None
    weight = terms.weight_VD if terms is not None else getattr(head, "weight", None)
    if weight is None:
        raise UserError("lr_width: the model's head has no weight, so its width is not known; leave it out, or give --lr-width 0 where a recipe has set it.")
    return stage.lr_width / int(weight.shape[1])


def build_like(state: Mapping[str, Any], build: Callable[..., OptimizerSet]) -> OptimizerSet:
    """Build optimizers for a stored state: what does not decay is what did not when it began, also before names counted (:func:`parameter_groups`).

    :param state: of an :class:`OptimizerSet`.
    :param build: builds one, and takes `by_name`.
    """
    def sizes(members: Mapping[str, Any]) -> list[list[int]]:
        return [[len(group["params"]) for group in member["param_groups"]] for name, member in members.items() if name != TEACHER]

    optimizers = build()
    return optimizers if sizes(optimizers.state()) == sizes(state) else build(by_name=False)


def build_optimizers(name: str, model: nn.Module, lr: float, weight_decay: float | None = None, by_name: bool = True,
                     settings: Mapping[str, Any] | None = None, rules: Sequence[OptimizerRule] = (), ema: float = 0.0,
                     teacher_decay: float = 0.0) -> OptimizerSet:
    """Build what updates all parameters of a model, or those of its adapter, where it has one; it must be on its device by now.

    :param name: a key of :data:`lmplay.plan.names.OPTIMIZERS`, or ``module:Class``.
    :param model: the raw model.
    :param lr: learning rate.
    :param weight_decay: for parameters that decay (see :func:`parameter_groups`); None = the default of that name.
    :param by_name: see :func:`parameter_groups`.
    :param settings: other arguments of the class, or of the first class where the name stands for several.
    :param rules: for parameters that are updated otherwise.
    :param ema: decay of the average of the weights that is kept; 0 = none.
    :param teacher_decay: that of a teacher, which is yet to begin; 0 = none.
    :return: one part by the name `main`, or several by the words for their parameters; those of a rule have its name as well.
    :raises UserError: when there is no optimizer of that name, its package is not installed, it does not take the settings, the rules do not fit the model, or
        one keeps an average besides that of `ema`.
    """
    followed = follow_rules(model, rules)
    ruled, own = set().union(*followed), list(adapter_parameters(model).values())
    rest = None if not (ruled or own) else {id(parameter) for parameter in own or model.parameters()} - ruled
    parts = dict(_parts(name, model, lr, weight_decay, by_name, settings or {}, rest))
    for rule, among in zip(rules, followed, strict=True):
        same = rule.kind in (None, name)
        for key, part in _parts(name if same else str(rule.kind), model, lr, rule.weight_decay if rule.weight_decay is not None else weight_decay,
                                by_name, (settings or {}) if same else {}, among):
            if any(group["params"] for group in part.optimizer.param_groups):
                parts[f"{key} {rule.name}"] = part._replace(lr_factor=part.lr_factor * rule.lr, weight_decay=rule.weight_decay, takes_options=same)
    averaging = [type(part.optimizer).__name__ for part in parts.values() if hasattr(part.optimizer, "eval")]
    if ema and averaging:
        raise UserError(f"ema {ema:g}: {averaging[0]} keeps an average of its own, and there is one of each weight; give --ema 0, or take another optimizer.")
    return OptimizerSet(name, parts, settings or {}, WeightAverage(own or model.parameters(), ema) if ema else None,
                        _teacher_of(model, teacher_decay))


def _parts(name: str, model: nn.Module, lr: float, weight_decay: float | None, by_name: bool, settings: Mapping[str, Any], among: Collection[int] | None) \
        -> Iterator[tuple[str, Part]]:
    """Build the optimizers of a name over some of the parameters."""
    if name not in OPTIMIZERS and not CODE.fullmatch(name):
        raise UserError(f"--optimizer {name}: there is no such optimizer.{nearest(name, OPTIMIZERS)} There are: {', '.join(OPTIMIZERS)}.")
    row = optimizer_row(name)
    for number, member in enumerate(row.members):
        kind = _class(row, member)
        optimizer = _build(row, member, kind, model, lr, weight_decay, by_name, {} if number else settings, among)
        yield "main" if len(row.members) == 1 else member.parameters, Part(optimizer, member.state_copies, member.lr_factor, width_power=member.width_power)


def _class(row: OptimizerRow, member: Member) -> type[torch.optim.Optimizer]:
    """Import the class of an optimizer; raises UserError where that is not possible."""
    install = f" pip install {row.package} (or 'lmplay[optimizers]') brings it." if row.package else " Give the module of an installed package, and its class."
    try:
        kind = EntryPoint(row.name, member.target, "").load()
    except Exception as error:  # a module can raise anything on import
        raise UserError(f"optimizer {row.name}: {member.target} cannot be imported ({type(error).__name__}: {error}).{install}") from error
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise UserError(f"optimizer {row.name}: {member.target} is not a subclass of torch.optim.Optimizer.")
    return _without_compiler(kind) if member.target.startswith("torch.optim:") else kind


def _build(row: OptimizerRow, member: Member, kind: type[torch.optim.Optimizer], model: nn.Module, lr: float, weight_decay: float | None, by_name: bool,
           settings: Mapping[str, Any], among: Collection[int] | None) -> torch.optim.Optimizer:
    """Build one torch optimizer over its part of the parameters."""
    takes = inspect.signature(kind).parameters
    default_decay = row.weight_decay
    if default_decay is None:
        default_decay = takes["weight_decay"].default if "weight_decay" in takes else 0.0
    arguments: dict[str, Any] = {**member.settings, **settings, "lr": lr * member.lr_factor}
    if "weight_decay" in takes:
        arguments["weight_decay"] = default_decay
    if all(parameter.device.type in member.fused_on for parameter in model.parameters()):
        arguments["fused"] = True
    groups = parameter_groups(model, default_decay if weight_decay is None else weight_decay, member.parameters, by_name, among)
    wrong = [f"settings: found '{key}', which has a key of its own" for key in sorted({"params", "lr", "weight_decay", *row.takes} & settings.keys())]
    if not any(taken.kind is taken.VAR_KEYWORD for taken in takes.values()):
        wrong += [f"settings: {kind.__name__} has no '{key}'.{nearest(key, takes)} It takes: {', '.join(takes)}" for key in settings.keys() - takes.keys()]
    if wrong:
        raise UserError(*(f"optimizer {row.name}: {fault}." for fault in wrong))
    try:
        return kind(groups, **arguments)
    except (TypeError, ValueError, AssertionError, NotImplementedError) as error:
        raise UserError(f"optimizer {row.name}: {kind.__name__} refuses its settings ({type(error).__name__}: {error}).") from error


def _without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Remove the decorators of torch.compile from an optimizer, which is never compiled here: they import the compiler.

    That takes longer than importing all the rest of torch.
    """
    said = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict")}
    return type(kind.__name__, (kind,), {**said, "step": torch.no_grad()(inspect.unwrap(kind.step))})
