"""The llamaish model against transformers' Llama, Mistral, Qwen2 and Qwen3."""
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from lmplay.errors import UserError
from lmplay.exp.llamaish import Llamaish, from_transformers, settings_of, to_transformers

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {"vocab_size": 101, "max_position_embeddings": 24, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
                         "num_key_value_heads": 2, "intermediate_size": 48, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
KINDS: dict[str, dict[str, Any]] = {
    "Llama": {}, "Llama, tied, own base": {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "Llama, all heads": {"num_key_value_heads": 4}, "Mistral": {"sliding_window": None}, "Mistral, wide heads": {"sliding_window": None, "head_dim": 12},
    "Qwen2": {}, "Qwen3": {"head_dim": 12}, "Qwen3, tied": {"head_dim": 8, "num_key_value_heads": 1, "tie_word_embeddings": True}}


def config_of(kind: str, **more: Any) -> Any:
    return getattr(transformers, f"{kind.split(',')[0]}Config")(**{"tie_word_embeddings": False, **SIZES, **KINDS.get(kind, {}), **more})


def twins(kind: str) -> tuple[Llamaish, Any]:
    """Our model and transformers' with the same random weights, none of them left at a fresh model's 0 or 1."""
    torch.manual_seed(0)
    config = config_of(kind)
    reference = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    ours = Llamaish(**settings_of(config))
    ours.load_state_dict(from_transformers(reference.state_dict(), ours))
    return ours, reference


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_transformers(kind: str) -> None:
    ours, reference = twins(kind)
    batch = torch.randint(101, (3, 24))
    logits = ours.head(ours(batch))
    expected = reference(batch, labels=batch)
    assert logits.std() > 0.3
    assert (logits - expected.logits).abs().max() < 1e-5

    functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten()).backward()
    expected.loss.backward()
    with torch.no_grad():
        for weights in (ours, reference):
            for parameter in weights.parameters():
                parameter.copy_(parameter.grad)
    theirs = reference.state_dict()
    found = to_transformers(ours)
    assert found.keys() == theirs.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3, tied"])
def test_weights_go_to_transformers_and_back(kind: str) -> None:
    ours, _ = twins(kind)
    there = transformers.AutoModelForCausalLM.from_config(config_of(kind))
    there.load_state_dict(to_transformers(ours))
    back = from_transformers(there.state_dict(), ours)
    assert all(torch.equal(weight, back[name]) for name, weight in ours.state_dict().items())


@pytest.mark.parametrize(("kind", "more", "lacks"), [
    ("Mistral", {"sliding_window": 8}, "a sliding window"), ("Llama", {"hidden_act": "gelu"}, "hidden_act gelu"),
    ("Llama", {"attention_bias": True, "mlp_bias": True}, "mlp_bias"), ("Mistral", {"attention_bias": True}, "attention_bias"),
    ("Gemma", {}, "model_type gemma"),
    ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope_type linear")])
def test_what_is_lacking_is_said(kind: str, more: dict[str, Any], lacks: str) -> None:
    with pytest.raises(UserError, match=f"llamaish lacks .*{lacks}"):
        settings_of(config_of(kind, **more))


@pytest.mark.parametrize(("settings", "said"), [
    ({"num_heads": 5}, "--embed-dim 32, --num-heads 5.*choose --embed-dim 30 or 35, or --num-heads 4 or 8"),
    ({"num_kv_heads": 3}, "num_kv_heads 3, --num-heads 4.*choose num_kv_heads 2 or 4"),
    ({"num_kv_heads": 0}, "num_kv_heads 0: must be at least 1"), ({"hidden_dim": -1}, "hidden_dim -1: must"),
    ({"num_kv_heads": 8}, "choose num_kv_heads 4"), ({"head_dim": 7}, "a head of width 7 has an odd number"),
    ({"rope_base": 1.0}, "rope_base 1: must be above"),
    ({"embed_dim": 12}, "a head of width 3 has an odd number"), ({"num_blocks": 0}, "--num-blocks 0"), ({"dropout": 1.0}, "dropout 1.0")])
def test_sizes_that_do_not_fit_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        Llamaish(**{"vocab_size": 50, "context_len": 16, "num_blocks": 1, "embed_dim": 32, "num_heads": 4, **settings})
    assert len(caught.value.faults) == 1
