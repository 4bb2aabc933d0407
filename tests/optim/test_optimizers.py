"""Optimizers: against a float64 loop and those of torch, and each lowers a loss."""
from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import torch
from helpers import ROOT
from small_model import give_gradients, small, train
from small_model import train as train_model
from torch import Tensor, nn

from lmplay.errors import UserError
from lmplay.optim.optimizers import OPTIMIZERS, build_optimizers
from lmplay.plan.training_keys import OptimizerRule

ALONE_OF_TORCH = [name for name, row in OPTIMIZERS.items() if len(row.members) == 1 and row.members[0].target.startswith("torch.optim:")]


@pytest.mark.parametrize("name", ALONE_OF_TORCH)
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


def lion_in_float64(start: Tensor, gradients: list[Tensor], lr: float, decay: float) -> Tensor:
    """Chen et al. 2023, algorithm 2, with betas of 0.9 and 0.99."""
    value, mean = start.double(), torch.zeros_like(start).double()
    for gradient in (gradient.double() for gradient in gradients):
        value = value - lr * decay * value - lr * (0.9 * mean + 0.1 * gradient).sign()
        mean = 0.99 * mean + 0.01 * gradient
    return value


def sgd_in_float64(start: Tensor, gradients: list[Tensor], lr: float, decay: float) -> Tensor:
    """Momentum 0.9; decay is added to the gradient."""
    value, velocity = start.double(), torch.zeros_like(start).double()
    for gradient in gradients:
        velocity = 0.9 * velocity + gradient.double() + decay * value
        value = value - lr * velocity
    return value


@pytest.mark.parametrize(("name", "reference"), [("adamw", adamw_in_float64), ("sgd", sgd_in_float64), ("lion", lion_in_float64)])
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
    used = {"adamw": 0.01, "sgd": 0.0, "lion": 0.1}[name] if decay is None else decay
    for key, parameter in model.named_parameters():
        decays = key.startswith("blocks") and key.endswith("weight") and "norm" not in key
        expected = reference(start[key], recorded[key], 0.01, used if decays else 0.0)
        torch.testing.assert_close(parameter.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_default_weight_decay() -> None:
    found = {name: {group["weight_decay"] for group in build_optimizers(name, small(), 0.1).param_groups if group["params"]} for name in OPTIMIZERS}
    assert {name: max(values) for name, values in found.items() if values != {0}} == {"adamw": 0.01, "adamw8bit": 0.01, "muon": 0.1, "lion": 0.1}


def orthogonal_in_float64(gradient: Tensor) -> Tensor:
    """Five steps of Newton and Schulz with the numbers of Jordan et al. 2024."""
    value = gradient.double() if gradient.shape[0] <= gradient.shape[1] else gradient.double().T
    value = value / value.norm()
    for _ in range(5):
        gram = value @ value.T
        value = 3.4445 * value + (-4.7750 * gram + 2.0315 * gram @ gram) @ value
    return value if gradient.shape[0] <= gradient.shape[1] else value.T


def test_muon_updates_matrices_and_adamw_the_rest() -> None:
    model = small(tied=False)
    start = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    optimizer = build_optimizers("muon", model, 0.01, 0.2)
    recorded: dict[str, list[Tensor]] = {key: [] for key in start}
    for step in range(4):
        give_gradients(model, step)
        for key, parameter in model.named_parameters():
            recorded[key].append(parameter.grad.clone())
        optimizer.step()
    reference = nn.ParameterDict({key.replace(".", "_"): value.clone() for key, value in start.items()})
    rest = {key for key in start if not (key.startswith("blocks") and key.endswith("weight") and "norm" not in key)}
    plain = [reference[key.replace(".", "_")] for key in rest - {"head.weight"}]
    adamw = torch.optim.AdamW([{"params": [reference["head_weight"]], "weight_decay": 0.2}, {"params": plain, "weight_decay": 0.0}], lr=0.01, betas=(0.9, 0.95))
    for step in range(4):
        for key in rest:
            reference[key.replace(".", "_")].grad = recorded[key][step]
        adamw.step()
    for key, parameter in model.named_parameters():
        if key in rest:
            torch.testing.assert_close(parameter, reference[key.replace(".", "_")])
            continue
        value, mean = start[key].double(), torch.zeros_like(start[key]).double()
        for gradient in (gradient.double() for gradient in recorded[key]):
            mean = 0.95 * mean + 0.05 * gradient
            scale = 0.2 * max(gradient.shape) ** 0.5  # Liu et al. 2025, equation 4
            value = value * (1 - 0.01 * 0.2) - 0.01 * scale * orthogonal_in_float64(0.05 * gradient + 0.95 * mean)
        change = (parameter - value).abs().max() / (value - start[key]).abs().max()
        assert change < 0.05, key  # torch orthogonalizes in bfloat16


def test_rules_give_parameters_another_rate_decay_and_optimizer() -> None:
    model = small(tied=False)
    rules = [OptimizerRule(match="head.*", lr=0.3, kind="sgd"), OptimizerRule(match=["blocks.0.*", "final_norm.*"], lr=2.0, weight_decay=0.5)]
    optimizers = build_optimizers("adamw", model, 0.01, rules=rules)
    assert [*optimizers.members] == ["main", "main head.*", "main blocks.0.*, final_norm.*"]
    optimizers.set_lr(0.002)
    optimizers.set_weight_decay(0.1)
    optimizers.set_options({"betas": (0.8, 0.9), "eps": None, "momentum": None})
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {names[id(parameter)]: (round(group["lr"], 9), group["weight_decay"], group.get("betas"))
             for group in optimizers.param_groups for parameter in group["params"]}
    assert len(found) == len(names)
    assert found["head.weight"] == (0.0006, 0.1, None)
    assert found["blocks.0.mlp.expansion.weight"] == (0.004, 0.5, (0.8, 0.9))
    assert found["blocks.0.mlp.expansion.bias"] == (0.004, 0.0, (0.8, 0.9))
    assert found["blocks.1.mlp.expansion.weight"] == (0.002, 0.1, (0.8, 0.9))
    before = model.head.weight.detach().clone()
    train_model(model, optimizers, range(1))
    step = before - model.head.weight
    torch.testing.assert_close(step, 0.0006 * (model.head.weight.grad + 0.1 * before))


def test_settings_of_the_stage_are_not_those_of_another_kind_in_a_rule() -> None:
    optimizers = build_optimizers("adamw", small(tied=False), 0.01, rules=[OptimizerRule(match="head.*", kind="adam")])
    optimizers.set_options({"betas": (0.8, 0.9), "eps": 1e-3, "momentum": None})
    assert [(group["betas"], group["eps"]) for group in optimizers.members["main head.*"].param_groups] == [((0.9, 0.999), 1e-8)] * 2
    assert [(group["betas"], group["eps"]) for group in optimizers.members["main"].param_groups] == [((0.8, 0.9), 1e-3)] * 2


def test_muon_leaves_weights_of_other_than_two_dimensions_to_adamw() -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 2), nn.Linear(4, 5))
    optimizers = build_optimizers("muon", model, 0.01)
    train_model(model, optimizers, range(2))
    of_muon = [parameter for group in optimizers.members["matrices"].param_groups for parameter in group["params"]]
    assert len(of_muon) == 1
    assert of_muon[0] is model[1].weight


