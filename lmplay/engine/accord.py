"""What ranks decide together: to stop, to fail, to go on.  Engine floor, no torch: one process has nothing to decide, see :mod:`.together` for several."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import nn

    from ..device.ranks import Ranks

S = TypeVar("S")
T = TypeVar("T")


class Accord:
    """The decisions of a single process. All ranks make the same calls in the same order."""

    @property
    def ranks(self) -> Ranks:
        """The ranks that train together."""
        from ..device.ranks import Ranks

        return Ranks()

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Do work on every rank, and return what each has found, in order.

        :param work: may return None when it was interrupted; then all ranks stop.
        :raises Stopped: on all ranks, when a request to stop has come on any.
        :raises Exception: on all ranks, when the work has raised one on any.
        """
        return [work()]

    def alike(self, work: Callable[[], T]) -> T:
        """Do work on every rank, and return what this one has found; see :meth:`gather`."""
        return work()

    def main_first(self, work: Callable[[], T]) -> T:
        """Do work on rank 0, then on the others, which find what it has downloaded; see :meth:`alike`."""
        return work()

    def from_main(self, work: Callable[[], T]) -> T:
        """Do work on rank 0 only, and return what it has found; see :meth:`gather`."""
        return work()

    def in_shares(self, items: Sequence[S], work: Callable[[Sequence[S]], list[T] | None]) -> list[T] | None:
        """Do work on items, each rank on its share of them, and return what has been made of each item, in order; see :meth:`gather`.

        :param work: gives as many values as it gets items, which may be none; or None when it was interrupted, and then None is returned.
        """
        ranks = self.ranks
        parts = [part for part in self.gather(lambda: work(items[ranks.rank::ranks.size])) if part is not None]
        return [parts[number % ranks.size][number // ranks.size] for number in range(len(items))] if len(parts) == ranks.size else None

    def check_same(self, facts: Callable[[], dict[str, object]]) -> None:
        """Check that all ranks have the same facts.

        :param facts: gives them, by what they are called.
        :raises UserError: naming those that differ.
        """

    @contextmanager
    def in_unison(self, module: nn.Module) -> Iterator[bool]:
        """Make a context manager around passes of a model; True = each rank has a part of its weights, so that all do the same passes at the same time.

        None may leave them before the others: a rank that fails in them ends alone.
        """
        yield False

    def announce(self, error: Exception) -> None:
        """Tell all ranks of an error of this one, where they have to help to save what has been done before it; the error is still to be raised."""

    def can_save(self) -> bool:
        """Tell whether all ranks have come to save, also where an error is what they have agreed on; asked where all have to help."""
        return True

    def begin_step(self, seed: int, step: int) -> None:
        """Begin to ask, behind the work of a step, whether all ranks do it.

        :param seed: the run's.
        :param step: the steps before.
        """

    def failed_elsewhere(self, error: BaseException) -> bool:
        """Tell whether an error has come from another rank: this one has done nothing by halves."""
        return False

    def end_step(self) -> None:
        """The step has been done: nothing in it is left that ranks do together."""
