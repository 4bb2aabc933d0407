"""Adapters: on ours they are what peft makes of the same model of transformers, on all they start from nothing and are merged without a difference."""
from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lmplay.data.collate import collate
from lmplay.engine.adapting import tried
from lmplay.errors import UserError
from lmplay.exp import build_model, experiments, get_experiment
from lmplay.modules.adapters import adapter_parameters, adapter_state, add_adapter, choose_layers, drop_adapter, merge_adapter
from lmplay.objectives.next_token import NextToken
from lmplay.plan.names import ADAPTERS
from lmplay.plan.settings import AdapterSettings

peft = pytest.importorskip("peft")
VOCAB = 40
SIZES = {"context_len": 24, "num_blocks": 2, "embed_dim": 32, "num_heads": 4, "dropout": 0.0}
CASES = {**{name: (name, {}) for name in dict.fromkeys(name for name in experiments() if "_" not in name)},
         "modern, values": ("modern", {"value_residual": True, "num_kv_heads": 2, "mlp": "swiglu", "value_embeddings": 1}),
         "llamaish, Qwen": ("llamaish", {"num_kv_heads": 2, "query_key_value_bias": True, "query_key_norm": True, "tied_head": True})}
each = pytest.mark.parametrize("case", CASES)
each_kind = pytest.mark.parametrize("kind", ADAPTERS)


def make(case: str, **more) -> torch.nn.Module:
    """A model whose weights are far from those of a fresh one."""
    name, settings = CASES[case]
    torch.manual_seed(0)
    model = build_model(get_experiment(name), vocab_size=VOCAB, **{**SIZES, **settings, **more})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.15)
    return model.eval()


def adapted(model: torch.nn.Module, learned: bool = True, **settings) -> torch.nn.Module:
    adapter = AdapterSettings(**{"kind": "lora", "rank": 4, "alpha": 8.0, **settings})
    add_adapter(model, adapter, choose_layers(model, adapter), seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in adapter_parameters(model).values() if learned else ():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


def logits(model: torch.nn.Module, tokens: torch.Tensor | None = None) -> torch.Tensor:
    return model.head(model(torch.arange(2 * 11).view(2, 11) % VOCAB if tokens is None else tokens))


@each_kind
@each
def test_a_fresh_one_changes_nothing_and_a_learned_one_is_merged(case, kind):
    plain = make(case)
    before, state = logits(plain), {name: value.clone() for name, value in plain.state_dict().items()}
    model = adapted(copy.deepcopy(plain), learned=False, kind=kind)
    torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-5)
    drop_adapter(model)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.state_dict().keys() == state.keys()
    model = adapted(model, kind=kind)
    learned = logits(model)
    assert not torch.allclose(learned, before, atol=1e-2)
    names = adapter_state(model).keys()
    merge_adapter(model)
    torch.testing.assert_close(logits(model), learned, rtol=1e-4, atol=1e-4)
    assert model.state_dict().keys() == state.keys()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, state[name])}
    assert changed == {f"{name.split('.lora_')[0]}.weight" for name in names}


@each
def test_it_alone_has_gradients_and_mini_batches_do_not_matter(case):
    model = adapted(make(case), targets="all").double().train()
    own = adapter_parameters(model)
    pieces = [SimpleNamespace(tokens=np.arange(n + 1) % VOCAB, n_prompt=1, learned=None, weight=None, preferred=None, judged=None) for n in (24, 9, 9, 3, 17)]
    found = []
    for size, packed in ((1, False), (2, False), (5, False), (5, True)):
        model.zero_grad(set_to_none=True)
        for mini_batch in collate(pieces, size, 1, packed=packed):
            NextToken().loss(model, mini_batch, model.head).loss_sum.backward()
        assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == own.keys()
        found.append([parameter.grad.clone() for parameter in own.values()])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-9, atol=1e-9)


@each
def test_words_for_layers_are_those_of_the_blocks(case):
    model = make(case)
    of_attention, of_all = (choose_layers(model, AdapterSettings("lora", 4, targets=word)) for word in ("attention", "all"))
    assert of_attention == [f"blocks.{number}.attention.{part}" for number in range(2) for part in ("query_key_value", "projection")]
    assert of_all == [f"blocks.{number}.{part}" for number in range(2) for part in
                      ("attention.query_key_value", "attention.projection", "mlp.expansion", "mlp.projection")]
    assert choose_layers(model, AdapterSettings("lora", 4, targets=["blocks.1.mlp.*"])) == ["blocks.1.mlp.expansion", "blocks.1.mlp.projection"]


def test_parameters_are_counted():
    """Of a layer of I inputs and O outputs (I + O) * rank, and O more with DoRA."""
    layers = [(32, 96), (32, 32), (32, 128), (128, 32)]
    expected = 2 * sum((one + other) * 4 for one, other in layers)
    counts = {kind: sum(parameter.numel() for parameter in adapter_parameters(adapted(make("gpt2ish"), kind=kind)).values()) for kind in ADAPTERS}
    assert counts == {"lora": expected, "rslora": expected, "dora": expected + 2 * sum(outputs for _, outputs in layers)}


