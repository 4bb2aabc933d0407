"""Ranks that train together: each has its share, and their sums are those of a single process."""
import pytest
import torch

from lmplay.device.ranks import Ranks
from lmplay.device.runtime import Runtime
from lmplay.plan.settings import Settings


class Member(Ranks):
    """One of several ranks; it does nothing together with the others."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_shares_are_all_items_once_and_about_as_long(size):
    lengths = [90, 80, 80, 41, 40, 20, 3]
    shares = [list(Member(rank, size).rounds(lengths)) for rank in range(size)]
    assert sorted(length for share in shares for length in share if length is not None) == sorted(lengths)
    assert len({len(share) for share in shares}) == 1  # all ranks make the same calls
    assert all(None not in share[:-1] for share in shares)
    assert [Member(rank, size).is_main for rank in range(size)] == [True] + [False] * (size - 1)


def test_a_single_process_changes_nothing():
    ranks = Runtime(Settings(device="cpu")).ranks
    tensor, items = torch.tensor([0.1, float("nan"), -0.0]), [3, 1, 2]
    before = tensor.clone()
    assert ranks.sum(tensor) is tensor
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = tensor
    ranks.sum_gradients([weight, torch.nn.Parameter(torch.zeros(2))])
    assert weight.grad is tensor
    assert tensor.view(torch.int32).tolist() == before.view(torch.int32).tolist()
    assert list(ranks.rounds(items)) == items
    assert ranks.broadcast(items) is items
    assert (ranks.any(True), ranks.any(False), ranks.is_main, ranks.rank, ranks.size) == (True, False, True, 0, 1)
    ranks.barrier()
