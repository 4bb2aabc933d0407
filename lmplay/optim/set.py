"""One or several optimizers as one.  Math floor."""
from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from ..errors import UserError


class OptimizerSet:
    """What updates a model's parameters, a component of a checkpoint: each parameter belongs to one member. A set without members updates nothing."""

    name = "optimizers"

    def __init__(self, kind: str, members: Mapping[str, torch.optim.Optimizer], state_copies: Mapping[str, int],
                 lr_factors: Mapping[str, float] | None = None):
        """
        :param kind: what the user calls it.
        :param members: the optimizers, by the names that they have in a checkpoint.
        :param state_copies: how many tensors of a parameter's size each keeps of it.
        :param lr_factors: what the learning rate of each is multiplied with; 1 for those that are not there.
        """
        self.kind, self.members = kind, dict(members)
        self._state_copies, self._lr_factors = state_copies, lr_factors or {}

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return iter(self.members.values())

    def __len__(self) -> int:
        return len(self.members)

    @property
    def lr(self) -> float:
        """The learning rate of the newest step, of the first member."""
        name, optimizer = next(iter(self.members.items()))
        return float(optimizer.param_groups[0]["lr"]) / self._lr_factors.get(name, 1.0)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all members."""
        return [group for optimizer in self for group in optimizer.param_groups]

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimizer in self:
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update the parameters that have a gradient."""
        for optimizer in self:
            optimizer.step()

    def can_skip_on_device(self) -> bool:
        """Tell whether the device alone can skip an update: by fused kernels, once all state is there (sgd's kernel would leave its first undefined)."""
        return all(group.get("fused") and all(parameter in optimizer.state for parameter in group["params"] if parameter.grad is not None)
                   for optimizer in self for group in optimizer.param_groups)

    def step_unless(self, condition: torch.Tensor) -> None:
        """Update unless a flag on the device is set, as torch's GradScaler tells fused kernels.

        :param condition: a scalar of bool, on the device.
        """
        for optimizer in self:
            optimizer.grad_scale, optimizer.found_inf = None, condition.float()  # type: ignore[attr-defined]
            try:
                optimizer.step()
            finally:
                del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]

    def set_lr(self, lr: float) -> None:
        """Give all parameters a learning rate, times the factor of their member."""
        for name, optimizer in self.members.items():
            for group in optimizer.param_groups:
                group["lr"] = lr * self._lr_factors.get(name, 1.0)

    def set_weight_decay(self, weight_decay: float | None) -> None:
        """Give the parameters that decay another weight decay; the others keep 0.

        :param weight_decay: None = each member's default.
        """
        for optimizer in self:
            for group in optimizer.param_groups:
                group["weight_decay"] = (optimizer.defaults["weight_decay"] if weight_decay is None else weight_decay) if group["decays"] else 0.0

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Give the members that have them other settings than learning rate and weight decay.

        :param options: by the names that torch gives them, such as betas; None = the member's default.
        """
        for optimizer in self:
            for group in optimizer.param_groups:
                group.update({name: optimizer.defaults[name] if value is None else value for name, value in options.items() if name in group})

    def state_bytes(self, trained_only: bool = False) -> int:
        """Give the bytes that the state will take once every parameter has been updated.

        :param trained_only: leave out parameters that are frozen now.
        """
        return sum(parameter.nbytes * copies for parameter, copies in self._parameters() if parameter.requires_grad or not trained_only)

    def placeholder(self) -> list[torch.Tensor]:
        """Allocate the memory of the state that trained parameters do not have yet."""
        has_state = {id(parameter) for optimizer in self for parameter in optimizer.state}
        return [torch.ones_like(parameter) for parameter, copies in self._parameters() if parameter.requires_grad and id(parameter) not in has_state
                for _ in range(copies)]

    def state_args(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {name: {"optimizer": self.kind} for name in self.members}

    def state(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`; the state of each member by its name."""
        return {name: optimizer.state_dict() for name, optimizer in self.members.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`lmplay.component.Component`; the state may have been saved on another kind of device."""
        try:
            if state.keys() != self.members.keys():
                raise ValueError(f"the file has {', '.join(state)}, this run {', '.join(self.members)}")
            for name, optimizer in self.members.items():
                _load_state(optimizer, state[name])
        except (ValueError, KeyError) as error:
            raise UserError(f"optimizers: the file's state does not fit ({error}); --ignore-optimizer goes on with a fresh one.") from None

    def _parameters(self) -> Iterator[tuple[torch.nn.Parameter, int]]:
        """Go over the parameters, each with the number of tensors of its size that are kept of it."""
        for name, optimizer in self.members.items():
            for parameter in chain.from_iterable(group["params"] for group in optimizer.param_groups):
                yield parameter, self._state_copies[name]


def _load_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load an optimizer's state; it keeps its own kernel (fused or not), where torch would take over that of the device on which the state was saved.

    :raises ValueError: when the state is not one of this optimizer: fused kernels would write beyond the end of a tensor that is too small.
    """
    own, saved = optimizer.state_dict()["param_groups"], state["param_groups"]
    if [group["params"] for group in own] != [group["params"] for group in saved]:
        raise ValueError("its parameters are not those of the model")
    for before, now in zip(saved, own, strict=True):
        for name in before.keys() & now.keys() - _KERNELS - {"params"}:
            if not _is_like(before[name], now[name]):
                raise ValueError(f"{name} is {str(before[name])[:40]}")
    parameters = list(chain.from_iterable(group["params"] for group in optimizer.param_groups))
    _check_tensors(optimizer, {**optimizer.defaults, **saved[0]}, parameters, state["state"])
    groups = [{**now, **before, **{name: now[name] for name in _KERNELS & now.keys()}} for before, now in zip(saved, own, strict=True)]
    optimizer.load_state_dict({**state, "param_groups": groups})


_KERNELS = {"fused", "foreach"}
# Of the dimensions of a small parameter: each tells which dimension of a real one it stands for, also where an optimizer keeps one of them only (Adafactor).
_SIZES = (2, 3, 5, 7, 11, 13, 17)


def _is_like(before: Any, now: Any) -> bool:
    """Tell whether a setting in a file may be in place of another: a number of another, a switch only of itself."""
    if isinstance(now, (list, tuple)):
        return isinstance(before, (list, tuple)) and len(before) == len(now) and all(map(_is_like, before, now))
    if type(now) in (int, float):
        return type(before) in (int, float) and math.isfinite(before)
    return type(before) is type(now) and bool(before == now)


def _check_tensors(optimizer: torch.optim.Optimizer, settings: dict[str, Any], parameters: list[torch.nn.Parameter], state: dict[int, dict[str, Any]]) -> None:
    """Check the state of each parameter against what an optimizer of the same kind has of a small parameter after one step; raises ValueError."""
    expected = {dims: _state_of_small(type(optimizer), settings, dims) for dims in {parameter.dim() for parameter in parameters}}
    for number, values in state.items():
        if not 0 <= number < len(parameters) or values.keys() != expected[parameters[number].dim()].keys():
            raise ValueError(f"the state of parameter {number} is not one of this optimizer")
        real = dict(zip(_SIZES, parameters[number].shape, strict=False))
        for name, like in expected[parameters[number].dim()].items():
            value = values[name]
            if not isinstance(like, torch.Tensor):
                alike = _is_like(value, like)
            else:
                alike = isinstance(value, torch.Tensor) and value.is_floating_point() == like.is_floating_point() and not value.is_complex() \
                    and list(value.shape) == [real.get(size, size) for size in like.shape]
            if not alike:
                raise ValueError(f"{name} of parameter {number} has another form")


def _state_of_small(kind: type[torch.optim.Optimizer], settings: dict[str, Any], dims: int) -> dict[str, Any]:
    """Give an optimizer's state of a parameter with this number of dimensions, of the first of `_SIZES`, after one step."""
    small = torch.nn.Parameter(torch.zeros(_SIZES[:dims]))
    small.grad = torch.zeros_like(small)
    taken = inspect.signature(kind).parameters.keys() - {"params"} - _KERNELS
    model = kind([small], **{name: value for name, value in settings.items() if name in taken})
    model.step()
    return model.state[small]
