"""Optimizers against a float64 loop, schedules at chosen steps, groups, freezing and the look at gradients."""
from __future__ import annotations

import copy
import inspect
import io
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lmplay.errors import UserError
from lmplay.exp.gpt2ish import GPT2ish
from lmplay.optim.freeze import apply_freeze
from lmplay.optim.grads import check_grads
from lmplay.optim.groups import parameter_groups
from lmplay.optim.optimizers import OPTIMIZERS, build_optimizers
from lmplay.optim.schedules import SCHEDULES, lr_factor
from lmplay.optim.set import OptimizerSet


def small(tied: bool = True) -> GPT2ish:
    torch.manual_seed(0)
    return GPT2ish(vocab_size=40, context_len=12, num_blocks=2, embed_dim=16, num_heads=2, tied_head=tied)


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator)


def train(model: nn.Module, optimizer: torch.optim.Optimizer | OptimizerSet, steps: range) -> None:
    for step in steps:
        give_gradients(model, step)
        optimizer.step()


def same_bits(model: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


# groups


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


# optimizers


def adamw_in_float64(start: Tensor, gradients: list[Tensor], lr: float, decay: float) -> Tensor:
    """Loshchilov and Hutter 2019, algorithm 2, with torch's default constants."""
    value, mean, square = start.double(), torch.zeros_like(start).double(), torch.zeros_like(start).double()
    for step, gradient in enumerate((gradient.double() for gradient in gradients), start=1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        value = value - lr * decay * value - lr * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
    return value


def sgd_in_float64(start: Tensor, gradients: list[Tensor], lr: float, decay: float) -> Tensor:
    """Momentum 0.9; decay is added to the gradient."""
    value, velocity = start.double(), torch.zeros_like(start).double()
    for gradient in gradients:
        velocity = 0.9 * velocity + gradient.double() + decay * value
        value = value - lr * velocity
    return value


@pytest.mark.parametrize(("name", "reference"), [("adamw", adamw_in_float64), ("sgd", sgd_in_float64)])
@pytest.mark.parametrize("decay", [None, 0.0, 0.4])
def test_agrees_with_float64(name: str, reference: Any, decay: float | None) -> None:
    model = small()
    start = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    optimizer = build_optimizers(name, model, 0.01, decay)
    recorded: dict[str, list[Tensor]] = {key: [] for key in start}
    for step in range(6):
        give_gradients(model, step)
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None
            recorded[key].append(parameter.grad.clone())
        optimizer.step()
    used = {"adamw": 0.01, "sgd": 0.0}[name] if decay is None else decay
    for key, parameter in model.named_parameters():
        decays = key.startswith("blocks") and key.endswith("weight") and "norm" not in key
        expected = reference(start[key], recorded[key], 0.01, used if decays else 0.0)
        torch.testing.assert_close(parameter.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_default_weight_decay() -> None:
    found = {name: [group["weight_decay"] for group in build_optimizers(name, small(), 0.1).param_groups] for name in OPTIMIZERS}
    assert found == {"adamw": [0.01, 0], "adam": [0, 0], "adagrad": [0, 0], "sgd": [0, 0], "rmsprop": [0, 0]}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resume_is_exact_and_needs_no_pickle(name: str) -> None:
    model = small()
    optimizer = build_optimizers(name, model, 0.01, 0.1)
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state()}, file)
    train(model, optimizer, range(3, 6))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = small()
    again.load_state_dict(saved["model"])
    resumed = build_optimizers(name, again, 0.5)
    resumed.restore(saved["optimizer"])
    assert not same_bits(model, again)
    train(again, resumed, range(3, 6))
    assert same_bits(model, again)
    assert [group["lr"] for group in resumed.param_groups] == [0.01, 0.01]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_a_loss(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    inputs, targets = torch.randn(64, 8), torch.randn(64, 1)
    optimizer = build_optimizers(name, model, 0.02)
    losses = []
    for _ in range(40):
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.95


@pytest.mark.parametrize("name", ["adamw", "adam", "adagrad", "sgd"])
def test_fused_agrees_with_the_plain_kernel(name: str) -> None:
    model, other = small(), small()
    optimizer, plain = build_optimizers(name, model, 0.01, 0.1), build_optimizers(name, other, 0.01, 0.1)
    for group in plain.param_groups:
        group["fused"], group["foreach"] = False, False
    assert all(group["fused"] for group in optimizer.param_groups)
    train(model, optimizer, range(4))
    train(other, plain, range(4))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_state_of_another_device_keeps_the_present_kernel() -> None:
    model, other = small(), small()
    elsewhere, here = torch.optim.AdamW(parameter_groups(other, 0.1), lr=0.01), build_optimizers("adamw", model, 0.01)
    train(other, elsewhere, range(3))
    model.load_state_dict(other.state_dict())
    saved = copy.deepcopy(elsewhere.state_dict())
    untouched = copy.deepcopy(saved["param_groups"])
    here.restore({"main": saved})
    assert saved["param_groups"] == untouched
    assert [group["fused"] for group in here.param_groups] == [True, True]
    train(other, elsewhere, range(3, 5))
    train(model, here, range(3, 5))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_state_of_other_groups_is_refused() -> None:
    one_group = torch.optim.AdamW(small().parameters())
    with pytest.raises(UserError, match="different number of parameter groups"):
        build_optimizers("adamw", small(), 0.01).restore({"main": one_group.state_dict()})


def test_new_stage() -> None:
    optimizer = build_optimizers("adamw", small(), 0.01, 0.3)
    optimizer.set_lr(0.002)
    assert [group["lr"] for group in optimizer.param_groups] == [0.002, 0.002]
    optimizer.set_weight_decay(0.7)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.7, 0]
    optimizer.set_weight_decay(None)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0]


