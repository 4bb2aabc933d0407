"""Heads that predict later tokens: their loss against a loop over pieces, in the gradient alone, and whatever the mini-batches are."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from lmplay.data.collate import collate
from lmplay.exp import build_model, get_experiment
from lmplay.objectives.next_token import NextToken

VOCAB, WEIGHT = 30, 0.7


def pieces_of(lengths, gaps):
    """Pieces with a prompt of two tokens and a truth, of which with `gaps` parts are not learned."""
    generator = np.random.default_rng(len(lengths))
    learned = [generator.random(length) < 0.7 if gaps else None for length in lengths]
    return [SimpleNamespace(tokens=generator.integers(0, VOCAB, length + 2), n_prompt=2, learned=which, weight=None, preferred=None, judged=None)
            for length, which in zip(lengths, learned, strict=True)]


def make_model(ahead=2, **more):
    torch.manual_seed(0)
    settings = {"num_blocks": 1, "embed_dim": 16, "num_heads": 2, "multi_token": ahead, "multi_token_weight": WEIGHT, **more}
    model = build_model(get_experiment("modern"), vocab_size=VOCAB, context_len=16, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    return model.double()


def gradients(model):
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return found


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), gaps=st.booleans(), packed=st.booleans(), size=st.integers(1, 5),
       soft_cap=st.sampled_from([0.0, 5.0]))
def test_it_is_the_loss_of_a_loop_over_pieces_for_any_mini_batches(lengths, gaps, packed, size, soft_cap):
    model, pieces = make_model(soft_cap=soft_cap), pieces_of(lengths, gaps)
    plain = 0
    for mini_batch in collate(pieces, size, packed=packed):
        result = NextToken(chunk=3).loss(model, mini_batch, model.head)
        result.loss_sum.backward()
        plain += result.loss_sum.item()
    found = gradients(model)
    expected, auxiliary = torch.zeros(()), torch.zeros(())
    for piece in pieces:
        tokens = torch.from_numpy(piece.tokens)
        hidden = model(tokens[None, :-1])[0]
        truth = [place for place in range(2, len(tokens)) if piece.learned is None or piece.learned[place - 2]]
        for place in truth:
            expected = expected + functional.cross_entropy(model.head(hidden[place - 1]), tokens[place])
            for distance in (1, 2):
                if all(place + step in truth for step in range(1, distance + 1)):
                    later = model.head(model.head.ahead[distance - 1](hidden[place - 1]))
                    auxiliary = auxiliary + WEIGHT * functional.cross_entropy(later, tokens[place + distance])
    assert plain == pytest.approx(expected.item(), abs=1e-9)
    if truth:
        (expected + auxiliary).backward()
        loop = gradients(model)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, loop.get(name, torch.zeros_like(gradient)), rtol=1e-7, atol=1e-9, msg=name)


def test_validation_and_generation_do_without_it():
    model, plain = make_model(), make_model(ahead=0)
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "ahead" not in name})
    [mini_batch] = collate(pieces_of([7, 5], False), 2)
    for module in model.head.ahead:
        module.forward = None
    with torch.no_grad():
        assert torch.equal(NextToken().loss(model, mini_batch, model.head).losses_N, NextToken().loss(plain, mini_batch, plain.head).losses_N)
        assert torch.equal(model.head(model(mini_batch.tokens_BT)), plain.head(plain(mini_batch.tokens_BT)))


def test_the_heads_for_later_tokens_learn():
    model = make_model()
    [mini_batch] = collate(pieces_of([9, 9], False), 2)
    optimizer, losses = torch.optim.Adam(model.head.ahead.parameters(), lr=0.01), []
    for _ in range(30):
        hidden = model(mini_batch.tokens_BT).flatten(0, 1)[mini_batch.positions_N[:8]]
        with torch.no_grad():
            losses.append(float(functional.cross_entropy(model.head(model.head.ahead[0](hidden)), mini_batch.targets_N[1:9])))
        model.zero_grad()
        NextToken().loss(model, mini_batch, model.head).loss_sum.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.2
