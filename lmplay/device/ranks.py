"""The processes that train together, as ranks 0 to N - 1.  Imports torch only."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from torch import Tensor, nn

Value = TypeVar("Value")


class Ranks:
    """What a process does together with the others; all ranks make the same calls in the same order.

    This is a single process, for which every operation is the identity. For several, a subclass overrides all methods but `is_main` and `share`.
    """

    rank = 0
    size = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes files and talks to the user."""
        return self.rank == 0

    def share(self, items: Sequence[Value]) -> Sequence[Value]:
        """Return this rank's share of a sequence: every N-th item, so that shares of items sorted by length take about the same time."""
        return items[self.rank::self.size]

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks, without waiting for the device."""
        return tensor

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their sums over all ranks; a gradient that is None on some rank counts as zero there."""

    def any(self, flag: bool) -> bool:
        """Tell whether a flag is set on any rank."""
        return flag

    def broadcast(self, value: Value) -> Value:
        """Return the value of rank 0."""
        return value

    def barrier(self) -> None:
        """Wait until all ranks have come this far."""