def test_unknown_optimizer() -> None:
    with pytest.raises(UserError, match=r"--optimizer adamww: .*Did you mean 'adamw'\? There are: adamw, adam, adagrad, sgd, rmsprop\."):
        build_optimizers("adamww", small(), 0.01)


# schedules


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("constant", [1, 1, 1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.2, 0.1, 0]),
        ("cosine", [1, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, 0.55, 0.1 + 0.9 * 0.0954915, 0.1 + 0.9 * 0.0244717, 0.1]),
        ("wsd", [1, 1, 1, 1, 0.5, 0]),
    ],
)
def test_schedules_at_chosen_places(name: str, at: list[float]) -> None:
    found = [lr_factor(name, 10_000, progress) for progress in (0, 0.25, 0.5, 0.8, 0.9, 1)]
    assert found == pytest.approx(at, abs=1e-6)


def test_lowest_share() -> None:
    for name in ("linear", "cosine", "wsd"):
        assert lr_factor(name, 10_000, 1.0, min_fraction=0.25) == pytest.approx(0.25)
        assert lr_factor(name, 10_000, 0.0, min_fraction=0.25) == 1
    assert lr_factor("linear", 10_000, 0.5, min_fraction=0.5) == pytest.approx(0.75)


def test_warm_up() -> None:
    assert [lr_factor("constant", step, None) for step in (0, 20, 39, 40, 41)] == pytest.approx([0.1, 0.55, 0.9775, 1, 1])
    assert [lr_factor("constant", step, None, warmup_steps=4, warmup_fraction=0.5) for step in range(6)] == pytest.approx([0.5, 0.625, 0.75, 0.875, 1, 1])
    assert lr_factor("constant", 0, None, warmup_steps=0) == 1
    assert lr_factor("linear", 20, 0.5) == pytest.approx(0.55 * 0.5)


@given(
    name=st.sampled_from(sorted(SCHEDULES)), steps=st.integers(100, 2000), warmup=st.integers(0, 60), start=st.floats(0, 1), lowest=st.none() | st.floats(0, 1)
)
def test_schedules_never_jump(name: str, steps: int, warmup: int, start: float, lowest: float | None) -> None:
    if name == "constant":
        lowest = None
    curve = [lr_factor(name, step, step / steps, lowest, warmup, start) for step in range(steps + 1)]
    assert all(0 <= factor <= 1 for factor in curve)
    most = 1 / max(1, warmup) * (warmup > 0) + 5 / steps  # wsd is the steepest: all the way down in a fifth of the stage
    assert all(abs(after - before) <= most + 1e-9 for before, after in itertools.pairwise(curve))
    after_warmup = curve[warmup:]
    assert after_warmup == sorted(after_warmup, reverse=True)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_progress_past_the_end_is_the_end(name: str) -> None:
    assert lr_factor(name, 500, 1.3) == lr_factor(name, 500, 1.0)


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
def test_unknown_length_leaves_constant_only(name: str) -> None:
    assert lr_factor("constant", 500, None) == 1
    with pytest.raises(ValueError, match=name):
        lr_factor(name, 500, None)


def test_flags_know_these_defaults() -> None:
    defaults = inspect.signature(lr_factor).parameters
    assert (defaults["warmup_steps"].default, defaults["warmup_fraction"].default) == (40, 0.1)


# freezing


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


# gradients


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
    assert len(check_grads(model)) == 1
