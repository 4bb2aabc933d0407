"""Attention with a cache is attention over the whole text, whatever was read, kept and dropped before."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmplay.modules.cache import KeyValueCache

WIDTH, MOST = 4, 12


def whole(query_HTK, key_GTK, value_GTK):
    """Attend position by position, in float64."""
    times = len(query_HTK) // len(key_GTK)
    found = torch.zeros_like(query_HTK)
    for head, query_TK in enumerate(query_HTK):
        key_TK, value_TK = key_GTK[head // times], value_GTK[head // times]
        for at, query_K in enumerate(query_TK):
            found[head, at] = ((key_TK[:at + 1] @ query_K) / WIDTH**0.5).softmax(0) @ value_TK[:at + 1]
    return found


# for each reading: how many tokens, how many of them belong to each text, and how many are taken back then
readings = st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(1, 4), min_size=3, max_size=3), st.integers(0, 2)), min_size=1, max_size=8)


@pytest.mark.parametrize("shared", [1, 2])
@settings(max_examples=60, deadline=None)
@given(texts=st.integers(1, 3), readings=readings, alike=st.booleans(), seed=st.integers(0, 1000))
def test_attention_with_a_cache_is_that_over_the_whole_text(shared, texts, readings, alike, seed):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(texts, heads, MOST, WIDTH, generator=generator, dtype=torch.float64) for heads in (2 * shared, 2, 2))
    expected = [whole(query[text], key[text], value[text]) for text in range(texts)]
    cache, lengths = KeyValueCache(texts, MOST, torch.device("cpu")), [0] * texts
    for count, kept, back in readings:
        if max(lengths) + count > MOST:
            break
        cache.begin(count)
        at = [slice(length, length + count) for length in lengths]
        own = [min(count, kept[0 if alike else text]) for text in range(texts)]
        padding = torch.tensor([[[[50.0 * (number >= one)] for number in range(count)]] for one in own])
        for offset in (0.0, 1.0):  # of two blocks
            parts = [torch.stack([part[text, :, at[text]] for text in range(texts)]) for part in (query, key, value)]
            found = cache.attend(parts[0], parts[1] + padding, parts[2] + offset + padding)
            for text, number in enumerate(own):
                torch.testing.assert_close(found[text, :, :number], expected[text][:, at[text]][:, :number] + offset)
        cache.keep(own)
        lengths = [length + one for length, one in zip(lengths, own, strict=True)]
        taken = [min(back, length) for length in lengths]
        cache.drop(taken)
        lengths = [length - one for length, one in zip(lengths, taken, strict=True)]
