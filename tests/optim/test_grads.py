"""The look at gradients."""
from __future__ import annotations

import math

import torch
from small_model import give_gradients, small

from lmplay.optim.grads import check_grads


def test_check_grads() -> None:
    model = small()
    give_gradients(model, 0)
    assert check_grads(model) == []
    model.final_norm.weight.grad = None
    model.final_norm.bias.grad = torch.zeros(16)
    model.get_parameter("blocks.0.mlp.expansion.bias").grad = torch.tensor([1.0, math.nan, math.inf] + 61 * [1.0])
    assert check_grads(model) == [
        "blocks.0.mlp.expansion.bias: 2 of 64 values of its gradient are not finite",
        "final_norm.weight: no gradient; the loss does not depend on it",
        "final_norm.bias: its gradient is zero all over",
    ]
    model.final_norm.requires_grad_(False)
    assert check_grads(model) == ["blocks.0.mlp.expansion.bias: 2 of 64 values of its gradient are not finite",
                                  "final_norm.weight: frozen, no gradient", "final_norm.bias: frozen, no gradient"]
