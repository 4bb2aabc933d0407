"""A second optimizer beside the first is one row of a table (lmplay/plan/names.py): 1 file."""
import math
from pathlib import Path

import pytest
import torch
from helpers import TINY, compare_runs, load, sentences, write_plan, write_rows

from lmplay.device.model import DeviceModel
from lmplay.device.runtime import Runtime
from lmplay.engine.update import update
from lmplay.errors import UserError
from lmplay.exp import build_model, get_experiment
from lmplay.optim.optimizers import build_optimizers
from lmplay.plan.names import OPTIMIZERS, Member, OptimizerRow
from lmplay.plan.settings import Settings
from lmplay.train.__main__ import main

# AdamW for matrices, SGD for the rest.
MIXED = OptimizerRow("mixed", 0.01, (
    Member("torch.optim:AdamW", {}, ("cpu",), 2, "matrices"), Member("torch.optim:SGD", {"momentum": 0.9}, ("cpu",), 1, "others", 0.5)))


@pytest.fixture(autouse=True)
def mixed(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "mixed", MIXED)


def make_model():
    torch.manual_seed(1)
    return build_model(get_experiment("gpt2ish"), vocab_size=20, context_len=16, num_blocks=1, embed_dim=8, num_heads=2, tied_head=False)


def give_gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_each_parameter_has_one_member_and_moves_as_with_that_alone():
    model, other = make_model(), make_model()
    together = build_optimizers("mixed", model, 0.1)
    matrices = {name for name, parameter in other.named_parameters() if parameter.ndim == 2 and "embedding" not in name and "head" not in name}
    adamw = torch.optim.AdamW([parameter for name, parameter in other.named_parameters() if name in matrices], lr=0.02, weight_decay=0.3)
    rest = [(name, parameter) for name, parameter in other.named_parameters() if name not in matrices]
    decays = [parameter for name, parameter in rest if name == "head.weight"]
    sgd = torch.optim.SGD([{"params": decays, "weight_decay": 0.3}, {"params": [parameter for name, parameter in rest if name != "head.weight"]}],
                          lr=0.01, momentum=0.9)
    together.set_lr(0.02)
    together.set_weight_decay(0.3)
    for step in range(3):
        give_gradients(model, step)
        give_gradients(other, step)
        together.step()
        adamw.step()
        sgd.step()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    sizes = {name: parameter.nbytes for name, parameter in model.named_parameters()}
    assert together.state_bytes() == sum(size * (2 if name in matrices else 1) for name, size in sizes.items())
    assert together.lr == 0.02


def test_a_state_of_another_set_is_refused():
    state = build_optimizers("mixed", make_model(), 0.1).state()
    with pytest.raises(UserError, match="the file has matrices, others, this run main"):
        build_optimizers("adamw", make_model(), 0.1).restore(state)


@pytest.mark.parametrize("more", [[], ["--amp"]])
def test_it_trains_saves_and_resumes_exactly(tmp_path, monkeypatch, capsys, more):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), [{"text": sentences(1 + i % 5)} for i in range(40)])
    write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "batch_size": 6}, "two": {"dataset": "rows.jsonl", "samples": 15, "freeze": ["blocks.0.*"]}})
    command = [*TINY, "--optimizer", "mixed", "--training-plan", "plan.json", "--grad-clip", "1", "--save-interval", "10", *more]
    assert main([*command, "--out-dir", "whole"]) == 0
    codes = [main([*command, "--out-dir", "parts", "--max-steps", "3"])]
    while codes[-1] == 75:
        codes.append(main([*command, "--out-dir", "parts", "--max-steps", "3"]))
    assert codes[-1] == 0
    assert len(codes) > 2
    assert compare_runs(Path("whole"), Path("parts")) == []
    stored = load(Path("whole", "gpt2ish_model.lmp"))["optimizers"]
    assert stored["state_args"] == {"matrices": {"optimizer": "mixed"}, "others": {"optimizer": "mixed"}}
    assert all(stored["state"][name]["state"] for name in ("matrices", "others"))
    capsys.readouterr()


def test_a_gradient_that_is_not_finite_in_one_member_updates_none():
    model, runtime = make_model(), Runtime(Settings(device="cpu"))
    runtime.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before, optimizers = {name: parameter.clone() for name, parameter in model.named_parameters()}, build_optimizers("mixed", model, 0.1)
    for step, wrong in ((0, True), (1, False)):
        give_gradients(model, step)
        runtime.scaler.scale(torch.zeros(()))  # makes the scale
        if wrong:
            model.final_norm.weight.grad.fill_(math.inf)
        update(DeviceModel(model, model, runtime), optimizers, torch.tensor(1.0), 0.0)
        moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
        assert moved == (set() if wrong else set(before))
    assert runtime.scaler.get_scale() == 2.0  # lowered once
