"""One or several optimizers as one.  Math floor."""
from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any, NamedTuple

import torch

from ..errors import UserError
from ..modules.sharded import is_sharded, shard_like
from .average import Teacher, WeightAverage

TEACHER = "teacher"
"""The teacher's name in a checkpoint."""


class Part(NamedTuple):
    """An optimizer of a set, and what holds for its parameters.

    `state_copies` is how many times the bytes of a parameter it keeps of it; `lr_factor` multiplies the learning rate; `weight_decay` is its own (None = that
    of the set); `takes_options` says that the settings of the set are meant for it; and `width_power` is that of :class:`lmplay.plan.names.Member`.
    """

    optimizer: torch.optim.Optimizer
    state_copies: float
    lr_factor: float = 1.0
    weight_decay: float | None = None
    takes_options: bool = True
    width_power: float | None = None


class OptimizerSet:
    """What updates a model's parameters, a component of a checkpoint: each parameter belongs to one part. A set without parts updates nothing."""

    name = "optimizers"

    def __init__(self, kind: str, parts: Mapping[str, Part], settings: Mapping[str, Any] | None = None, average: WeightAverage | None = None,
                 teacher: Teacher | None = None):
        """
        :param kind: what the user calls it.
        :param parts: by the names that they have in a checkpoint.
        :param settings: the arguments that it was built with, besides those that have a flag.
        :param average: of all parameters, if one is kept.
        :param teacher: that the objective compares with, if it has one.
        """
        self.kind, self.settings, self.average, self.teacher = kind, dict(settings or {}), average, teacher
        self._parts = dict(parts)
        self._width_ratio = 1.0
        self.members = {name: part.optimizer for name, part in parts.items()}
        for optimizer in self:
            if hasattr(optimizer, "train"):  # schedule-free ones have two points: where the gradient is taken, and their average
                optimizer.train()

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return iter(self.members.values())

    def __len__(self) -> int:
        return len(self.members)

    @property
    def lr(self) -> float:
        """The learning rate of the newest step, of the first part."""
        part = next(iter(self._parts.values()))
        group = part.optimizer.param_groups[0]
        return float(group["lr"]) / self._lr_factor(part, group)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all parts."""
        return [group for optimizer in self for group in optimizer.param_groups]

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimizer in self:
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update the parameters that have a gradient, then their averages."""
        for optimizer in (*self, *self.followers):
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
        for average in self.followers:
            average.step(skipped=condition)

    @property
    def followers(self) -> list[WeightAverage]:
        """What is updated after the parameters, and from them."""
        return [average for average in (self.average, self.teacher) if average is not None]

    def averages(self) -> dict[torch.Tensor, torch.Tensor]:
        """Give the averages of the weights that the model is to be used with, for the parameters that have one.

        Those of schedule-free optimizers are worked out from their state, in new tensors; those of `--ema` are the ones that are kept.
        """
        found: dict[torch.Tensor, torch.Tensor] = {}
        for optimizer in self:
            if hasattr(optimizer, "eval") and optimizer.state:
                before = {parameter: parameter.detach().clone() for parameter in optimizer.state}
                with torch.no_grad():
                    optimizer.eval()
                    found |= {parameter: parameter.detach().clone() for parameter in before}
                    optimizer.train()  # type: ignore[attr-defined]
                    for parameter, value in before.items():
                        parameter.copy_(value)  # there and back may differ in the last bit
        if self.average is not None:
            found |= {parameter: state["average"] for parameter, state in self.average.state.items()}
        return found

    def use_averages(self) -> None:
        """Give the model the averages of its weights for good: it is not trained any more."""
        _copy(self.averages())

    @contextmanager
    def averaged(self) -> Iterator[bool]:
        """Give the model the averages of its weights in this block, and then its weights again, bit for bit; tells whether there are any."""
        averages = self.averages()
        with _lent(averages):
            yield bool(averages)

    def taught(self) -> AbstractContextManager[None]:
        """Give the model the weights of the teacher in a block, and then its own again, bit for bit."""
        assert self.teacher is not None
        return _lent({parameter: state["average"] for parameter, state in self.teacher.state.items()})

    def set_lr(self, lr: float) -> None:
        """Give all parameters a learning rate, times the factor of their part, and of matrices that of the width."""
        for part in self._parts.values():
            for group in part.optimizer.param_groups:
                group["lr"] = lr * self._lr_factor(part, group)

    def adapt_to_width(self, ratio: float) -> None:
        """Adapt the learning rates of matrices, from the next :meth:`set_lr` on: those of the parameters that decay, which embeddings, norms and biases do not.

        :param ratio: the width of a model that they suit, by that of this one; 1 = they suit this one.
        :raises UserError: when it is not known how that of an optimizer depends on the width.
        """
        if ratio != 1 and any(part.width_power is None for part in self._parts.values()):
            raise UserError(f"lr_width: how the best learning rate depends on the width of a model is not known for {self.kind} or an optimizer of the rules; "
                            "leave it out, or take adamw or muon.")
        self._width_ratio = ratio

    def set_weight_decay(self, weight_decay: float | None) -> None:
        """Give the parameters that decay another weight decay, but for the parts that have their own; the others keep 0.

        :param weight_decay: None = each part's default.
        """
        for part in self._parts.values():
            chosen = weight_decay if part.weight_decay is None else part.weight_decay
            for group in part.optimizer.param_groups:
                group["weight_decay"] = (part.optimizer.defaults.get("weight_decay", 0.0) if chosen is None else chosen) if group["decays"] else 0.0

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Give the parts that have them other settings than learning rate and weight decay.

        :param options: by the names that torch gives them, such as betas; None = the part's default.
        """
        for part in self._parts.values():
            for group in part.optimizer.param_groups if part.takes_options else ():
                group.update({name: part.optimizer.defaults[name] if value is None else value for name, value in options.items() if name in group})

    def state_bytes(self, trained_only: bool = False) -> int:
        """Give the bytes that the state will take once every parameter has been updated.

        :param trained_only: leave out parameters that are frozen now.
        """
        return sum(round(parameter.nbytes * (copies + len(self.followers))) for parameter, copies in self._parameters()
                   if parameter.requires_grad or not trained_only)

    def placeholder(self) -> list[torch.Tensor]:
        """Allocate the memory of the state that trained parameters do not have yet."""
        has_state = {id(parameter) for optimizer in self for parameter in optimizer.state}
        return [torch.ones_like(parameter) for parameter, copies in self._parameters() if parameter.requires_grad and id(parameter) not in has_state
                for _ in range(math.ceil(copies))]

    def state_args(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        settings = {"settings": self.settings} if self.settings else {}
        return {name: {"optimizer": self.kind, **settings} for name in self._kept}

    def state(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`; the state of each member by its name."""
        return {name: optimizer.state_dict() for name, optimizer in self._kept.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`lmplay.component.Component`; the state may have been saved on another kind of device.

        A teacher that the state has none of is yet to begin, and one of a stage that has ended is left out.
        """
        try:
            if state.keys() - {TEACHER} != self._kept.keys() - {TEACHER}:
                raise ValueError(f"the file has {', '.join(state)}, this run {', '.join(self._kept)}")
            for name, optimizer in self._kept.items():
                if name in state or name != TEACHER:
                    _load_state(optimizer, state[name])
        except (ValueError, KeyError) as error:
            raise UserError(f"optimizers: the file's state does not fit ({error}); --ignore-optimizer goes on with a fresh one.") from None

    def _lr_factor(self, part: Part, group: Mapping[str, Any]) -> float:
        """Give what the learning rate of a group is multiplied by."""
        return part.lr_factor * (self._width_ratio ** (part.width_power or 0.0) if group["decays"] else 1.0)

    @property
    def _kept(self) -> dict[str, torch.optim.Optimizer]:
        """What has a state, by its name in a checkpoint."""
        averages = {"ema": self.average, TEACHER: self.teacher}
        return {**self.members, **{name: average for name, average in averages.items() if average is not None}}

    def _parameters(self) -> Iterator[tuple[torch.nn.Parameter, float]]:
        """Go over the parameters, each with how many times its bytes are kept of it."""
        for part in self._parts.values():
            for parameter in chain.from_iterable(group["params"] for group in part.optimizer.param_groups):
                yield parameter, part.state_copies


@contextmanager
def _lent(values: Mapping[torch.Tensor, torch.Tensor]) -> Iterator[None]:
    """Give parameters other values in this block, and then their own again, bit for bit."""
    before = {parameter: parameter.detach().clone() for parameter in values}
    try:
        _copy(values)
        yield
    finally:
        _copy(before)


def _copy(values: Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Give parameters other values."""
    with torch.no_grad():
        for parameter, value in values.items():
            parameter.copy_(value)


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
    if parameters and is_sharded(parameters[0]):
        state = {**state, "state": {number: {name: _part_of(value, parameters[number]) for name, value in values.items()}
                                    for number, values in state["state"].items()}}
    groups = [{**now, **before, **{name: now[name] for name in _KERNELS & now.keys()}} for before, now in zip(saved, own, strict=True)]
    optimizer.load_state_dict({**state, "param_groups": groups})


def _part_of(value: Any, parameter: torch.nn.Parameter) -> Any:
    """Give this rank's part of a value that is kept for each number of a sharded parameter; of others a copy, which needs the file no longer."""
    if not isinstance(value, torch.Tensor):
        return value
    return shard_like(parameter, value) if value.shape == parameter.shape else value.clone()


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
    """Check the state of each parameter against what an optimizer of the same kind has after one step; raises ValueError.

    For those of torch that is a step of a small parameter. What others keep may depend on the size: theirs is a step of a parameter of the same shape.
    """
    of_torch = _is_of_torch(type(optimizer))
    shapes = {number: _SIZES[:parameter.dim()] if of_torch else tuple(parameter.shape) for number, parameter in enumerate(parameters)}
    expected = {shape: _state_after_a_step(type(optimizer), settings, shape, parameters[0].device) for shape in {*shapes.values()}}
    for number, values in state.items():
        if not 0 <= number < len(parameters) or (of_torch and values.keys() != expected[shapes[number]].keys()):
            raise ValueError(f"the state of parameter {number} is not one of this optimizer")
        real = dict(zip(_SIZES, parameters[number].shape, strict=False)) if of_torch else {}
        wrong = [name for name, like in expected[shapes[number]].items() if name in values and not _is_state_like(values[name], like, real)]
        if wrong:
            raise ValueError(f"{wrong[0]} of parameter {number} has another form")


def _is_of_torch(kind: type[torch.optim.Optimizer]) -> bool:
    """Tell whether an optimizer is one of torch's own."""
    return any(base.__module__.startswith("torch.optim.") for base in kind.__mro__[:-1] if base not in torch.optim.Optimizer.__mro__)


def _is_state_like(value: Any, like: Any, real: Mapping[int, int]) -> bool:
    """Tell whether a value in a file has the form of one of an optimizer.

    :param real: what the sizes of the one stand for in the other.
    """
    if isinstance(like, dict):
        return isinstance(value, dict) and all(_is_state_like(value[name], part, real) for name, part in like.items() if name in value)
    if isinstance(like, (list, tuple)):
        return isinstance(value, (list, tuple)) and len(value) == len(like) and all(_is_state_like(*pair, real) for pair in zip(value, like, strict=True))
    if not isinstance(like, torch.Tensor):
        return _is_like(value, like)
    return isinstance(value, torch.Tensor) and value.is_floating_point() == like.is_floating_point() and not value.is_complex() \
        and list(value.shape) == [real.get(size, size) for size in like.shape]


def _state_after_a_step(kind: type[torch.optim.Optimizer], settings: dict[str, Any], shape: tuple[int, ...], device: torch.device) -> dict[str, Any]:
    """Give an optimizer's state of a parameter of a shape after one step, as in a file."""
    parameter = torch.nn.Parameter(torch.zeros(shape, device=device))
    parameter.grad = torch.zeros_like(parameter)
    taken = inspect.signature(kind).parameters.keys() - {"params"} - _KERNELS
    optimizer = kind([parameter], **{name: value for name, value in settings.items() if name in taken})
    if hasattr(optimizer, "train"):
        optimizer.train()
    optimizer.step()
    state: dict[str, Any] = optimizer.state_dict()["state"].get(0, {})
    return state
