"""Weights in few bits: their numbers against the definitions, their products and gradients against those of a plain layer."""
import sys

import pytest
import torch
from torch import nn

from lmplay.errors import UserError
from lmplay.modules.quantized import QuantizedLinear, check_quantizing

pytest.importorskip("bitsandbytes")
# Dettmers et al. 2023, "QLoRA", appendix E.
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
       0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]


def layer(bias=True, rows=25, columns=82):
    torch.manual_seed(3)
    made = nn.Linear(columns, rows, bias=bias)
    with torch.no_grad():
        made.weight[5] = 0
    return made


def test_nf4_is_the_nearest_of_16_values_times_the_largest_of_64():
    made = layer()
    blocks = nn.functional.pad(made.weight.detach().double().flatten(), (0, 62)).reshape(-1, 64)
    scales = blocks.abs().amax(1, keepdim=True)
    values = torch.tensor(NF4, dtype=torch.float64)
    nearest = ((blocks / scales.clamp(min=1e-30))[..., None] - values).abs().argmin(-1)
    expected = (values[nearest] * scales).flatten()[:-62].reshape(made.weight.shape).float()
    torch.testing.assert_close(QuantizedLinear(made, "nf4").weight, expected)


def test_int8_is_the_nearest_of_255_values_of_its_row():
    made = layer()
    rows = made.weight.detach().double()
    scales = rows.abs().amax(1, keepdim=True) / 127
    expected = ((rows / scales.clamp(min=1e-30)).round() * scales).float()
    torch.testing.assert_close(QuantizedLinear(made, "int8").weight, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
@pytest.mark.parametrize("bias", [True, False])
def test_products_and_gradients_are_those_of_a_layer_with_these_weights(kind, bias):
    quantized = QuantizedLinear(layer(bias), kind)
    plain = quantized.plain()
    results = []
    for one in (quantized, plain):
        x = torch.randn(2, 5, 82, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "int8"):
            out = one(x)
        out.float().square().sum().backward()
        results.append((out, x.grad))
    for mine, theirs in zip(*results, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs)
    assert (plain.bias is None) == (not bias)
    assert "weight" not in quantized.state_dict()
    assert sum(buffer.nbytes for buffer in quantized.buffers()) < plain.weight.nbytes * (0.3 if kind == "int8" else 0.15)


def test_where_it_cannot_be_a_line_says_so(monkeypatch):
    check_quantizing("nf4", torch.device("cpu"))
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"the package bitsandbytes cannot be imported .* pip install bitsandbytes"):
        check_quantizing("nf4", torch.device("cpu"))
