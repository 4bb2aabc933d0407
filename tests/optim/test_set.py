"""Optimizers as one: their state, and the rates of a new stage."""
from __future__ import annotations

import copy
import io

import pytest
import torch
from small_model import same_bits, small, train
from torch import nn

from lmplay.errors import UserError
from lmplay.optim.groups import parameter_groups
from lmplay.optim.optimizers import build_optimizers
from lmplay.plan.names import OPTIMIZERS

# SOAP keeps lists of matrices whose sizes depend on those of the parameter.
FOREIGN = ["pytorch_optimizer:SOAP", "torch.optim:NAdam"]


@pytest.mark.parametrize("name", [*OPTIMIZERS, *FOREIGN])
def test_resume_is_exact_and_needs_no_pickle(name: str) -> None:
    """Also with an optimizer of somebody else, whose state has other shapes than its parameters."""
    width = 32 if name == "adamw8bit" else 16  # from 4,096 values on a weight's state is quantized
    model = small(width=width)
    optimizer = build_optimizers(name, model, 0.01, 0.1)
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state()}, file)
    train(model, optimizer, range(3, 6))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = small(width=width)
    again.load_state_dict(saved["model"])
    resumed = build_optimizers(name, again, 0.5)
    resumed.restore(saved["optimizer"])
    assert not same_bits(model, again)
    train(again, resumed, range(3, 6))
    assert same_bits(model, again)
    assert {group["lr"] for group in resumed.param_groups} == {0.01}


@pytest.mark.parametrize("name", ["muon", "lion", "schedulefree", "adamw8bit", "pytorch_optimizer:SOAP"])
def test_state_of_another_form_is_refused(name: str) -> None:
    def state_of(width: int) -> dict:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(width, 4096 // width * 4), nn.LayerNorm(4096 // width * 4))
        optimizer = build_optimizers(name, model, 0.01)
        train(model, optimizer, range(2))
        return model, optimizer

    (model, optimizer), (_, other) = state_of(16), state_of(32)
    with pytest.raises(UserError, match="has another form"):
        build_optimizers(name, model, 0.01).restore(copy.deepcopy(other.state()))
    build_optimizers(name, model, 0.01).restore(copy.deepcopy(optimizer.state()))


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
    with pytest.raises(UserError, match="its parameters are not those of the model"):
        build_optimizers("adamw", small(), 0.01).restore({"main": one_group.state_dict()})


def test_new_stage() -> None:
    optimizer = build_optimizers("adamw", small(), 0.01, 0.3)
    optimizer.set_lr(0.002)
    assert [group["lr"] for group in optimizer.param_groups] == [0.002, 0.002]
    optimizer.set_weight_decay(0.7)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.7, 0]
    optimizer.set_weight_decay(None)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0]
