"""What a part of a checkpoint can do.  Ground floor; holds no tensors itself, so it needs no torch."""
from __future__ import annotations

from typing import Any, Protocol


class Component(Protocol):
    """A part of a checkpoint: how it was built (`state_args`) and what it has become (`state`)."""

    name: str

    def state_args(self) -> dict[str, Any]:
        """Say how it was built: plain values only (numbers, strings, lists, dicts)."""

    def state(self) -> dict[str, Any]:
        """Give everything that changes while training: plain values and tensors, not copied."""

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state` says; raises UserError naming the component and the key on a mismatch."""
