"""Our models as models of transformers: the class, the logits, the import of what was exported, and models that have no such class."""
import pytest
import torch
from exported import SIZES, logits, stirred, their_logits

from lmplay.errors import UserError
from lmplay.exp import gpt2ish, llamaish, modern
from lmplay.exp.standard import as_transformers

transformers = pytest.importorskip("transformers")
CASES = {
    "GPT2": ("gpt2ish", {}), "GPT2, own head": ("gpt2ish", {"tied_head": False}), "GPT2, exact gelu": ("gpt2ish", {"activation": "gelu"}),
    "Llama": ("llamaish", {}), "Llama, tied": ("llamaish", {"tied_head": True, "num_kv_heads": 2, "rope_base": 500.0, "norm_epsilon": 1e-6}),
    "Llama, wide heads": ("llamaish", {"head_dim": 12}), "Mistral": ("llamaish", {"embed_dim": 30, "head_dim": 8}),
    "Llama, biased": ("llamaish", {"query_key_value_bias": True}), "Qwen2": ("llamaish", {"query_key_value_bias": True, "embed_dim": 30, "head_dim": 8}),
    "Qwen3": ("llamaish", {"query_key_norm": True}),
    "Qwen3, biased": ("llamaish", {"query_key_norm": True, "query_key_value_bias": True}),
    "Apertus": ("modern", {}), "Apertus, one table": ("modern", {"tied_head": True}), "Apertus, tied": ("modern", {"tied_head": True, "embedding_norm": False}),
    "Apertus, gelu": ("modern", {"mlp": "gelu", "num_kv_heads": 2}), "Apertus, weights": ("modern", {"norm_weights": True, "multi_token": 2, "z_loss": 0.1}),
    "Arcee": ("modern", {"query_key_norm": False}), "Llama, modern": ("modern", {"query_key_norm": False, "mlp": "swiglu"}),
    "Qwen3, modern": ("modern", {"mlp": "swiglu"})}
READERS = {"gpt2": (gpt2ish, gpt2ish.GPT2ish), "apertus": (modern, modern.Modern), "arcee": (modern, modern.Modern)}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_the_same_in_transformers_and_back(name, tmp_path):
    experiment, settings = CASES[name]
    model = stirred(experiment, 70, **settings)
    theirs = as_transformers(model, experiment)
    assert type(theirs).__name__ == f"{name.partition(',')[0]}{'LMHeadModel' if name[:4] == 'GPT2' else 'ForCausalLM'}"
    theirs.save_pretrained(tmp_path)
    tokens = torch.randint(70, (3, SIZES["context_len"]), generator=torch.Generator().manual_seed(1))
    expected = logits(model, tokens)
    assert expected.std() > 0.3
    torch.testing.assert_close(their_logits(tmp_path, tokens), expected, rtol=0, atol=1e-5)

    opened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    module, kind = READERS.get(opened.config.model_type, (llamaish, llamaish.Llamaish))
    back = kind(**module.settings_of(opened.config))
    back.load_state_dict(module.from_transformers(opened.state_dict(), back))
    torch.testing.assert_close(logits(back, tokens), expected, rtol=0, atol=1e-6)


def test_the_config_says_the_base_of_positions_to_old_and_new_readers():
    config = as_transformers(stirred("modern", 70, rope_base=500.0), "modern").config
    assert (config.rope_theta, config.rope_parameters["rope_theta"], config.rope_parameters["rope_type"]) == (500.0, 500.0, "default")


@pytest.mark.parametrize(("experiment", "settings", "named"), [
    ("modern", {"value_norm": True, "soft_cap": 9.0}, "value_norm and soft_cap"), ("modern", {"value_residual": True}, "value_residual"),
    ("modern", {"value_embeddings": 1}, "value_embeddings"), ("modern", {"residual_scalars": True}, "residual_scalars"),
    ("valnorm", {}, "the layer norm on values")])
def test_what_no_model_of_transformers_computes_is_refused_with_the_setting(experiment, settings, named):
    with pytest.raises(UserError, match=f"no model of transformers computes what .* does with {named};"):
        as_transformers(stirred(experiment, 70, **settings), experiment)


def test_a_model_without_a_form_in_transformers_is_refused():
    with pytest.raises(UserError, match="experiment mine: has no form in transformers"):
        as_transformers(torch.nn.Linear(2, 2), "mine")


@pytest.mark.parametrize(("kind", "more", "lacks"), [
    (gpt2ish, {"activation_function": "relu", "n_inner": 8}, "activation_function relu, n_inner 8"), (gpt2ish, {"layer_norm_epsilon": 1e-6}, "epsilon 1e-06"),
    (modern, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "rope_type linear"),
    (modern, {"hidden_act": "silu"}, "hidden_act silu"),
    (modern, {"rms_norm_eps": 1e-6}, "rms_norm_eps 1e-06")])
def test_what_our_models_lack_is_named(kind, more, lacks):
    config = as_transformers(stirred("gpt2ish" if kind is gpt2ish else "modern", 70), "x").config
    config.update(more)
    with pytest.raises(UserError, match=f"lacks .*{lacks}"):
        kind.settings_of(config)
