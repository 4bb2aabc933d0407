"""The interface of a checkpoint's components.  No torch."""
from __future__ import annotations

from typing import Any, Protocol


class Component(Protocol):
    """A part of a checkpoint: how it was built (`state_args`), and what has changed since (`state`)."""

    name: str

    def state_args(self) -> dict[str, Any]:
        """Return how it was built: plain values only (numbers, strings, lists, dicts)."""

    def state(self) -> dict[str, Any]:
        """Return everything that changes during training: plain values and tensors, not copied."""

    def restore(self, state: dict[str, Any]) -> None:
        """Load a state; raises UserError that names the component and the key on a mismatch."""
