"""The loss of answers that the model has written against plain float64, for any mini-batches."""
import math
import statistics

import pytest
import torch
from answers import pieces_of_answers
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import learned, make_model
from texts import BYTES

from lmplay.data.collate import collate
from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.objectives import load_objective

ANSWERS = st.lists(st.tuples(st.integers(0, 12), st.floats(-2, 2)), min_size=1, max_size=5)


def log_probs(model, piece, temperature=1.0):
    tokens = torch.tensor(piece.tokens, dtype=torch.int64)
    found = (model.head(model(tokens[None, :-1]))[0, piece.n_prompt - 1:] / temperature).log_softmax(-1)
    return found.gather(1, tokens[piece.n_prompt:, None]).squeeze(1)


def expected_of(model, pieces, kind, clip, clip_high, kl, temperature):
    """The loss token by token, as the papers have it, and what is clipped."""
    sums, tokens, clipped = [], 0, 0
    for piece in pieces:
        total = 0.0
        for now, old, ref in zip(log_probs(model, piece, temperature), piece.judged.before, piece.judged.reference, strict=True):
            ratio, advantage = torch.exp(now - old), piece.judged.advantage
            value = float(ratio.detach())
            held = min(max(value, 1 - clip), 1 + clip_high)
            kept = ratio if value * advantage <= held * advantage else torch.tensor(held, dtype=torch.float64)
            clipped += (value < 1 - clip and advantage < 0) or (value > 1 + clip_high and advantage > 0)
            total = total - kept * advantage + kl * ratio * (torch.exp(ref - now) - (ref - now) - 1)
        n = len(piece.judged.before)
        tokens += n
        sums.append(total / {"grpo": n, "dr_grpo": piece.judged.limit, "dapo": 1}[kind])
    return torch.stack(sums).sum() / (tokens if kind == "dapo" else len(pieces)), clipped


@pytest.mark.parametrize(("kind", "clip_high", "kl", "temperature"), [("grpo", None, 0.0, 1.0), ("grpo", 0.5, 0.3, 0.7), ("dr_grpo", None, 0.1, 1.0),
                                                                     ("dapo", 0.28, 0.0, 1.5), ("dapo", None, 0.2, 1.0)])
@settings(deadline=None, max_examples=5)
@given(answers=ANSWERS, size=st.integers(1, 7), packed=st.booleans(), budget=st.sampled_from([0, 1, 90]), shift=st.floats(0, 0.5))
def test_losses_gradients_and_figures_are_those_of_the_papers_for_any_mini_batches(kind, clip_high, kl, temperature, answers, size, packed, budget, shift):
    model, before = make_model(), make_model(1)
    lengths, advantages = zip(*answers, strict=True)
    plain = pieces_of_answers(lengths, advantages)
    with torch.no_grad():  # the old ratios are near 1 on both sides, the reference is another model
        olds = [(log_probs(model, piece, temperature) + shift * torch.linspace(-1, 1, piece.n_truth, dtype=torch.float64)).numpy() for piece in plain]
        refs = [log_probs(before, piece, temperature).numpy() for piece in plain]
    pieces = pieces_of_answers(lengths, advantages, before=olds, reference=refs)
    loss, clipped = expected_of(model, pieces, kind, 0.2, clip_high or 0.2, kl, temperature)
    loss.backward()
    objective = load_objective("grpo", {"loss": kind, "clip_high": clip_high, "kl": kl, "temperature": temperature})
    figures = learned(objective, model, collate(pieces, size, token_budget=budget, packed=packed), loss, atol=1e-10)
    assert figures["answers"] == len(answers)
    assert figures["answer_tokens_sum"] == sum(lengths) + len(lengths)
    assert figures["reward_sum"] == pytest.approx(sum(advantages) + len(answers), abs=1e-5)
    assert figures["clipped_sum"] == clipped


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=9))
def test_advantages_are_what_an_answer_is_better_by(rewards):
    scaled, deviation = load_objective("grpo").advantages(rewards)
    plain, _ = load_objective("grpo", {"loss": "dr_grpo"}).advantages(rewards)
    assert deviation == statistics.stdev(rewards)
    assert sum(plain) == pytest.approx(0, abs=1e-9)
    assert plain == [reward - statistics.fmean(rewards) for reward in rewards]
    assert scaled == pytest.approx([value / (deviation + 1e-4) for value in plain])
    assert load_objective("grpo", {"loss": "dr_grpo", "scale_rewards": True}).advantages(rewards)[0] == scaled


def test_the_first_update_has_the_gradient_of_the_log_probabilities():
    """On answers of the model of that moment the ratio is 1, and nothing is clipped."""
    model, pieces = make_model(), pieces_of_answers([3, 7], [1.5, -0.5])
    expected = -sum(piece.judged.advantage * log_probs(model, piece).mean() for piece in pieces) / 2
    wanted = torch.autograd.grad(expected, list(model.parameters()))
    [mini_batch] = collate(pieces, 4)
    result = load_objective("grpo").loss(model, mini_batch, model.head)
    (result.loss_sum / 2).backward()
    assert float(result.figures["clipped_sum"]) == 0
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-7, atol=1e-11)


@settings(deadline=None)
@given(st.text("abc \n", min_size=1, max_size=90), st.integers(1, 20))
def test_an_answer_fits_behind_every_prompt(prompt, answer_tokens):
    cutter, objective = Cutter(BYTES, 40), load_objective("grpo", {"answer_tokens": answer_tokens})
    for piece in objective.prepare(Sample(prompt, "the answer " * 9), cutter):
        assert piece.n_prompt + answer_tokens <= 40
        assert piece.last
        assert bool(piece.prompt_lost) == (len(prompt) > piece.n_prompt)


def test_a_long_reference_answer_leaves_the_prompt_whole():
    piece, = load_objective("grpo", {"answer_tokens": 20}).prepare(Sample("q" * 102, "a" * 200), Cutter(BYTES, 150))
    assert (piece.n_prompt, piece.prompt_lost) == (102, 0)
    piece, = load_objective("grpo", {"answer_tokens": 60}).prepare(Sample("q" * 102, "a"), Cutter(BYTES, 150))
    assert piece.n_prompt == 75


def test_a_validation_is_judged_by_rewards():
    from dataclasses import replace

    pieces = [replace(piece, judged=replace(piece.judged, advantage=None, deviation=None)) for piece in pieces_of_answers([3, 9, 1], [1.0, 0.0, -1.0])]
    objective, mini_batches = load_objective("grpo", {"loss": "dapo"}), collate(pieces, 2)
    results = [objective.loss(None, mini_batch, None) for mini_batch in mini_batches]
    assert sum(objective.count(mini_batch) for mini_batch in mini_batches) == 3
    assert math.isclose(sum(float(result.loss_sum) for result in results), -3.0)
    assert math.isclose(sum(float(result.losses_N.sum()) for result in results), -3.0, rel_tol=1e-6)