def test_rules_that_do_not_fit_the_model() -> None:
    rules = [OptimizerRule(match="haed.*"), OptimizerRule(match="blocks.*"), OptimizerRule(match=["final_norm.*", "*.mlp.*"])]
    with pytest.raises(UserError) as caught:
        build_optimizers("adamw", small(tied=False), 0.01, rules=rules)
    first, second = caught.value.faults
    assert first.startswith("$optimizer 'haed.*': matches no parameter. Did you mean 'head'?")
    assert second == "$optimizer: 'final_norm.*, *.mlp.*' and 'blocks.*' both match blocks.0.mlp.expansion.weight; a parameter follows one rule at most."


@pytest.mark.parametrize(("name", "settings", "fault"), [
    ("nowhere:Lion", {}, r"nowhere:Lion cannot be imported \(ModuleNotFoundError: .*\)\. Give the module of an installed package"),
    ("json:dumps", {}, "json:dumps is not a subclass of torch.optim.Optimizer"),
    ("os:abort", {}, "os:abort is not a subclass of torch.optim.Optimizer"),
    ("muon", {"ns_step": 4}, "settings: Muon has no 'ns_step'. Did you mean 'ns_steps'\\? It takes: params, lr"),
    ("torch.optim:NAdam", {"betas": (2, 3)}, "NAdam refuses its settings .ValueError: Invalid beta"),
    ("adamw", {"betas": (0.1, 0.2)}, "settings: found 'betas', which has a key of its own"),
    ("torch.optim:NAdam", {"lr": 3}, "settings: found 'lr', which has a key of its own")])
def test_wrong_classes_and_settings(name: str, settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        build_optimizers(name, small(), 0.01, settings=settings)


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "schedulefree", None)
    with pytest.raises(UserError, match=r"optimizer schedulefree: .* cannot be imported .* pip install schedulefree \(or 'lmplay\[optimizers\]'\) brings it"):
        build_optimizers("schedulefree", small(), 0.01)


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


def test_quantized_state_leads_nearly_where_that_of_adamw_does() -> None:
    model, other = small(width=32), small(width=32)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    quantized, plain = (build_optimizers(name, one, 0.01, 0.1) for name, one in (("adamw8bit", model), ("adamw", other)))
    train(model, quantized, range(8))
    train(other, plain, range(8))
    state = quantized.members["main"].state
    found = {name for name, parameter in model.named_parameters() if state[parameter]["state1"].dtype == torch.uint8}
    assert found == {name for name, parameter in start.items() if parameter.numel() >= 4096} != set()
    for name, parameter in other.named_parameters():
        difference = (model.get_parameter(name) - parameter).norm() / (parameter - start[name]).norm()
        assert (1e-4 < difference < 0.1) if name in found else difference < 1e-4, (name, difference)


def test_unknown_optimizer() -> None:
    with pytest.raises(UserError, match=rf"--optimizer adamww: .*Did you mean 'adamw'\? There are: {', '.join(OPTIMIZERS)}\."):
        build_optimizers("adamww", small(), 0.01)


def test_the_document_has_the_table_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| (.+?) \|", (ROOT / "docs" / "optimizers.md").read_text(), re.MULTILINE)
    assert {name: (float(decay), tuple(re.findall(r"`(\w+)`", settings))) for name, decay, settings in rows} == \
        {row.name: (row.weight_decay, tuple(row.takes)) for row in OPTIMIZERS.values()}
    for name, _, settings in rows:
        parts = build_optimizers(name, small(), 0.1).members.values()
        defaults = {key: value for part in reversed(parts) for key, value in part.defaults.items()}
        assert {key: defaults[key] for key in OPTIMIZERS[name].takes} == OPTIMIZERS[name].takes
        for setting, value in re.findall(r"`(\w+)` ([\d.,e-]+)", settings):
            found = defaults[setting]
            assert (list(found) if isinstance(found, tuple) else [found]) == [float(part) for part in value.split(",")], (name, setting)
