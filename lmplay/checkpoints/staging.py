"""Copies from a GPU of NVIDIA to ordinary memory, by way of pinned memory of a bounded size.  Imports torch only."""
from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

# Bytes of each half. A power of two, to which torch rounds pinned memory up; larger ones are hardly faster.
_BYTES = 32 << 20


@dataclass
class _Half:
    """Pinned memory, its bytes in use, and where they are to go; `filled` happens once they are there."""

    memory: Tensor
    used: int = 0
    parts: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    filled: torch.cuda.Event | None = None

    def empty(self) -> None:
        """Wait until it is filled, and move its bytes to where they are to go."""
        if self.filled is not None:
            self.filled.synchronize()
        for part, target in self.parts:
            target.copy_(part)
        self.used, self.parts, self.filled = 0, [], None


class Staging:
    """Copies tensors to buffers on the CPU: the GPU fills one half of the pinned memory while the CPU empties the other.

    A GPU fills pinned memory several times as fast as other memory, and nobody has to wait for it. But a system may allow little of it (in small containers,
    under WSL 2), and no other program can have it; so it is not as large as the state. Where nothing can be pinned, copies are made without it.
    """

    def __init__(self, half_bytes: int = _BYTES):
        self._half_bytes = half_bytes
        self._halves: list[_Half] = []
        self._can_pin = True
        self._device = torch.device("cpu")  # of the last copy

    def copy(self, value: Tensor, target: Tensor) -> None:
        """Copy a tensor; it is there after :meth:`finish`.

        :param value: on a GPU of NVIDIA; not changed before :meth:`finish`.
        :param target: on the CPU, of the same type, shape and strides.
        """
        source, goal = _bytes_of(value), _bytes_of(target)
        if source is None or goal is None or not self._is_pinned():
            target.copy_(value)
            return
        done = 0
        while done < len(source):
            half = self._halves[0]
            count = min(len(source) - done, len(half.memory) - half.used)
            if not count:
                self._change_over(value.device)
                continue
            part = half.memory[half.used:half.used + count]
            part.copy_(source[done:done + count], non_blocking=True)
            half.parts.append((part, goal[done:done + count]))
            half.used, done = half.used + count, done + count
        self._device = value.device

    def finish(self) -> None:
        """Wait for all copies."""
        if self._halves:
            self._change_over(self._device)
            self._halves[1].empty()

    def drop(self) -> None:
        """Forget copies that are not complete, after an error."""
        self._halves = []

    def _change_over(self, device: torch.device) -> None:
        """Empty the half that was filled before, to be filled next."""
        filled, other = self._halves
        if filled.parts:
            filled.filled = torch.cuda.Event()
            filled.filled.record(torch.cuda.current_stream(device))
        other.empty()
        self._halves = [other, filled]

    def _is_pinned(self) -> bool:
        """Pin the memory at the first use; False where that is not possible."""
        if not self._halves and self._can_pin:
            try:
                self._halves = [_Half(torch.empty(self._half_bytes, dtype=torch.uint8, pin_memory=True)) for _ in range(2)]
            except RuntimeError:
                self._can_pin = False
        return self._can_pin


def _bytes_of(tensor: Tensor) -> Tensor | None:
    """View a tensor as bytes (N,), in the order in which they lie in memory; None where it has gaps or overlaps."""
    step = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1):
        if stride != step:
            return None
        step *= size
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
