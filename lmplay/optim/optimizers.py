"""Building the optimizers of a model by name.  Math floor."""
from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import torch
from torch import nn

from ..errors import UserError, nearest
from ..plan.names import OPTIMIZERS, Member
from .groups import parameter_groups
from .set import OptimizerSet


def build_like(state: Mapping[str, Any], name: str, model: nn.Module, lr: float) -> OptimizerSet:
    """Build optimizers for a stored state: what does not decay is what did not when it began, also before names counted (:func:`parameter_groups`).

    :param state: of an :class:`OptimizerSet`.
    """
    def sizes(members: Mapping[str, Any]) -> list[list[int]]:
        return [[len(group["params"]) for group in member["param_groups"]] for member in members.values()]

    optimizers = build_optimizers(name, model, lr)
    return optimizers if sizes(optimizers.state()) == sizes(state) else build_optimizers(name, model, lr, by_name=False)


def build_optimizers(name: str, model: nn.Module, lr: float, weight_decay: float | None = None, by_name: bool = True) -> OptimizerSet:
    """Build what updates all parameters of a model, which must be on its device by now.

    :param name: a key of :data:`lmplay.plan.names.OPTIMIZERS`.
    :param model: the raw model.
    :param lr: learning rate.
    :param weight_decay: for parameters that decay (see :func:`parameter_groups`); None = the default of that name.
    :param by_name: see :func:`parameter_groups`.
    :return: one member by the name `main`, or several by the word for their parameters.
    :raises UserError: when there is no optimizer of that name.
    """
    if name not in OPTIMIZERS:
        raise UserError(f"--optimizer {name}: there is no such optimizer.{nearest(name, OPTIMIZERS)} There are: {', '.join(OPTIMIZERS)}.")
    row = OPTIMIZERS[name]
    members = {"main" if len(row.members) == 1 else member.parameters: member for member in row.members}
    optimizers = {key: _build(member, model, lr, row.weight_decay, weight_decay, by_name) for key, member in members.items()}
    return OptimizerSet(name, optimizers, {key: member.state_copies for key, member in members.items()},
                        {key: member.lr_factor for key, member in members.items()})


def _build(member: Member, model: nn.Module, lr: float, default_decay: float, weight_decay: float | None, by_name: bool) -> torch.optim.Optimizer:
    """Build one torch optimizer over its part of the parameters."""
    settings = {**member.settings, "lr": lr * member.lr_factor, "weight_decay": default_decay}
    if all(parameter.device.type in member.fused_on for parameter in model.parameters()):
        settings["fused"] = True
    groups = parameter_groups(model, default_decay if weight_decay is None else weight_decay, member.parameters, by_name)
    return _without_compiler(EntryPoint(member.parameters, member.target, "").load())(groups, **settings)


def _without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Remove the decorators of torch.compile from an optimizer, which is never compiled here: they import the compiler.

    That takes longer than importing all the rest of torch.
    """
    said = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict")}
    return type(kind.__name__, (kind,), {**said, "step": torch.no_grad()(inspect.unwrap(kind.step))})
