"""Distillation against plain float64 and torch's own divergence, for any mini-batches."""
import pytest
import torch
from answers import pieces_of_answers
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import learned, make_model
from texts import BYTES
from torch.nn import functional

from lmplay.data.collate import collate
from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.objectives import load_objective
from lmplay.objectives.distill import ask

LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=5)


def distill(**settings):
    return load_objective("distill", {"teacher": "big.lmp", **settings})


def logits_of(model, piece):
    """At the positions whose next token is truth (N, V)."""
    tokens = torch.tensor(piece.tokens, dtype=torch.int64)
    return model.head(model(tokens[None, :-1]))[0, piece.n_prompt - 1:]


def truth_of(piece):
    return torch.tensor(piece.tokens[piece.n_prompt:], dtype=torch.int64)


def teacher_of(model, objective):
    """What a teacher says of a piece, as a file would give it, but in float64."""
    def said(piece):
        with torch.no_grad():
            ids, log_probs = ask(logits_of(model, piece), truth_of(piece), objective.teaching)
        return ids.numpy(), log_probs.numpy()

    return said


def expected_of(model, teacher, pieces, top_k, temperature, weight):
    """Cross-entropy and divergence position by position; the value is that of the cross-entropy, the gradient that of both. And the objective's sums."""
    cross_entropies, divergences, agreed, of_teacher = [], [], 0, 0.0
    for piece in pieces:
        for own, other, truth in zip(logits_of(model, piece), logits_of(teacher, piece).detach(), truth_of(piece), strict=True):
            cross_entropies.append(-own.log_softmax(0)[truth])
            mine, theirs = (own / temperature).softmax(0), (other / temperature).softmax(0)
            likeliest = sorted(range(len(theirs)), key=lambda token, theirs=theirs: -float(theirs[token]))[:top_k]
            divergence = sum(theirs[token] * (theirs[token].log() - mine[token].log()) for token in likeliest)
            others = [token for token in range(len(theirs)) if token not in likeliest]
            if others:
                divergence = divergence + theirs[others].sum() * (theirs[others].sum().log() - mine[others].sum().log())
            divergences.append(divergence)
            agreed += int(own.argmax()) == likeliest[0]
            of_teacher -= float(other.log_softmax(0)[truth])
    n = len(cross_entropies)
    cross_entropy, divergence = torch.stack(cross_entropies).sum() / n, torch.stack(divergences).sum() / n
    minimised = (1 - weight) * cross_entropy + weight * temperature ** 2 * divergence
    sums = {"teacher_kl_sum": float(divergence.detach()) * n, "agreed": agreed, "teacher_loss_sum": of_teacher, "taught": n}
    return cross_entropy.detach() + minimised - minimised.detach(), sums


@pytest.mark.parametrize(("top_k", "temperature", "weight"), [(1, 1.0, 0.5), (4, 2.0, 0.3), (256, 0.7, 1.0), (257, 1.0, 0.9), (1000, 3.0, 0.5)])
@settings(deadline=None, max_examples=4)
@given(lengths=LENGTHS, size=st.integers(1, 7), packed=st.booleans(), budget=st.sampled_from([0, 1, 90]), chunk=st.sampled_from([1, 5, 1024]))
def test_loss_gradient_and_figures_are_those_of_a_loop_for_any_mini_batches(top_k, temperature, weight, lengths, size, packed, budget, chunk):
    model, teacher = make_model(0), make_model(1)
    pieces = pieces_of_answers(lengths, [0.0] * len(lengths))
    objective = distill(top_k=top_k, temperature=temperature, weight=weight, chunk=chunk)
    loss, expected = expected_of(model, teacher, pieces, top_k, temperature, weight)
    loss.backward()
    found = learned(objective, model, collate(pieces, size, token_budget=budget, packed=packed, teacher=teacher_of(teacher, objective)), loss, atol=1e-10)
    assert found["count"] == expected["taught"]
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_with_all_tokens_it_is_the_divergence_of_torch(temperature):
    model, teacher, pieces = make_model(0), make_model(1), pieces_of_answers([5, 9], [0.0, 0.0])
    objective = distill(top_k=257, temperature=temperature, weight=1.0)
    own, other = (torch.cat([logits_of(one, piece) for piece in pieces]) / temperature for one in (model, teacher))
    divergence = functional.kl_div(own.log_softmax(1), other.log_softmax(1).detach(), reduction="sum", log_target=True)
    wanted = torch.autograd.grad(divergence * temperature ** 2, list(model.parameters()))
    [mini_batch] = collate(pieces, 2, teacher=teacher_of(teacher, objective))
    result = objective.loss(model, mini_batch, model.head)
    result.loss_sum.backward()
    assert float(result.figures["teacher_kl_sum"]) == pytest.approx(float(divergence.detach()), rel=1e-9)
    assert float(result.loss_sum.detach()) == pytest.approx(float(functional.cross_entropy(own * temperature, mini_batch.targets_N[_order(pieces)],
                                                                                           reduction="sum").detach()), rel=1e-9)
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-7, atol=1e-11)


def _order(pieces):
    """Where the truth tokens of the pieces are in a mini-batch, which has the longest first."""
    lengths = [piece.n_truth for piece in pieces]
    return [*range(lengths[1], sum(lengths)), *range(lengths[1])]


@settings(deadline=None)
@given(st.integers(1, 257), st.floats(0.2, 5))
def test_fewer_tokens_never_make_the_divergence_larger(top_k, temperature):
    model, teacher, pieces = make_model(0), make_model(1), pieces_of_answers([7], [0.0])
    found = []
    for kept in (top_k, 257):
        objective = distill(top_k=kept, temperature=temperature)
        [mini_batch] = collate(pieces, 1, teacher=teacher_of(teacher, objective))
        with torch.no_grad():
            found.append(float(objective.loss(model, mini_batch, model.head).figures["teacher_kl_sum"]))
    assert 0 <= found[0] <= found[1] + 1e-12


def test_a_teacher_that_is_sure_leaves_finite_gradients():
    """Of its other tokens nothing is left in float32."""
    model, piece = make_model(0).float(), Cutter(BYTES, 64).cut(Sample("q", "abc"))[0]
    objective = distill(top_k=2)
    logits = torch.full((4, 257), -1e4)
    logits[:, 5] = 1e4
    ids, log_probs = ask(logits, truth_of(piece), objective.teaching)
    assert log_probs[0].tolist()[:3] == [0, -2e4, pytest.approx(-2e4, rel=1e-3)]
    [mini_batch] = collate([piece], 1, teacher=lambda _: (ids.numpy(), log_probs.numpy()))
    objective.loss(model, mini_batch, model.head).loss_sum.backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())


def test_without_a_teacher_the_model_is_its_own():
    model, pieces = make_model(0), pieces_of_answers([3, 5], [0.0, 0.0])
    objective, plain = distill(weight=0.5), load_objective("next_token")
    [mini_batch] = collate(pieces, 2)
    result = objective.loss(model, mini_batch, model.head)
    assert float(result.figures["teacher_kl_sum"]) == pytest.approx(0, abs=1e-9)
    assert float(result.figures["agreed"]) == float(result.figures["taught"])
    assert float(result.loss_sum.detach()) == pytest.approx(float(plain.loss(model, mini_batch, model.head).loss_sum.detach()), rel=1e-12)
