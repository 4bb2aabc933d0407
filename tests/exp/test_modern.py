"""The modern model: what each of its settings does, and what it refuses."""
from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lmplay.errors import UserError
from lmplay.exp.llamaish import Llamaish
from lmplay.exp.modern import MLPS, Modern

SIZES: dict[str, Any] = {"vocab_size": 60, "context_len": 16, "num_blocks": 4, "embed_dim": 32, "num_heads": 4}


def small(shaken: bool = True, **settings: Any) -> Modern:
    """A model with all weights away from what they are at first."""
    torch.manual_seed(0)
    model = Modern(**{**SIZES, **settings})
    with torch.no_grad():
        for parameter in model.parameters() if shaken else ():
            parameter.add_(torch.randn(parameter.shape), alpha=0.3)
    return model


def tokens(*shape: int) -> Tensor:
    return torch.randint(60, shape, generator=torch.Generator().manual_seed(1))


def count(model: Modern) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_a_fresh_model_gives_every_token_the_same_chance_and_each_block_adds_nothing() -> None:
    model, batch = small(shaken=False), tokens(2, 16)
    hidden = model(batch)
    assert functional.cross_entropy(model.head(hidden).flatten(0, 1), batch.flatten()).item() == pytest.approx(math.log(60), abs=1e-6)
    torch.testing.assert_close(hidden, model.final_norm(model.embedding_norm(model.token_embedding(batch))))
    torch.testing.assert_close(hidden.square().mean(-1), torch.ones(2, 16), rtol=1e-3, atol=1e-3)
    assert not torch.equal(small(shaken=False, zero_projections=False)(batch), hidden)


def test_it_has_no_biases_and_by_default_no_weights_of_norms() -> None:
    assert not [name for name, parameter in small().named_parameters() if parameter.ndim < 2 or "bias" in name]
    assert [name for name, parameter in small(norm_weights=True).named_parameters() if parameter.ndim < 2]


@pytest.mark.parametrize(("settings", "more"), [
    ({"num_kv_heads": 2}, -4 * 2 * 32 * 16), ({"mlp": "swiglu"}, 4 * (3 * 96 - 2 * 128) * 32), ({"mlp": "gelu", "hidden_dim": 64}, -4 * 2 * 64 * 32),
    ({"tied_head": True}, -60 * 32), ({"norm_weights": True}, 10 * 32 + 4 * 2 * 8),
    ({"norm_weights": True, "value_norm": True}, 10 * 32 + 96),
    ({"query_key_norm": False}, 0), ({"value_norm": True}, 0), ({"embedding_norm": False}, 0), ({"soft_cap": 15.0}, 0), ({"z_loss": 0.1}, 0),
    ({"value_residual": True}, 3 * 2), ({"value_embeddings": 1, "num_kv_heads": 2}, 60 * 16 + 2 * 2 - 4 * 2 * 32 * 16),
    ({"value_embeddings": 2}, 2 * 60 * 32 + 4 * 2), ({"value_embeddings": 2, "value_residual": True}, 2 * 60 * 32 + 4 * 2), ({"residual_scalars": True}, 8),
    ({"rope_base": 50.0}, 0)])
def test_each_setting_changes_the_model_and_its_size(settings: dict[str, Any], more: int) -> None:
    plain, model, batch = small(), small(**settings), tokens(2, 16)
    assert count(model) - count(plain) == more
    same = torch.equal(model.head(model(batch)), plain.head(plain(batch)))
    assert same == ("z_loss" in settings)  # which changes the training alone


def test_with_llamas_settings_it_is_llama() -> None:
    settings = {"num_kv_heads": 2, "mlp": "swiglu", "query_key_norm": True, "norm_weights": True}
    model = small(**settings, embedding_norm=False, zero_projections=False, head_std=0.02)
    llama = Llamaish(**SIZES, num_kv_heads=2, query_key_norm=True)
    llama.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.head(model(tokens(2, 16))), llama.head(llama(tokens(2, 16))))


def test_values_of_tables_are_mirrored_and_those_of_the_first_block_go_on() -> None:
    model, batch = small(value_embeddings=1), tokens(1, 16)
    assert [block.attention.value_mix is not None for block in model.blocks] == [True, False, False, True]
    before = model(batch)
    with torch.no_grad():
        for number in (0, 3):
            model.blocks[number].attention.value_mix[1] = 0.0
    assert not torch.equal(model(batch), before)
    without = model(batch)
    with torch.no_grad():
        model.value_embeddings[0].weight.mul_(5)
    assert torch.equal(model(batch), without)

    residual = small(value_residual=True)
    seen = residual(batch)
    with torch.no_grad():
        for block in residual.blocks[1:]:
            block.attention.value_mix.copy_(torch.tensor([1.0, 0.0]))
    plain = small()
    plain.load_state_dict({name: value for name, value in residual.state_dict().items() if "value_mix" not in name})
    assert not torch.allclose(seen, plain(batch))
    assert torch.equal(residual(batch), plain(batch))


def test_soft_cap_bounds_logits() -> None:
    model = small(soft_cap=2.0, head_std=5.0)
    logits = model.head(model(tokens(2, 16)))
    assert 1.5 < logits.abs().max() <= 2


def test_dropout_acts_in_training_only() -> None:
    model, batch = small(dropout=0.5), tokens(2, 16)
    assert not torch.equal(model(batch), model(batch))
    assert torch.equal(model.eval()(batch), model(batch))


@pytest.mark.parametrize(("settings", "said"), [
    ({"mlp": "swigl"}, r"mlp swigl: allowed is one of squared_relu, gelu, swiglu\. Did you mean 'swiglu'"), ({"num_kv_heads": 3}, "choose num_kv_heads 2 or 4"),
    ({"num_heads": 32}, "a head of width 1 has an odd number"), ({"embedding_std": 0.0}, "embedding_std 0: must be"),
    ({"head_std": -1.0}, "head_std -1"), ({"soft_cap": -1.0}, "soft_cap -1: must be 0"), ({"z_loss": -1.0}, "z_loss -1"),
    ({"multi_token": -1}, "multi_token -1"),
    ({"value_embeddings": 3}, "value_embeddings 3: must be from 0 to half of the 4 blocks")])
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        small(**settings)
    assert len(caught.value.faults) == 1


def test_the_words_for_mlps_are_known() -> None:
    assert len({type(small(mlp=name).blocks[0].mlp).__name__ + str(small(mlp=name).blocks[0].mlp) for name in MLPS}) == 3
