"""Parts of tensors: in one process those of a whole tensor; what several processes make of them is in tests/engine/test_sharding.py."""
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor, Shard

from lmplay.modules.sharded import is_sharded, parts_of, total_norm


@given(st.integers(0, 9), st.integers(1, 5))
def test_parts_are_the_whole_in_the_order_of_torch(rows, count):
    whole = torch.arange(3 * rows).view(rows, 3)
    parts = parts_of(whole, count)
    assert len(parts) == count
    assert torch.equal(torch.cat(list(parts)), whole)
    theirs = Shard(0)._split_tensor(whole, count, with_padding=False, contiguous=False)[0] if rows else [whole] * count
    assert [part.tolist() for part in parts] == [part.tolist() for part in theirs]


def test_whole_tensors_are_not_sharded_and_have_their_norm():
    tensors = [torch.tensor([3.0]), torch.tensor([[4.0]])]
    assert not any(map(is_sharded, (*tensors, torch.nn.Linear(2, 2))))
    assert float(total_norm(iter(tensors))) == 5
    assert hasattr(DTensor, "placements")
