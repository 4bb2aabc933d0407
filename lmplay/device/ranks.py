"""The processes that train together, as ranks 0 to N - 1.  Imports torch only; :mod:`.processes` has those of torch.distributed."""
from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from heapq import heapreplace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Value = TypeVar("Value")


class Ranks:
    """What a process does together with the others; all ranks make the same calls in the same order.

    This is a single process, for which every operation is the identity. For several, a subclass overrides all methods but `is_main`, `share`, `rounds`
    and `deal`.
    With `shards` each rank holds a part of the weights only: all do the same number of forward and backward passes, at the same time.
    """

    rank = 0
    size = 1
    local_rank = 0
    shards = False
    reading: AbstractContextManager[Any] = nullcontext()
    """See :class:`lmplay.data.shares.Peers`."""
    saves_together = False
    """Whether each rank writes a part of every state."""

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes files and talks to the user."""
        return self.rank == 0

    @property
    def main_pid(self) -> int:
        """The process of rank 0."""
        return os.getpid()

    @property
    def local_size(self) -> int:
        """How many ranks this machine has."""
        return 1

    def end_alone(self) -> None:
        """Take note that others have gone, where a thread has found it: this process ends by itself."""

    def post(self, key: str, text: str) -> None:
        """Leave a text for rank 0, from any thread; raises OSError when that is not possible."""

    def posted(self, key: str) -> list[str] | None:
        """Return the texts that all other ranks have left for rank 0; None when they are not all there yet. Raises OSError when some ranks have gone."""
        return []

    def begin(self, device: torch.device, module: nn.Module) -> None:
        """Connect the devices, and give all ranks the weights of rank 0."""

    def share(self, items: Sequence[Value], cost: Callable[[Value], float]) -> Iterator[tuple[int, Value]]:
        """Yield this rank's items with their numbers: each item is one rank's, and all ranks have about the same cost.

        Items are dealt in order, each to the rank that has the least so far; in descending order of cost that is at most a third more than the best
        (Graham 1969, "Bounds on Multiprocessing Timing Anomalies").
        """
        takers = self.deal(items, cost)
        yield from ((number, item) for number, item in enumerate(items) if takers[number] == self.rank)

    def rounds(self, items: Sequence[Value], cost: Callable[[Value], float]) -> Iterator[tuple[int, Value, bool]]:
        """Yield this rank's items as :meth:`share` does, each with True.

        With `shards`, ranks that have fewer items than others get the cheapest one again, with False: they take part in a pass, whose result does not count.
        """
        mine = list(self.share(items, cost))
        yield from ((number, item, True) for number, item in mine)
        if self.shards and items:
            most = max(Counter(self.deal(items, cost)).values())
            cheapest = min(range(len(items)), key=lambda number: cost(items[number]))
            yield from ((cheapest, items[cheapest], False) for _ in range(most - len(mine)))

    def deal(self, items: Sequence[Value], cost: Callable[[Value], float]) -> list[int]:
        """Deal items to the ranks, see :meth:`share`; gives the rank of each."""
        totals, takers = [(0.0, rank) for rank in range(self.size)], []
        for item in items:
            total, rank = totals[0]
            takers.append(rank)
            heapreplace(totals, (total + cost(item), rank))
        return takers

    def swap(self, parts: Sequence[bytes] | None) -> list[bytes] | None:
        """See :class:`lmplay.data.shares.Peers`; called in one thread, which is not that of the others calls."""
        return None if parts is None else [*parts]

    def part(self, per_node: bool) -> tuple[int, int]:
        """Give the number of this rank's part of a model that is divided, and how many parts there are; `per_node` as in :meth:`shard`."""
        return 0, 1

    def shard(self, module: nn.Module, device: torch.device, per_node: bool, reduce_dtype: torch.dtype) -> None:
        """Divide a model's weights among the ranks, see :func:`lmplay.device.sharding.shard_model`; `per_node` = among those of each machine."""

    def collect(self, sharded: Tensor, whole: Tensor | None) -> None:
        """Give rank 0 the whole of a tensor of which each rank has a part.

        :param whole: on rank 0 a tensor on the CPU, which is filled; None on the others.
        """

    def spread(self, sharded: Tensor, whole: Tensor | None) -> None:
        """Give the ranks their parts of a tensor, those that are the first to have them (:meth:`begin` gives the others theirs).

        :param whole: on rank 0 the values, on the CPU; None on the others.
        """

    def passing(self, module: nn.Module) -> AbstractContextManager[None]:
        """Make a context manager around forward and backward passes; with `shards`, after it no rank holds more of the model than its part."""
        return nullcontext()

    def step_is_off(self) -> bool:
        """Tell whether the ranks do not do this step, because one has stopped; asked before the last backward pass."""
        return False

    def sum(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the sums of tensors over all ranks, without waiting for the device."""
        return tensors

    def summing(self, parameters: Iterable[nn.Parameter]) -> AbstractContextManager[None]:
        """Make a context manager around the last backward pass of a step: after it, gradients are sums over all ranks.

        A gradient that is None on some rank counts as zero there, and stays None where it is None on all.
        """
        return nullcontext()

    def random_numbers(self) -> AbstractContextManager[Callable[[int], None]]:
        """Make a context manager around the random numbers of a step; it gives what is to be called with the number of each mini-batch before that.

        Afterwards all ranks have the same random state. A single process draws on from one mini-batch to the next.
        """
        return nullcontext(lambda number: None)
