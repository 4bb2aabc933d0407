"""Weights of which each rank holds a part: the DTensors that FSDP2 makes of parameters, in pieces along their first dimension.  Imports torch only.

Nothing here imports `torch.distributed`: where nothing is sharded, it is not needed.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(value: Any) -> bool:
    """Tell whether a tensor is one of which each rank holds a part, or a model one of such tensors."""
    return hasattr(value, "reshard" if isinstance(value, nn.Module) else "placements")


def place_of(tensor: Any) -> tuple[int, int]:
    """Give the number of this rank's part of a sharded tensor, and how many parts there are."""
    dimension = next(number for number, placement in enumerate(tensor.placements) if placement.is_shard())
    return tensor.device_mesh.get_local_rank(dimension), tensor.device_mesh.size(dimension)


def parts_of(whole: Tensor, count: int) -> Sequence[Tensor]:
    """Divide a tensor as FSDP2 does: views of it, of which the last ones may be empty."""
    parts = whole.chunk(count)
    return (*parts, *(whole[:0] for _ in range(count - len(parts))))


def copy_into(tensor: Any, whole: Tensor) -> None:
    """Give a tensor other values; of one that is sharded each rank takes its part of `whole`."""
    with torch.no_grad():
        if is_sharded(tensor):
            number, count = place_of(tensor)
            tensor, whole = tensor.to_local(), parts_of(whole, count)[number]
        tensor.copy_(whole)


def shard_like(sharded: Any, whole: Tensor) -> Any:
    """Make a tensor that is sharded as another one of the same shape; `whole` is not kept."""
    made = torch.empty_like(sharded.detach(), dtype=whole.dtype)
    copy_into(made, whole)
    return made


def total_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Compute the norm of several tensors together, of all their parts; a scalar."""
    norm: Any = nn.utils.get_total_norm(list(tensors))
    return norm.full_tensor() if is_sharded(norm) else norm
