"""The start of a run: what it imports and what it doesn't."""
import subprocess
import sys

import pytest
import torch
from helpers import ENVIRONMENT, TINY, sentences, write_rows
from torch import nn

from lmplay.engine.run import ModelPlan
from lmplay.optim.optimizers import OPTIMIZERS, build_optimizer

# Ends the process after its first step, with the names of the heavy libraries that have been imported, but for those that torch itself needs.
WATCH = """
import subprocess, sys
from lmplay.track.callback import Callback
HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "transformers", "datasets", "pandas", "pyarrow", "matplotlib", "huggingface_hub")

class Watch(Callback):
    def train(self, figures):
        print(*(set(HEAVY) & set(sys.modules)), file=sys.stderr, flush=True)
        import os
        os._exit(33)
"""


def loaded_by(program: list, folder, *arguments) -> set:
    done = subprocess.run([sys.executable, *program, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=folder, env=ENVIRONMENT)
    assert done.returncode == 33, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("tokenizer", ["bytes", "train:300"])
def test_the_first_step_needs_no_compiler_and_no_library_of_models_or_data(tmp_path, tokenizer):
    (tmp_path / "watch.py").write_text(WATCH)
    write_rows(tmp_path / "texts.jsonl", [{"text": sentences(4)} for _ in range(30)])
    by_torch = loaded_by(["-c", "import torch, watch; watch.Watch().train({})"], tmp_path)
    by_run = loaded_by(["-m", "lmplay.train"], tmp_path, *TINY, "--tokenizer", tokenizer, "--dataset", "texts.jsonl", "--callback", "watch:Watch")
    assert by_run - by_torch == set()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_without_the_compiler_are_those_of_torch(name):
    def train(build):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        optimizer = build(model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).pow(3).sum().backward()
            optimizer.step()
        return optimizer, [*model.parameters()]

    ours, weights = train(lambda model: build_optimizer(name, model, 0.01, 0.1))
    groups = [{key: value for key, value in group.items() if key != "params"} for group in ours.param_groups]

    def theirs(model):
        split = [[parameter for parameter in model.parameters() if (parameter.dim() > 1) == group["decays"]] for group in groups]
        return OPTIMIZERS[name].kind([{**group, "params": parameters} for group, parameters in zip(groups, split, strict=True)])

    other, expected = train(theirs)
    assert all(map(torch.equal, weights, expected))
    assert isinstance(ours, OPTIMIZERS[name].kind)
    assert str(ours) == str(other)
    assert ours.state_dict().keys() == other.state_dict().keys()
    for state, same in zip(ours.state.values(), other.state.values(), strict=True):
        assert all(map(torch.equal, state.values(), same.values()))


def test_hooks_of_an_optimizer_are_called():
    model, heard = nn.Linear(2, 2), []
    optimizer = build_optimizer("adamw", model, 0.1)
    optimizer.register_step_post_hook(lambda *_: heard.append("step"))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert heard == ["step"]
    assert not any(parameter.requires_grad and parameter.grad_fn for parameter in model.parameters())


def test_a_model_of_shapes_alone_has_those_of_the_model():
    plan = ModelPlan("gpt2ish_tiny", {"context_len": 16, "num_blocks": 1, "embed_dim": 8, "num_heads": 2}, None)
    drawn = torch.get_rng_state()
    shapes = {name: (parameter.shape, parameter.dtype) for name, parameter in plan.build(20, meta=True).named_parameters()}
    assert torch.equal(torch.get_rng_state(), drawn)
    assert shapes == {name: (parameter.shape, parameter.dtype) for name, parameter in plan.build(20).named_parameters()}
