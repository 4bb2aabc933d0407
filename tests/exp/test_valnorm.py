"""Gpt2ish with a norm of values."""
import pytest
import torch
from torch.nn import functional

from lmplay.errors import UserError
from lmplay.exp import build_model, get_experiment
from lmplay.exp.gpt2ish import GPT2ish
from lmplay.exp.valnorm import ValNorm

SIZES = {"vocab_size": 40, "context_len": 16, "num_blocks": 2, "embed_dim": 32, "num_heads": 4, "dropout": 0.0}


def test_each_head_of_the_values_is_normalized_before_it_is_mixed():
    torch.manual_seed(0)
    model, tokens = ValNorm(**SIZES), torch.randint(40, (1, 9))
    attention = model.blocks[0].attention
    hidden = torch.randn(1, 9, 32)
    query, key, value = (part.unflatten(2, (4, 8)).transpose(1, 2) for part in attention.query_key_value(hidden).split(32, 2))
    mixed = functional.scaled_dot_product_attention(query, key, functional.layer_norm(value, (8,)), is_causal=True)
    torch.testing.assert_close(attention(hidden), attention.projection(mixed.transpose(1, 2).flatten(2)))
    # values have no scale any more
    before = model(tokens)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.query_key_value.weight[-32:] *= 3
            block.attention.query_key_value.bias[-32:] *= 3
    torch.testing.assert_close(model(tokens), before, rtol=1e-2, atol=1e-3)


def test_it_is_gpt2ish_but_for_the_norms():
    model, plain = build_model(get_experiment("valnorm"), **SIZES), GPT2ish(**SIZES)
    more = {name: tuple(weight.shape) for name, weight in model.state_dict().items() if name not in plain.state_dict()}
    assert more == {f"blocks.{number}.attention.value_norm.{kind}": (8,) for number in (0, 1) for kind in ("weight", "bias")}
    with pytest.raises(UserError, match="--num-heads 5"):
        ValNorm(**{**SIZES, "num_heads": 5})
