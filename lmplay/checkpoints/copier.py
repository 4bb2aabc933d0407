"""Copies of states, in memory that is used again.  State is copied nowhere else."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from ..modules.sharded import is_sharded
from .folder import Divided
from .staging import Staging

_PLAIN = {int, float, str, bool, type(None)}

Collect = Callable[[torch.Tensor, torch.Tensor | None], None]
"""Gathers a sharded tensor, see :meth:`lmplay.device.ranks.Ranks.collect`."""


class Copier:
    """Copies nested values; the tensors of the copy are buffers on the CPU, which the next copy reuses.

    Those of a GPU come by way of `staging`; without it they are copied to buffers where they are. Sharded tensors are whole in the copy: `collect` fills them.
    """

    def __init__(self, staging: Staging | None, collect: Collect | None = None):
        self._staging, self._collect = staging, collect
        self._buffers: dict[str, torch.Tensor] = {}  # those of the last copy

    @property
    def has_buffers(self) -> bool:
        """Whether it has made a copy."""
        return bool(self._buffers)

    def __call__(self, value: Any) -> Any:
        """Copy dicts, lists, objects, plain values, and tensors on any device; the copy overwrites the one before.

        Tensors that share memory share it in the copy.
        """
        return self.reserve(value)()

    def reserve(self, value: Any) -> Callable[[], Any]:
        """Take the memory for a copy, so that where there is none the copy before is still whole.

        :return: what makes the copy, and overwrites the one before.
        """
        buffers: dict[str, torch.Tensor] = {}
        parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        result = self._reserve(value, "", {}, buffers, parts)
        self._buffers = buffers

        def fill() -> Any:
            for source, buffer in parts:
                self._fill(source, buffer)
            if self._staging is not None:
                self._staging.finish()
            return result

        return fill

    def _reserve(self, value: Any, where: str, seen: dict[tuple[Any, ...], torch.Tensor], buffers: dict[str, torch.Tensor],
                 parts: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """Copy a value, but for the numbers in its tensors: these and their buffers are added to `parts`."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            key = _place_of(value, where)
            if key not in seen:
                seen[key] = buffers[where] = self._buffer_for(value, self._buffers.get(where))
                parts.append((value, seen[key]))
            return seen[key]
        if isinstance(value, (list, tuple)):
            if set(map(type, value)) <= _PLAIN:
                return value[:]
            return type(value)(self._reserve(part, f"{where}.{number}", seen, buffers, parts) for number, part in enumerate(value))
        new = copy.copy(value)
        attributes = new if isinstance(new, dict) else getattr(new, "__dict__", {})
        for key, part in attributes.items():
            attributes[key] = self._reserve(part, f"{where}.{key}", seen, buffers, parts)
        return new

    def _buffer_for(self, value: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
        """Give memory for a tensor: that of the copy before, if it has its shape."""
        whole = is_sharded(value)
        if before is not None and before.shape == value.shape and before.dtype == value.dtype and (whole or before.stride() == value.stride()):
            return before
        if whole:
            return torch.empty(value.shape, dtype=value.dtype)
        device = value.device if self._staging is None and value.device.type == "cuda" else torch.device("cpu")
        return torch.empty_like(value, device=device, requires_grad=False)

    def _fill(self, value: torch.Tensor, buffer: torch.Tensor) -> None:
        """Copy the numbers; :func:`send` meets sharded tensors in the same order."""
        if is_sharded(value):
            assert self._collect is not None
            self._collect(value, buffer)
        elif self._staging is not None and value.device.type == "cuda":
            self._staging.copy(value, buffer)
        else:
            buffer.copy_(value.detach())


def _place_of(value: torch.Tensor, where: str) -> tuple[Any, ...]:
    """Say where in memory a tensor is: those for which this is equal are one."""
    if is_sharded(value):
        return "sharded", id(value)
    if not value.numel():
        return (where,)
    return value.untyped_storage()._cdata, value.storage_offset(), value.dtype, value.shape, value.stride(), value.device


def send(value: Any, collect: Collect, seen: set[int]) -> None:
    """Send the parts of sharded tensors in nested values to the rank that copies them."""
    if is_sharded(value):
        if id(value) not in seen:
            seen.add(id(value))
            collect(value, None)
    elif isinstance(value, dict):
        for part in value.values():
            send(part, collect, seen)


def n_bytes(value: Any) -> int:
    """Count the bytes of the tensors in nested values."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, Divided):
        return n_bytes([value.rest, *(part.rows for part in value.own.values())])
    return sum(map(n_bytes, value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()))
