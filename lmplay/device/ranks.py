"""The processes that train together (ranks): what they share and sum.  Device floor.

One process is the identity: nothing is sent, nothing is copied.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from torch import Tensor, nn

_T = TypeVar("_T")


class Ranks:
    """One process that trains alone; several override every method."""

    rank = 0
    size = 1

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and speaks."""
        return self.rank == 0

    def share(self, parts: Sequence[_T]) -> Sequence[_T]:
        """Give this rank's part of what all ranks have made alike."""
        return parts[self.rank::self.size]

    def sum(self, value: Tensor) -> Tensor:
        """Sum a tensor over the ranks; waits for nothing on the host."""
        return value

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients over the ranks, in place; one that a rank lacks counts as zero."""

    def any(self, flag: bool) -> bool:
        """Tell whether any rank says so."""
        return flag

    def broadcast(self, value: _T) -> _T:
        """Give all ranks the main rank's value."""
        return value

    def barrier(self) -> None:
        """Wait for all ranks."""
