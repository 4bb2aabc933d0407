"""Parameter groups: what decays, and every parameter once."""
from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from small_model import small
from torch import nn

from lmplay.optim.groups import parameter_groups
from lmplay.optim.optimizers import build_like, build_optimizers


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


class Named(nn.Module):
    """A model whose embeddings are plain parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.zeros(3, 4))
        self.Embedder = nn.Linear(4, 4)
        self.mixing = nn.Linear(4, 4)
        self.marked = nn.Parameter(torch.zeros(4, 4))
        self.marked.skip_weight_decay = True  # type: ignore[attr-defined]
        self.tied = nn.Linear(4, 3, bias=False)
        self.tied.weight = self.pos_embed


def test_what_is_called_an_embedding_does_not_decay() -> None:
    model = Named()
    decaying, others = parameter_groups(model, 0.1)
    assert [id(parameter) for parameter in decaying["params"]] == [id(model.mixing.weight)]
    assert {id(parameter) for parameter in others["params"]} >= {id(model.pos_embed), id(model.Embedder.weight), id(model.mixing.bias), id(model.marked)}
    before, _ = parameter_groups(model, 0.1, by_name=False)
    assert [id(parameter) for parameter in before["params"]] == [id(model.pos_embed), id(model.Embedder.weight), id(model.mixing.weight)]


def test_a_state_from_before_names_counted_goes_on_as_it_began() -> None:
    def step(model, optimizers, number):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        optimizers.step()

    model, other, new = Named(), Named(), Named()
    began = build_optimizers("adamw", model, 0.1, by_name=False)
    step(model, began, 1)
    other.load_state_dict(model.state_dict())
    resumed = build_like(began.state(), partial(build_optimizers, "adamw", other, 0.1))
    resumed.restore(copy.deepcopy(began.state()))
    for one, optimizers in ((model, began), (other, resumed)):
        step(one, optimizers, 2)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    fresh = build_optimizers("adamw", new, 0.1)
    assert [len(group["params"]) for group in build_like(fresh.state(), partial(build_optimizers, "adamw", new, 0.1)).param_groups] == [1, 5]
