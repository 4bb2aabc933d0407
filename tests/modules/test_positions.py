"""Rotary positions: what attention sees of them, and where they come from."""
import pytest
import torch

from lmplay.errors import UserError
from lmplay.modules.cache import KeyValueCache
from lmplay.modules.positions import RotaryPositions, rotate


def turned(rotary, vector, position):
    tokens = torch.zeros(1, position + 1, dtype=torch.int64)
    cosine, sine = rotary(tokens)
    return rotate(vector.expand(1, 1, 1, -1), (cosine[position:], sine[position:])).flatten()


def test_attention_sees_the_distance_alone():
    torch.manual_seed(0)
    rotary = RotaryPositions(8, 64).double()
    query, key = torch.randn(2, 8, dtype=torch.float64)
    near, far = (turned(rotary, query, at + 3) @ turned(rotary, key, at) for at in (2, 50))
    assert near == pytest.approx(far.item(), rel=1e-4)  # the tables were made in float32
    assert abs(turned(rotary, query, 9) @ turned(rotary, key, 2) - near) > 1e-2
    assert turned(rotary, query, 40).norm() == pytest.approx(query.norm().item(), rel=1e-5)
    assert torch.equal(turned(rotary, query, 0), query)


def test_pairs_turn_as_complex_numbers_do():
    rotary, vector = RotaryPositions(6, 32, base=100.0), torch.arange(1.0, 7)
    pairs = torch.complex(vector[:3], vector[3:]) * torch.polar(torch.ones(3), 7 / 100 ** (torch.arange(3) / 3))
    torch.testing.assert_close(turned(rotary, vector, 7), torch.cat([pairs.real, pairs.imag]))


def test_packed_pieces_and_cached_texts_have_positions_of_their_own():
    rotary = RotaryPositions(4, 16)
    cosine, sine = rotary(torch.zeros(1, 16, dtype=torch.int64))
    packed = rotary(torch.zeros(1, 8, dtype=torch.int64), lengths=(5, 3))
    for table, found in zip((cosine, sine), packed, strict=True):
        assert torch.equal(found, torch.cat([table[:5], table[:3]]))
    cache = KeyValueCache(2, 16, torch.device("cpu"))
    rotary(torch.zeros(2, 6, dtype=torch.int64), cache)
    cache.keep([6, 2])
    found = rotary(torch.zeros(2, 3, dtype=torch.int64), cache)
    for table, rows in zip((cosine, sine), found, strict=True):
        assert torch.equal(rows, torch.stack([table[6:9], table[2:5]]))


def test_tables_are_not_saved_and_odd_heads_are_refused():
    assert not RotaryPositions(4, 16).state_dict()
    with pytest.raises(UserError, match="width 5 has an odd number"):
        RotaryPositions(5, 16)
    with pytest.raises(ValueError, match=r"17 tokens .* 16"):
        RotaryPositions(4, 16)(torch.zeros(1, 17, dtype=torch.int64))
