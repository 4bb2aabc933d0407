"""Models that multiply few rows faster, for generation on a CPU.  Writing floor: imports torch only.

A step of generation multiplies each weight by one row for each text. It could take as long as it takes to read the weights, but the usual product of a few
rows takes longer: it rearranges the weight each time. Here the weight is rearranged once.
"""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

_Layer = TypeVar("_Layer", bound=nn.Linear)

# Products of more rows are hardly faster than without (`benchmarks/generate.py`).
_MOST_ROWS = 32


class _MklLinear(nn.Linear):
    """A linear layer that also has its weight in the order in which Intel's library (MKL) reads it: fastest for one row."""

    packed: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """See torch."""
        rows = x.numel() // x.shape[-1]
        if rows > _MOST_ROWS:
            return functional.linear(x, self.weight, self.bias)
        result: Tensor = torch.ops.mkl._mkl_linear(x, self.packed, self.weight, self.bias, rows)
        return result


class _OneDnnLinear(nn.Linear):
    """A linear layer that also has its weight in the order in which oneDNN reads it: fastest for a few rows, on AMD's processors twice as fast as MKL."""

    packed: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """See torch."""
        if x.numel() > _MOST_ROWS * x.shape[-1]:
            return functional.linear(x, self.weight, self.bias)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return result


def pack(model: nn.Module, rows: int, free_bytes: int) -> nn.Module:
    """Make a copy of a model that shares its weights and multiplies few rows faster; the results are the same but for rounding.

    The copy takes the memory of the weights once more.

    :param model: of any kind; its linear layers in float32 on a CPU are replaced in the copy. It is not changed, and must not be while the copy is used.
    :param rows: that will be multiplied most often: texts at once. With others the copy works too, but may be slower.
    :param free_bytes: memory that may be used.
    :return: the copy, not to be trained; the model itself where nothing is gained, or where the memory is too small.
    """
    layers = linear_layers(model)
    size = sum(layer.weight.nbytes for layer in layers.values())
    library = torch.backends.mkl if rows == 1 else torch.backends.mkldnn
    if not layers or rows > _MOST_ROWS or size > free_bytes or not library.is_available():
        return model
    if rows == 1:
        return with_layers(model, layers, _MklLinear, _pack_for_mkl)
    return with_layers(model, layers, _OneDnnLinear, _pack_for_onednn)


def _pack_for_mkl(layer: _MklLinear) -> None:
    layer.packed = torch.ops.mkl._mkl_reorder_linear_weight(layer.weight.detach(), 1)


def _pack_for_onednn(layer: _OneDnnLinear) -> None:
    layer.packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _MOST_ROWS)


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Find the linear layers in float32 on a CPU, by name; not quantized ones."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and "weight" in module._parameters}
    return {name: layer for name, layer in layers.items() if layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32}


def with_layers(model: nn.Module, names: Iterable[str], kind: type[_Layer], prepare: Callable[[_Layer], None]) -> nn.Module:
    """Make a copy of a model that shares its tensors, and in which linear layers are of another kind.

    :param names: of the layers.
    :param kind: a subclass of nn.Linear.
    :param prepare: gives such a layer what it has besides.
    """
    copied = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})  # the modules are copied, not their tensors
    for name in names:
        layer: Any = copied.get_submodule(name)
        before = type(layer)  # a head may have a `forward` of its own, which calls that of nn.Linear
        layer.__class__ = kind if before is nn.Linear else type(before.__name__, (before, kind), {})
        prepare(layer)
    return copied
