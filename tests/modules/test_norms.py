"""RMSNorm against torch's own in float64."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from lmplay.modules.norms import RMSNorm


@settings(deadline=None, max_examples=60)
@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=4), weight=st.booleans(), scale=st.sampled_from([1e-4, 1.0, 1e3]),
       dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]), seed=st.integers(0, 99))
def test_values_and_gradients_are_torchs(shape, weight, scale, dtype, seed):
    torch.manual_seed(seed)
    norm, tolerance = RMSNorm(shape[-1], 1e-5, weight), {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]
    if dtype is torch.float64:
        norm.double()
    x = (torch.randn(shape, dtype=torch.float64) * scale).to(dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    plain = nn.Parameter(torch.randn(shape[-1], dtype=torch.float32).double()) if weight else None
    if weight:
        norm.weight.data.copy_(plain)
    gradient = torch.randn(shape, dtype=torch.float64).to(dtype)
    found, expected = norm(x), functional.rms_norm(exact, shape[-1:], plain, 1e-5)
    found.backward(gradient)
    expected.backward(gradient.double())
    assert found.dtype == x.grad.dtype == dtype
    pairs = [(found, expected), (x.grad, exact.grad)] + ([(norm.weight.grad, plain.grad)] if weight else [])
    for mine, theirs in pairs:
        assert (mine.double() - theirs).norm() <= tolerance * (theirs.norm() + gradient.double().norm() / max(scale, 1e-3)), (mine, theirs)


@pytest.mark.parametrize("frozen", ["input", "weight"])
def test_what_needs_no_gradient_gets_none(frozen):
    norm, x = RMSNorm(5, 1e-5), torch.randn(3, 5, requires_grad=frozen != "input")
    norm.weight.requires_grad_(frozen != "weight")
    norm(x).sum().backward()
    assert (x.grad is None) == (frozen == "input")
    assert (norm.weight.grad is None) == (frozen == "weight")


def test_it_compiles_into_one_graph_and_has_torchs_weights():
    norm, x = RMSNorm(6, 1e-5), torch.randn(4, 6)
    torch.testing.assert_close(torch.compile(norm, backend="eager", fullgraph=True)(x), norm(x))
    assert norm.state_dict().keys() == nn.RMSNorm(6).state_dict().keys()
    assert torch.allclose(RMSNorm(6)(x), nn.RMSNorm(6)(x))  # without eps, too
