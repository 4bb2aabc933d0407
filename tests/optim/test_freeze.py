"""Freezing by patterns."""
from __future__ import annotations

import copy

import pytest
import torch
from small_model import small, train
from torch import nn

from lmplay.errors import UserError
from lmplay.optim.freeze import apply_freeze
from lmplay.optim.optimizers import OPTIMIZERS, build_optimizers


def trainable(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter.requires_grad}


def test_patterns_apply_in_order() -> None:
    model = small()
    every = trainable(model)
    frozen = apply_freeze(model, ["blocks.*", "!blocks.1.*", "*.bias"])
    assert set(frozen) == every - trainable(model)
    assert set(frozen) == {name for name in every if name.startswith("blocks.0.") or name.endswith(".bias")}
    assert apply_freeze(model, []) == []
    assert trainable(model) == every


def test_default_freeze() -> None:
    model = small()
    frozen = apply_freeze(model, ["!final_norm.*", "!blocks.1.mlp.*"], default_freeze=True)
    layers = ("final_norm", "blocks.1.mlp.expansion", "blocks.1.mlp.projection")
    assert trainable(model) == {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    assert "head.weight" in frozen
    assert "token_embedding.weight" in frozen


@pytest.mark.parametrize("name", ["head.weight", "token_embedding.weight"])
def test_tied_weight_has_both_names(name: str) -> None:
    model = small()
    assert apply_freeze(model, [name]) == ["token_embedding.weight", "head.weight"]
    assert not model.head.weight.requires_grad
    assert apply_freeze(model, ["token_embedding.*", f"!{name}"]) == []


def test_frozen_weights_stay_with_any_optimizer() -> None:
    for name in OPTIMIZERS:
        model = small()
        optimizer = build_optimizers(name, model, 0.1, 0.5)
        train(model, optimizer, range(2))  # momentum and old gradients must not move them either
        apply_freeze(model, ["blocks.0.*"])
        before = copy.deepcopy(model)
        train(model, optimizer, range(2, 4))
        moved = {key for key, parameter in model.named_parameters() if not torch.equal(parameter, before.get_parameter(key))}
        assert moved == {key for key, _ in model.named_parameters() if not key.startswith("blocks.0.")}


def test_frozen_wrongly() -> None:
    model = small()
    apply_freeze(model, ["head.weight"])
    before = trainable(model)
    with pytest.raises(UserError) as caught:
        apply_freeze(model, ["block.0.*", "!final_nrm.weight", "blocks.1.*"])
    first, second = caught.value.faults
    assert "freeze 'block.0.*': matches no parameter. Did you mean 'blocks.0'?" in first
    assert "token_embedding, position_embedding, blocks, final_norm, head" in first
    assert "freeze '!final_nrm.weight': matches no parameter. Did you mean 'final_norm.weight'?" in second
    for patterns, default in ((["*"], False), ([], True)):
        with pytest.raises(UserError, match="nothing is left to train"):
            apply_freeze(model, patterns, default)
    assert trainable(model) == before
