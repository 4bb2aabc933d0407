"""The losses of preference pairs against plain float64, for any mini-batches, and against TRL on the same tensors."""
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import learned, make_model
from pairs import pieces_of_pairs

from lmplay.data.collate import collate
from lmplay.objectives import load_objective

PAIRS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=5)


def log_prob(model, piece):
    """The log-probability of the answer of one piece, and its tokens."""
    tokens = torch.tensor(piece.tokens, dtype=torch.int64)
    log_probs = model.head(model(tokens[None, :-1]))[0, piece.n_prompt - 1:].log_softmax(-1)
    return log_probs.gather(1, tokens[piece.n_prompt:, None]).sum(), len(tokens) - piece.n_prompt


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def expected_of(name, given, chosen, rejected, n_chosen, n_rejected, ref_chosen, ref_rejected):
    """The loss of a pair, as the paper has it, and the rewards."""
    if name == "dpo":
        one, other = given["beta"] * (chosen - ref_chosen), given["beta"] * (rejected - ref_rejected)
        kind, smoothing = given.get("loss", "sigmoid"), given.get("label_smoothing", 0.0)
        if kind == "sigmoid":
            loss = -(1 - smoothing) * torch.log(sigmoid(one - other)) - smoothing * torch.log(sigmoid(other - one))
        elif kind == "hinge":
            loss = torch.clamp(1 - (one - other), min=0)
        else:
            loss = ((chosen - ref_chosen) / n_chosen - (rejected - ref_rejected) / n_rejected - 1 / (2 * given["beta"])) ** 2
        return loss, one, other
    one, other = given["beta"] * chosen / n_chosen, given["beta"] * rejected / n_rejected
    if name == "simpo":
        smoothing, margin = given.get("label_smoothing", 0.0), one - other - given["gamma"]
        return -(1 - smoothing) * torch.log(sigmoid(margin)) - smoothing * torch.log(sigmoid(-margin)), one, other
    odds = [torch.exp(mean) / (1 - torch.exp(mean)) for mean in (chosen / n_chosen, rejected / n_rejected)]
    return -chosen / n_chosen - given["beta"] * torch.log(sigmoid(torch.log(odds[0] / odds[1]))), one, other


KINDS = [("dpo", {"beta": 0.3}), ("dpo", {"beta": 0.05, "label_smoothing": 0.2}), ("dpo", {"beta": 0.4, "loss": "ipo"}),
         ("dpo", {"beta": 0.2, "loss": "hinge"}), ("simpo", {"beta": 2.0, "gamma": 0.5}), ("simpo", {"beta": 1.5, "gamma": 0.0, "label_smoothing": 0.1}),
         ("orpo", {"beta": 0.25})]


@pytest.mark.parametrize(("name", "given_settings"), KINDS)
@settings(deadline=None, max_examples=8)
@given(pairs=PAIRS, size=st.integers(1, 7), packed=st.booleans(), budget=st.sampled_from([0, 1, 90]))
def test_losses_gradients_and_figures_are_those_of_the_papers_for_any_mini_batches(name, given_settings, pairs, size, packed, budget):
    model, before, objective = make_model(), make_model(1), load_objective(name, given_settings)
    pieces = pieces_of_pairs(pairs)
    with torch.no_grad():
        known = {id(piece): float(log_prob(before, piece)[0]) for piece in pieces}
    judged = []
    for chosen, rejected in zip(pieces[::2], pieces[1::2], strict=True):
        (one, n_one), (other, n_other) = log_prob(model, chosen), log_prob(model, rejected)
        judged.append(expected_of(name, given_settings, one, other, n_one, n_other, known[id(chosen)], known[id(rejected)]))
    loss = torch.stack([one[0] for one in judged]).mean()
    loss.backward()
    mini_batches = collate(pieces, size, token_budget=budget, packed=packed, reference=lambda piece: known[id(piece)])
    figures = learned(objective, model, mini_batches, loss, atol=1e-11)
    assert figures["count"] == len(pairs)
    assert figures["pairs"] == len(pairs)
    assert figures["chosen_sum"] == pytest.approx(sum(float(one[1].detach()) for one in judged), rel=1e-9)
    assert figures["rejected_sum"] == pytest.approx(sum(float(one[2].detach()) for one in judged), rel=1e-9)
    assert figures["margin_sum"] == pytest.approx(figures["chosen_sum"] - figures["rejected_sum"], abs=1e-8)
    assert figures["preferred"] == sum(bool(one[1] > one[2]) for one in judged)


@settings(deadline=None)
@given(pairs=PAIRS, size=st.integers(1, 9), budget=st.integers(0, 200), packed=st.booleans(), texts=st.integers(0, 3))
def test_a_pair_is_never_divided_and_nothing_is_lost(pairs, size, budget, packed, texts):
    pieces = pieces_of_pairs(pairs)
    pieces = [*pieces, *(replace(piece, preferred=None) for piece in pieces[:texts])]
    mini_batches = collate(pieces, size, token_budget=budget, packed=packed)
    numbers = [number for mini_batch in mini_batches for number, _ in mini_batch.rows]
    assert sorted(numbers) == list(range(len(pieces)))
    for mini_batch in mini_batches:
        rows = [number for number, _ in mini_batch.rows]
        assert all(rows[place + 1] == number + 1 for place, number in enumerate(rows) if pieces[number].preferred)
        assert len(rows) <= max(size, 2) or budget
        assert not budget or packed or mini_batch.n_slots <= budget or len(rows) <= 2


def test_without_a_known_reference_the_model_is_its_own():
    model, pieces = make_model(), pieces_of_pairs([(5, 9), (3, 2)])
    [mini_batch] = collate(pieces, 4)
    result = load_objective("dpo").loss(model, mini_batch, model.head)
    assert float(result.loss_sum.detach()) == pytest.approx(2 * math.log(2))
    result.loss_sum.backward()
    assert any(bool(parameter.grad.abs().sum()) for parameter in model.parameters())


def test_orpo_is_finite_where_the_model_is_certain():
    from lmplay.objectives.preference import Answers

    log_probs = torch.tensor([[-1e-9, -60.0], [-200.0, 0.0], [-0.7, -0.69]], requires_grad=True)
    losses, _ = load_objective("orpo").judge(Answers(log_probs, None, torch.ones(3, 2)))
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(log_probs.grad).all()
