"""The start of a run: what it imports and what it doesn't."""
import json
import subprocess
import sys

import pytest
import torch
from helpers import ENVIRONMENT, TINY, sentences, write_rows
from torch import nn

from lmplay.engine.model_spec import ModelSpec
from lmplay.optim.optimizers import OPTIMIZERS, build_optimizers
from lmplay.tokenizer import train_tokenizer
from lmplay.tokenizer.loading import _from_cache

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


COMPARE = """
import sys, lmplay.tokenizer.loading as module
quick = module.load_tokenizer("some/tokenizer")
assert "transformers" not in sys.modules
module._from_cache = lambda name: None
same = module.load_tokenizer("some/tokenizer")
for tokenizer in (quick, same):
    tokenizer.told = tokenizer.encode("The cat number 12, 猫 <|endoftext|>  sat.").ids.tolist(), {**tokenizer.spec, "json": ""}
assert quick.told == same.told
assert "transformers" in sys.modules
"""


def in_cache(folder, **files) -> dict:
    """Put files where the hub's client keeps them; gives the environment in which it finds them."""
    place = folder / "models--some--tokenizer"
    snapshot = place / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0123")
    (snapshot / "tokenizer.json").write_text(train_tokenizer(iter([sentences(9)]), 300).spec["json"])
    for name, content in files.items():
        (snapshot / f"{name}.json").write_text(json.dumps(content))
    return {**ENVIRONMENT, "HF_HUB_CACHE": str(folder)}


@pytest.mark.parametrize("files", [
    {"config": {"model_type": "gpt2"}, "tokenizer_config": {"model_max_length": 1024}},
    {"config": {"model_type": "llama"},
     "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "chat_template": "{{ messages[0] }}"}}])
def test_a_tokenizer_in_the_cache_needs_no_transformers_and_is_the_same(tmp_path, files):
    done = subprocess.run([sys.executable, "-c", COMPARE], capture_output=True, text=True, check=False, env=in_cache(tmp_path, **files))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("config", [{"tokenizer_class": "LlamaTokenizer", "eos_token": "<|endoftext|>"}, {"tokenizer_class": "PreTrainedTokenizerFast"},
                                    {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"300": {"content": "<new>"}}}])
def test_a_tokenizer_whose_file_does_not_say_all_is_left_to_transformers(tmp_path, monkeypatch, config):
    import huggingface_hub

    in_cache(tmp_path, tokenizer_config=config)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert _from_cache("some/tokenizer") is None
    assert _from_cache("no/tokenizer") is None
    assert _from_cache("not a name") is None


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


def test_a_model_of_shapes_alone_has_those_of_the_model():
    plan = ModelSpec("gpt2ish_tiny", {"context_len": 16, "num_blocks": 1, "embed_dim": 8, "num_heads": 2}, None)
    drawn = torch.get_rng_state()
    shapes = {name: (parameter.shape, parameter.dtype) for name, parameter in plan.build(20, meta=True).named_parameters()}
    assert torch.equal(torch.get_rng_state(), drawn)
    assert shapes == {name: (parameter.shape, parameter.dtype) for name, parameter in plan.build(20).named_parameters()}






