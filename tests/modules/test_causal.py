"""Attention by plain products in bfloat16 is as exact as torch's fused kernel, whose place it takes."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from lmplay.modules import causal
from lmplay.modules.causal import causal_attention


def problem(batch, heads, groups, length, width, seed=0, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, length, width), (batch, groups, length, width), (batch, groups, length, width), (batch, heads, length, width)]
    query, key, value, gradient = (torch.randn(shape, generator=generator) for shape in shapes)
    return [part.bfloat16() for part in (size * query, size * key, value, gradient)]


def attend(function, query, key, value, gradient, dtype=torch.bfloat16, **options):
    """Give what comes out, and the gradients of the three."""
    given = [part.detach().clone().to(dtype).requires_grad_() for part in (query, key, value)]
    mixed = function(*given, **options)
    mixed.backward(gradient.to(dtype))
    return [part.detach().double() for part in (mixed, *(part.grad for part in given))]


def fused(query, key, value, scale=None):
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)


@pytest.fixture
def plain(monkeypatch):
    """Refuse the fused kernel, on every machine."""
    monkeypatch.setattr(causal, "_has_bfloat16_products", lambda: True)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", None)


@settings(max_examples=25, deadline=None)
@given(batch=st.integers(1, 3), groups=st.integers(1, 3), repeated=st.integers(1, 3), length=st.integers(1, 70), scale=st.sampled_from([None, 0.3]),
       size=st.sampled_from([1.0, 4.0, 10.0]))
def test_as_exact_as_the_fused_kernel(batch, groups, repeated, length, scale, size):
    """Also where scores are large, as those of a trained model may be."""
    parts = problem(batch, groups * repeated, groups, length, 16, seed=length, size=size)
    expected = attend(fused, *parts, dtype=torch.float64, scale=scale)
    others = attend(fused, *parts, scale=scale)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(causal, "_has_bfloat16_products", lambda: True)
        monkeypatch.setattr(functional, "scaled_dot_product_attention", None)
        found = attend(causal_attention, *parts, scale=scale)
    for one, other, exact in zip(found, others, expected, strict=True):
        largest = float(exact.abs().max())
        assert float((one - exact).abs().max()) <= 2 * float((other - exact).abs().max()) + 0.01 * largest


def test_a_position_depends_on_none_after_it_and_a_piece_on_no_other(plain):
    query, key, value, gradient = problem(2, 4, 2, 40, 16)
    whole = attend(causal_attention, query, key, value, gradient)
    alone = attend(causal_attention, query[1:], key[1:], value[1:], gradient[1:])
    for one, other in zip(alone, whole, strict=True):
        torch.testing.assert_close(one, other[1:], rtol=0.02, atol=0.02)
    key[:, :, 25:], value[:, :, 25:] = 9, -9
    changed = causal_attention(query, key, value).double()
    assert torch.equal(changed[:, :, :25], whole[0][:, :, :25])
    assert not torch.equal(changed[:, :, 25:], whole[0][:, :, 25:])


@pytest.mark.parametrize(("dtype", "length", "dropout"), [
    (torch.float32, 8, 0.0), (torch.float16, 8, 0.0), (torch.bfloat16, 257, 0.0), (torch.bfloat16, 8, 0.1)])
def test_what_it_is_not_for_is_left_to_torch(plain, dtype, length, dropout):
    with pytest.raises(TypeError):
        causal_attention(*(part.to(dtype) for part in problem(1, 2, 2, length, 16)[:3]), dropout)


def test_many_weights_are_not_kept(plain, monkeypatch):
    parts = problem(2, 3, 3, 10, 16)[:3]
    causal_attention(*parts)
    monkeypatch.setattr(causal, "_MOST_WEIGHTS", 2 * 3 * 10 * 10 - 1)
    with pytest.raises(TypeError):
        causal_attention(*parts)


def test_no_piece_is_no_fault(plain):
    query, key, value, gradient = problem(0, 4, 2, 5, 16)
    assert [part.shape for part in attend(causal_attention, query, key, value, gradient)] == [query.shape, query.shape, key.shape, value.shape]
