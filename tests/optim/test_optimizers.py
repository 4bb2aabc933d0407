"""Optimizers: against a float64 loop and those of torch, and each lowers a loss."""
from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from helpers import ROOT
from small_model import give_gradients, small, train
from torch import Tensor, nn

from lmplay.errors import UserError
from lmplay.optim.optimizers import OPTIMIZERS, build_optimizers


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_without_the_compiler_are_those_of_torch(name):
    kind = getattr(torch.optim, OPTIMIZERS[name].members[0].target.removeprefix("torch.optim:"))

    def train(build):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        optimizer = build(model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).pow(3).sum().backward()
            optimizer.step()
        return optimizer, [*model.parameters()]

    ours, weights = train(lambda model: build_optimizers(name, model, 0.01, 0.1).members["main"])
    groups = [{key: value for key, value in group.items() if key != "params"} for group in ours.param_groups]

    def theirs(model):
        split = [[parameter for parameter in model.parameters() if (parameter.dim() > 1) == group["decays"]] for group in groups]
        return kind([{**group, "params": parameters} for group, parameters in zip(groups, split, strict=True)])

    other, expected = train(theirs)
    assert all(map(torch.equal, weights, expected))
    assert isinstance(ours, kind)
    assert str(ours) == str(other)
    assert ours.state_dict().keys() == other.state_dict().keys()
    for state, same in zip(ours.state.values(), other.state.values(), strict=True):
        assert all(map(torch.equal, state.values(), same.values()))


def test_hooks_of_an_optimizer_are_called():
    model, heard = nn.Linear(2, 2), []
    optimizer = build_optimizers("adamw", model, 0.1).members["main"]
    optimizer.register_step_post_hook(lambda *_: heard.append("step"))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert heard == ["step"]
    assert not any(parameter.requires_grad and parameter.grad_fn for parameter in model.parameters())


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


def test_unknown_optimizer() -> None:
    with pytest.raises(UserError, match=r"--optimizer adamww: .*Did you mean 'adamw'\? There are: adamw, adam, adagrad, sgd, rmsprop\."):
        build_optimizers("adamww", small(), 0.01)


def test_the_document_has_the_table_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| (.+?) \|", (ROOT / "docs" / "optimizers.md").read_text(), re.MULTILINE)
    assert {name: (float(decay), tuple(re.findall(r"`(\w+)`", settings))) for name, decay, settings in rows} == \
        {row.name: (row.weight_decay, tuple(row.takes)) for row in OPTIMIZERS.values()}
    for name, _, settings in rows:
        defaults = build_optimizers(name, small(), 0.1).members["main"].defaults
        assert {key: defaults[key] for key in OPTIMIZERS[name].takes} == OPTIMIZERS[name].takes
        for setting, value in re.findall(r"`(\w+)` ([\d.,e-]+)", settings):
            found = defaults[setting]
            assert (list(found) if isinstance(found, tuple) else [found]) == [float(part) for part in value.split(",")], (name, setting)
