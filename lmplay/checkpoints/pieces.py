"""Tensors that lie in pieces in several files, and are read where they are used."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_KEEPING = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}


class Pieces(Tensor):
    """A tensor on the CPU whose rows are divided among others, which are joined when something is computed of it.

    Dividing it (`chunk`, `split`, slices of rows) reads nothing: a rank that copies its part of the rows reads these rows only.
    """

    parts: tuple[Tensor, ...]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # what is computed of it is no such tensor

    @staticmethod
    def __new__(cls, parts: Sequence[Tensor]) -> Pieces:
        """
        :param parts: in order, of the same type and with the same sizes but the first; at least one, and none has no dimension.
        """
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        made: Pieces = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=parts[0].dtype, device=parts[0].device)
        made.parts = tuple(parts)
        return made

    def __init__(self, parts: Sequence[Tensor]):
        """See :meth:`__new__`."""

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Pieces({len(self.parts)} of {list(self.shape)}, {self.dtype})"

    def whole(self) -> Tensor:
        """Join the pieces in memory."""
        return torch.cat(self.parts)

    def rows(self, begin: int, end: int) -> Tensor:
        """Give some of the rows, without reading them."""
        found, at = [], 0
        for part in self.parts:
            low, high = max(begin - at, 0), min(end - at, len(part))
            if low < high:
                found.append(part[low:high])
            at += len(part)
        return Pieces(found or [self.parts[0][:0]])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Divide rows, and do everything else with the whole."""
        first, named = args[0], dict(kwargs or {})
        if isinstance(first, Pieces) and function in _KEEPING:
            return Pieces(first.parts)
        if isinstance(first, Pieces) and function is torch.ops.aten.split.Tensor and not _at(args, named, 2, "dim", 0):
            return [first.rows(begin, begin + args[1]) for begin in range(0, len(first), args[1])]
        if isinstance(first, Pieces) and function is torch.ops.aten.slice.Tensor and not _at(args, named, 1, "dim", 0) and _at(args, named, 4, "step", 1) == 1:
            begin, end, _ = slice(_at(args, named, 2, "start", None), _at(args, named, 3, "end", None)).indices(len(first))
            return first.rows(begin, end)
        return function(*tree_map(_whole, args), **tree_map(_whole, named))


def memory_of(tensor: Tensor) -> tuple[Any, int]:
    """Identify the memory that a tensor has, which several may share, and say how many bytes that is."""
    if isinstance(tensor, Pieces):
        return ("pieces", id(tensor)), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _at(args: Sequence[Any], named: Mapping[str, Any], place: int, name: str, default: Any) -> Any:
    """Give an argument, by its place or its name."""
    return args[place] if len(args) > place else named.get(name, default)


def _whole(value: Any) -> Any:
    return value.whole() if isinstance(value, Pieces) else value