def test_the_numbers_of_training_are_not_touched(monkeypatch):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    model = make("gpt2ish")
    torch.manual_seed(1)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("CUDA's numbers are those of training, too"))
    adapted(model, learned=False, dropout=0.1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(("settings", "said"), [
    ({"targets": ["blocks.*.mlp.*", "layers.*"]}, "adapter.targets 'layers.*': matches no linear layer. There are blocks.*.attention.query_key_value, bl"),
    ({"targets": ["blocks.0.mlp.expansions"]}, "Did you mean 'blocks.0.mlp.expansion'?"),
    ({"targets": ["head"]}, "head and embeddings never get an adapter"),
    ({"targets": ["token_embedding"]}, "matches no linear layer"),
    ({"rank": 33}, "adapter.rank 33: is more than blocks.0.attention.query_key_value can have, which is 96 x 32; give 32 or less.")])
def test_what_cannot_be_is_refused(settings, said):
    with pytest.raises(UserError, match="adapter") as caught:
        choose_layers(make("gpt2ish"), AdapterSettings(**{"kind": "lora", "rank": 4, **settings}))
    assert said in str(caught.value)


# Our layers by the names of transformers; where theirs are several, ours is their rows one below the other.
THEIRS = {
    "gpt2ish": {"attention.query_key_value": ["attn.c_attn"], "attention.projection": ["attn.c_proj"], "mlp.expansion": ["mlp.c_fc"],
                "mlp.projection": ["mlp.c_proj"]},
    "llamaish": {"attention.query_key_value": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "attention.projection": ["self_attn.o_proj"],
                 "mlp.expansion": ["mlp.gate_proj", "mlp.up_proj"], "mlp.projection": ["mlp.down_proj"]}}


@each_kind
@pytest.mark.parametrize("case", THEIRS)
def test_logits_and_gradients_are_those_of_peft_on_the_same_model_of_transformers(case, kind):
    pytest.importorskip("transformers")
    plain = make(case)
    theirs = copy.deepcopy(plain).as_transformers()
    model = adapted(plain, kind=kind)
    names = sorted({name for several in THEIRS[case].values() for name in several})
    config = peft.LoraConfig(r=4, lora_alpha=8.0, target_modules=names, fan_in_fan_out=case == "gpt2ish", **ADAPTERS[kind])
    reference = peft.get_peft_model(theirs, config)
    prefix = "base_model.model.transformer.h" if case == "gpt2ish" else "base_model.model.model.layers"
    own, parts = adapter_parameters(model), {}
    with torch.no_grad():
        for number in range(2):
            for ours, several in THEIRS[case].items():
                sizes = [reference.get_submodule(f"{prefix}.{number}.{name}").out_features for name in several]
                for part in ("lora_A.default.weight", "lora_B.default.weight", *(["lora_magnitude_vector.default.weight"] if kind == "dora" else [])):
                    value = own[f"blocks.{number}.{ours}.{part}"]
                    values = [value] * len(several) if "lora_A" in part else value.split(sizes)
                    targets = [reference.get_parameter(f"{prefix}.{number}.{name}.{part}") for name in several]
                    for target, one in zip(targets, values, strict=True):
                        target.copy_(one)
                    parts[f"blocks.{number}.{ours}.{part}"] = targets
    tokens = torch.arange(22).view(2, 11) % VOCAB
    mine, other = logits(model, tokens), reference(input_ids=tokens).logits
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    weights = torch.randn(mine.shape, generator=torch.Generator().manual_seed(2))
    (mine * weights).sum().backward()
    (other * weights).sum().backward()
    for name, targets in parts.items():
        gradients = [target.grad for target in targets]
        expected = sum(gradients) if "lora_A" in name else torch.cat(gradients)
        torch.testing.assert_close(own[name].grad, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("family", "layers"), [("gpt2", 2), ("llama", 4), ("gpt_neox", 2)])
def test_models_of_transformers(family, layers):
    """By the names of their own layers; the head is not among `all`."""
    from lmplay.exp.hf import build_hf

    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4} if family == "gpt2" else \
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.AutoConfig.for_model(family, vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, **sizes).to_dict() | {"model_type": family}
    model = build_hf(VOCAB, 24, config).eval()
    assert len(choose_layers(model, AdapterSettings("lora", 4, targets="attention"))) == 2 * layers
    own = choose_layers(model, AdapterSettings("lora", 4))
    assert not any("lm_head" in name or "embed" in name for name in own)
    before = logits(model)
    assert torch.equal(logits(adapted(model, learned=False)), before)
    drop_adapter(model)
    learned = logits(adapted(model))
    merge_adapter(model)
    torch.testing.assert_close(logits(model), learned, rtol=1e-4, atol=1e-4)
    assert len(own) > 2 * layers


def test_trying_an_adapter_leaves_the_model_as_it_was():
    model = make("gpt2ish")
    model.get_parameter("token_embedding.weight").requires_grad_(False)
    before = {name: (parameter.requires_grad, parameter.detach().clone()) for name, parameter in model.named_parameters()}
    with tried(model, SimpleNamespace(adapter=AdapterSettings("lora", 4))):
        assert len(list(model.named_parameters())) > len(before)
    after = dict(model.named_parameters())
    assert {name: parameter.requires_grad for name, parameter in after.items()} == {name: flag for name, (flag, _) in before.items()}
    assert all(torch.equal(after[name], value) for name, (_, value) in before.items())
