"""Optimizers by name.  Math floor: imports torch, its own folder, the tables of the plan floor and the ground floor only."""
from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint
from typing import Any

import torch
from torch import nn

from ..errors import UserError, nearest
from ..plan.names import OPTIMIZERS
from .groups import parameter_groups

# Tensors of a parameter's size that each keeps of it.
STATE_COPIES = {name: sum(member.state_copies for member in row.members) for name, row in OPTIMIZERS.items()}


def build_optimizer(name: str, model: nn.Module, lr: float, weight_decay: float | None = None) -> torch.optim.Optimizer:
    """Build an optimizer over all parameters of a model, which must be on its device by now.

    :param name: a key of :data:`OPTIMIZERS`.
    :param model: the raw model.
    :param lr: learning rate.
    :param weight_decay: for parameters that decay (see :func:`parameter_groups`); None = the optimizer's default, adamw 0.01, others 0.
    :return: the optimizer.
    :raises UserError: when there is no optimizer of that name.
    """
    if name not in OPTIMIZERS:
        raise UserError(f"--optimizer {name}: there is no such optimizer.{nearest(name, OPTIMIZERS)} There are: {', '.join(OPTIMIZERS)}.")
    row = OPTIMIZERS[name]
    (member,) = row.members
    kind = EntryPoint(name, member.target, "").load()
    settings = {**member.settings, "lr": lr, "weight_decay": row.weight_decay}
    if all(parameter.device.type in member.fused_on for parameter in model.parameters()):
        settings["fused"] = True
    return _without_compiler(kind)(parameter_groups(model, row.weight_decay if weight_decay is None else weight_decay), **settings)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give all groups a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def set_weight_decay(optimizer: torch.optim.Optimizer, weight_decay: float | None) -> None:
    """Give the group that decays another weight decay; the other group keeps 0.

    :param optimizer: one that :func:`build_optimizer` made.
    :param weight_decay: None = the optimizer's default.
    """
    weight_decay = optimizer.defaults["weight_decay"] if weight_decay is None else weight_decay
    for group in optimizer.param_groups:
        group["weight_decay"] = weight_decay if group["decays"] else 0.0


def load_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load an optimizer's state, which may have been saved on another kind of device.

    Torch would also take over the kernel (fused or not) that the saving device had; the present one keeps its own.

    :param optimizer: one of the same name and for the same model as the saved one.
    :param state: what its ``state_dict()`` was; not changed.
    :raises ValueError: torch's, when the groups don't match.
    """
    own = [{key: group[key] for key in ("fused", "foreach") if key in group} for group in optimizer.param_groups]
    saved = state["param_groups"]
    groups = [{**group, **kernel} for group, kernel in zip(saved, own, strict=True)] if len(saved) == len(own) else saved
    optimizer.load_state_dict({**state, "param_groups": groups})


def _without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Give the same optimizer, but for what its methods say to torch.compile, which never sees them here: to say it they import the compiler.

    That takes longer than importing all the rest of torch.
    """
    said = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict")}
    return type(kind.__name__, (kind,), {**said, "step": torch.no_grad()(inspect.unwrap(kind.step))})
