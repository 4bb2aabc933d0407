"""Parameter groups: what decays, and every parameter once."""
from __future__ import annotations

import pytest
import torch
from small_model import small
from torch import nn

from lmplay.optim.groups import parameter_groups


@pytest.mark.parametrize("tied", [True, False])
def test_what_decays(tied: bool) -> None:
    model = small(tied)
    model.get_parameter("blocks.1.mlp.expansion.weight").skip_weight_decay = True  # type: ignore[attr-defined]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying, others = ([names[id(parameter)] for parameter in group["params"]] for group in parameter_groups(model, 0.3))
    parts = ("attention.query_key_value", "attention.projection", "mlp.expansion", "mlp.projection")
    expected = [f"blocks.{block}.{part}.weight" for block in (0, 1) for part in parts]
    expected.remove("blocks.1.mlp.expansion.weight")
    assert decaying == expected + ([] if tied else ["head.weight"])
    assert others == [name for name in names.values() if name not in decaying]
    assert {"token_embedding.weight", "position_embedding.weight", "final_norm.weight", "blocks.0.mlp.expansion.bias"} <= set(others)


def test_every_parameter_once_frozen_ones_too() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm((3, 4))
            self.expert_bias = nn.Parameter(torch.zeros(3, 4))
            self.gate = nn.Parameter(torch.zeros(()))
            self.twice = nn.ModuleList([nn.Linear(4, 4)] * 2)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)

    model = Odd()
    decaying, others = parameter_groups(model, 0.1)
    assert [id(p) for p in decaying["params"]] == [id(model.twice[0].weight), id(model.frozen.weight)]
    assert {id(p) for p in others["params"]} | {id(p) for p in decaying["params"]} == {id(p) for p in model.parameters()}
    assert len(others["params"]) + len(decaying["params"]) == len(list(model.parameters()))
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
