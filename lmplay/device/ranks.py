"""The processes that train together, as ranks 0 to N - 1.  Imports torch only."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from torch import Tensor, nn

Value = TypeVar("Value")


class Ranks:
    """What a process does together with the others; all ranks make the same calls in the same order.

    This is a single process, for which every operation is the identity. For several, a subclass overrides all methods but `is_main` and `rounds`.
    """

    rank = 0
    size = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes files and talks to the user."""
        return self.rank == 0

    def rounds(self, items: Sequence[Value]) -> Iterator[Value | None]:
        """Deal out a sequence, an item to each rank in each round: this rank's item, None in a last round that has none for it.

        All ranks have as many rounds; of items that are sorted by length they have about the same work.
        """
        for first in range(0, len(items), self.size):
            yield items[first + self.rank] if first + self.rank < len(items) else None

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
