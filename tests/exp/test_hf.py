"""Models of transformers: their losses, logits and gradients are transformers' own, in all the ways in which lmplay runs them."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from lmplay.errors import UserError
from lmplay.exp import build_model, get_experiment
from lmplay.exp.hf import open_source, read_own_weights
from lmplay.modules.cache import KeyValueCache
from lmplay.optim.optimizers import build_optimizers

transformers = pytest.importorskip("transformers")
SMALL = {"vocab_size": 70, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64}
CONFIGS = {
    "gpt2": {"vocab_size": 70, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2},
    "llama": {**SMALL, "num_key_value_heads": 2}, "mistral": {**SMALL, "num_key_value_heads": 2, "sliding_window": None},
    "qwen2": {**SMALL, "num_key_value_heads": 2}, "qwen3": {**SMALL, "num_key_value_heads": 2, "head_dim": 16},
    "gemma": {**SMALL, "num_key_value_heads": 1, "head_dim": 16}, "gemma2": {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8},
    "granite": {**SMALL, "num_key_value_heads": 2, "logits_scaling": 3.0}, "olmo2": SMALL, "gpt_neox": SMALL,
    "windowed": {**SMALL, "num_key_value_heads": 2, "sliding_window": 4}}
PACKABLE = ["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "granite", "olmo2", "gpt_neox"]


def config_of(name: str) -> dict:
    kind = {"windowed": "mistral"}.get(name, name)
    config = transformers.AutoConfig.for_model(kind, **CONFIGS[name], **({"pad_token_id": 0} if name != "gpt2" else {}))
    return {**json.loads(config.to_json_string(use_diff=False)), "model_type": kind}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(get_experiment(f"hf-fresh:{name}"), vocab_size=70, context_len=32, config=config_of(name)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model


def theirs(model: nn.Module, attention: str = "eager") -> nn.Module:
    """The same model as transformers runs it."""
    config = transformers.AutoConfig.for_model(**json.loads(model.causal.config.to_json_string(use_diff=False)))
    other = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    other.load_state_dict(model.causal.state_dict())
    return other


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_loss_and_gradients_are_those_of_transformers(name):
    model = build(name)
    other = theirs(model)
    tokens = torch.randint(0, 70, (3, 20), generator=torch.Generator().manual_seed(1))
    logits = model.head(model(tokens))
    expected = other(input_ids=tokens, labels=tokens)
    torch.testing.assert_close(logits, expected.logits, rtol=1e-4, atol=1e-5)
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(loss, expected.loss, rtol=1e-5, atol=1e-6)
    loss.backward()
    expected.loss.backward()
    grads = dict(other.named_parameters())
    for key, parameter in model.causal.named_parameters():
        torch.testing.assert_close(parameter.grad, grads[key].grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", PACKABLE)
def test_packed_and_cached_is_as_each_piece_alone(name):
    model, lengths = build(name), (7, 3, 3, 12)
    pieces = [torch.randint(0, 70, (1, length), generator=torch.Generator().manual_seed(length + number)) for number, length in enumerate(lengths)]
    packed = model(torch.cat(pieces, 1), lengths=lengths)
    alone = torch.cat([model(piece) for piece in pieces], 1)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)
    cache = KeyValueCache(1, 12, torch.device("cpu"))
    parts = []
    for begin, end in ((0, 5), (5, 6), (6, 12)):
        parts.append(model(pieces[3][:, begin:end], cache=cache))
        cache.keep([end - begin])
    torch.testing.assert_close(torch.cat(parts, 1), model(pieces[3]), rtol=1e-4, atol=1e-5)


def test_attention_that_is_not_plain_stays_that_of_transformers():
    for name in {*CONFIGS} - {*PACKABLE}:
        with pytest.raises(TypeError, match="lengths"):
            build(name)(torch.zeros(1, 4, dtype=torch.int64), lengths=(2, 2))


def folder_of(name: str, folder: Path) -> Path:
    theirs(build(name)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "gemma", "mistral"])
def test_a_folder_is_read_and_written_back(name, tmp_path):
    folder = folder_of(name, tmp_path / "there")
    opened = open_source(str(folder))
    assert opened["context_len"] == 64
    model = build_model(get_experiment(f"hf:{folder}"), vocab_size=60, **opened)
    model.load_state_dict(read_own_weights(str(folder)))
    tokens = torch.arange(12)[None]
    expected = transformers.AutoModelForCausalLM.from_pretrained(folder)(input_ids=tokens).logits
    torch.testing.assert_close(model.eval().head(model(tokens)), expected, rtol=1e-4, atol=1e-5)
    model.as_transformers().save_pretrained(tmp_path / "back")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert all(map(torch.equal, again.state_dict().values(), transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict().values()))


def test_what_cannot_be_a_model_is_refused_in_a_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"experiment hf:.*empty: cannot be read"):
        open_source(str(tmp_path / "empty"))
    folder = folder_of("llama", tmp_path / "bare")
    for file in folder.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(UserError, match=r"cannot be read .*To start with fresh weights: --exp hf-fresh:"):
        read_own_weights(str(folder))
    opened = open_source(str(folder))
    with pytest.raises(UserError, match="the tokenizer has 71 tokens, and the model 70") as caught:
        build_model(get_experiment("hf:x"), vocab_size=71, **{**opened, "context_len": 65})
    assert "--context-len 65 is more than the model's 64 positions; give 64 or less" in caught.value.faults[1]
    with pytest.raises(UserError, match="the config is not one of transformers"):
        build_model(get_experiment("hf:x"), vocab_size=8, context_len=16, config={"model_type": "nothing"})
    with pytest.raises(UserError, match="a model of type t5 cannot be built"):
        build_model(get_experiment("hf:x"), vocab_size=8, context_len=16, config={"model_type": "t5"})


def test_a_scaled_head_is_a_head_for_muon():
    model = build("granite")
    matrices = {id(parameter) for group in build_optimizers("muon", model, 0.01).members["matrices"].param_groups for parameter in group["params"]}
    assert id(model.causal.lm_head.weight) not in matrices
    assert id(model.causal.model.layers[0].mlp.input_linear.weight if hasattr(model.causal.model.layers[0].mlp, "input_linear")
              else model.causal.model.layers[0].mlp.up_proj.weight) in matrices
