"""The gpt2ish model against transformers' GPT-2, and what it promises by itself."""
from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lmplay.errors import UserError
from lmplay.exp.gpt2ish import GPT2ish

SIZES: dict[str, Any] = {"vocab_size": 101, "context_len": 24, "num_blocks": 3, "embed_dim": 32, "num_heads": 4}


def small(seed: int = 0, **settings: Any) -> GPT2ish:
    torch.manual_seed(seed)
    return GPT2ish(**{**SIZES, **settings})


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(SIZES["vocab_size"], shape, generator=torch.Generator().manual_seed(seed))


def reference_name(name: str) -> str:
    """Our name of a parameter, as transformers has it."""
    for ours, theirs in (
        ("token_embedding", "transformer.wte"), ("position_embedding", "transformer.wpe"), ("blocks.", "transformer.h."), ("final_norm", "transformer.ln_f"),
        ("head", "lm_head"), ("attention_norm", "ln_1"), ("mlp_norm", "ln_2"), ("query_key_value", "c_attn"), ("attention.projection", "attn.c_proj"),
        ("attention.", "attn."), ("mlp.expansion", "mlp.c_fc"), ("mlp.projection", "mlp.c_proj"),
    ):  # fmt: skip
        name = name.replace(ours, theirs)
    return name


def as_ours(name: str, theirs: Tensor) -> Tensor:
    """Transformers stores the weights of GPT-2's blocks transposed."""
    return theirs.T if theirs.ndim == 2 and ".h." in reference_name(name) else theirs


def twins(tied: bool) -> tuple[GPT2ish, Any]:
    """Our model and transformers' with the same random weights, none of them left at a fresh model's 0 or 1."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=SIZES["vocab_size"], n_positions=SIZES["context_len"], n_embd=SIZES["embed_dim"], n_layer=SIZES["num_blocks"], n_head=SIZES["num_heads"],
        tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    reference = transformers.GPT2LMHeadModel(config)
    ours = small(dropout=0.0, tied_head=tied)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        theirs = dict(reference.named_parameters(remove_duplicate=False))
        for name, parameter in ours.named_parameters(remove_duplicate=False):
            parameter.copy_(as_ours(name, theirs[reference_name(name)]))
    return ours, reference


@pytest.mark.parametrize("tied", [True, False])
def test_agrees_with_transformers(tied: bool) -> None:
    ours, reference = twins(tied)
    batch = tokens(3, 24)
    logits = ours.head(ours(batch))
    expected = reference(batch, labels=batch)
    assert (logits - expected.logits).abs().max() < 1e-4

    functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten()).backward()
    expected.loss.backward()
    theirs = dict(reference.named_parameters(remove_duplicate=False))
    compared = 0
    for name, parameter in ours.named_parameters(remove_duplicate=False):
        torch.testing.assert_close(parameter.grad, as_ours(name, theirs[reference_name(name)].grad), rtol=1e-4, atol=1e-6)
        compared += 1
    assert compared == len(theirs)


def test_padding_on_the_right_changes_nothing() -> None:
    model = small().eval()
    piece = tokens(2, 9)
    for filler in (0, 7):
        padded = torch.cat([piece, torch.full((2, 5), filler)], dim=1)
        torch.testing.assert_close(model(padded)[:, :9], model(piece), rtol=1e-5, atol=1e-6)


def test_tied_head_is_the_embedding() -> None:
    tied, untied = small(), small(tied_head=False)
    assert tied.head.weight is tied.token_embedding.weight
    assert untied.head.weight is not untied.token_embedding.weight
    assert tied.head.bias is None
    assert not any(parameter.is_meta for parameter in tied.parameters())
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == 101 * 32


def test_fresh_weights_are_gpt2s() -> None:
    model = small(embed_dim=128, tied_head=False, vocab_size=1000, num_blocks=8)
    seen = set()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            expected = 0.02 / math.sqrt(2 * 8) if "projection" in name else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name
            assert abs(parameter.mean().item()) < expected / 20, name
            seen.add(expected)
    assert len(seen) == 2
    # a model that knows nothing yet gives every token about the same chance
    batch = torch.randint(1000, (4, 24))
    assert functional.cross_entropy(model.head(model(batch)).flatten(0, 1), batch.flatten()).item() == pytest.approx(math.log(1000), abs=0.3)


def test_same_seed_same_bits() -> None:
    first, second = small(3), small(3)
    results = []
    for model in (first, second):
        torch.manual_seed(11)
        hidden = model(tokens(2, 24))
        hidden.square().sum().backward()
        results.append([hidden, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)])
    assert len(results[0]) > 20
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_dropout_acts_in_training_only() -> None:
    model, batch = small(dropout=0.5), tokens(2, 24)
    assert not torch.equal(model(batch), model(batch))
    assert torch.equal(model.eval()(batch), model(batch))
    assert torch.equal(small(dropout=0.0)(batch), small(dropout=0.0)(batch))


@pytest.mark.parametrize("part", ["embedding_dropout", "attention", "attention.residual_dropout", "mlp.residual_dropout"])
def test_each_place_drops(part: str) -> None:
    model, batch = small(dropout=0.5), tokens(2, 24)
    for name, module in model.named_modules():  # leave dropout on in one place only
        if hasattr(module, "p") and not name.endswith(part):
            module.p = 0.0
        if hasattr(module, "num_heads") and part != "attention":
            module.dropout = 0.0
    assert not torch.equal(model(batch), model(batch))


def test_compiles_into_one_graph() -> None:
    model = small(dropout=0.0)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for length in (24, 9, 17):
        torch.testing.assert_close(compiled(tokens(2, length)), model(tokens(2, length)))


def test_refuses_heads_that_do_not_fit() -> None:
    with pytest.raises(UserError, match=r"--embed-dim 100.*--num-heads 12.*96 or 108.*10 or 20"):
        small(embed_dim=100, num_heads=12)
    with pytest.raises(UserError, match=r"choose --embed-dim 12, or --num-heads 7\."):
        small(embed_dim=7, num_heads=12)


def test_refuses_impossible_sizes() -> None:
    with pytest.raises(UserError) as caught:
        small(num_heads=0, num_blocks=-1)
    assert len(caught.value.faults) == 2
    assert "--num-heads 0" in str(caught.value)
    assert "--num-blocks -1" in str(caught.value)
    with pytest.raises(UserError, match=r"dropout 1\.5"):
        small(dropout=1.5)


def test_refuses_too_long_a_sequence() -> None:
    model = small()
    model(tokens(1, 24))
    with pytest.raises(ValueError, match=r"25 tokens.*24"):
        model(tokens(1, 25))


@given(st.lists(st.integers(1, 24), min_size=1, max_size=7))
@settings(max_examples=25, deadline=None)
def test_joined_pieces_are_read_as_if_each_were_alone(lengths):
    model = small(dropout=0.0).double()
    pieces = [tokens(length, seed=number) for number, length in enumerate(lengths)]
    joined = model(torch.cat(pieces)[None], lengths=tuple(lengths))
    assert joined.shape == (1, sum(lengths), 32)
    torch.testing.assert_close(joined[0], torch.cat([model(piece[None])[0] for piece in pieces]))


def test_a_joined_piece_longer_than_the_context_is_refused():
    model = small()
    model(tokens(1, 48), lengths=(24, 24))
    with pytest.raises(ValueError, match="25 tokens is longer"):
        model(tokens(1, 48), lengths=(25, 23))
