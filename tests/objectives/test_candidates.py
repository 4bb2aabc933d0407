"""A softmax over some tokens of the vocabulary: its value and gradient against plain float64, its expectation against the whole softmax, exact resume."""
from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from lmplay.data.collate import MiniBatch
from lmplay.errors import UserError
from lmplay.modules.heads import LinearHead
from lmplay.objectives.candidates import choose_candidates
from lmplay.objectives.next_token import NextToken

VOCABULARY, WIDTH = 200, 8


def make(candidates: int, n: int = 30, seed: int = 0, **settings: float) -> tuple[LinearHead, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    head = LinearHead(WIDTH, VOCABULARY, candidates=candidates, **settings).double()
    return head, torch.randn(n, WIDTH, dtype=torch.float64, requires_grad=True), torch.randint(0, VOCABULARY, (n,))


def judged(head: LinearHead, hidden: torch.Tensor, targets: torch.Tensor, chunk: int = 1024):
    n = len(targets)
    return NextToken(chunk).loss(lambda _: hidden[None], MiniBatch(torch.zeros(1, n, dtype=torch.int64), torch.arange(n), targets, [], 0), head)


@given(candidates=st.integers(2, 199), n=st.integers(1, 40), chunk=st.integers(1, 50), soft_cap=st.sampled_from([0.0, 3.0]),
       z_loss=st.sampled_from([0.0, 0.1]), seed=st.integers(0, 99))
def test_loss_and_gradients_are_those_of_the_weighted_sum(candidates, n, chunk, soft_cap, z_loss, seed):
    head, hidden, targets = make(candidates, n, seed, soft_cap=soft_cap, z_loss=z_loss)
    torch.manual_seed(seed)
    terms, places, ids = choose_candidates(head.linear_terms(), targets)
    assert torch.equal(ids[places], targets)
    counted = ids[terms.log_weights.isfinite()]
    assert len(counted.unique()) == len(counted)
    torch.manual_seed(seed)
    result = judged(head, hidden, targets, chunk)
    result.loss_sum.backward()
    mine = hidden.grad.clone(), head.weight.grad.clone()
    hidden.grad = head.weight.grad = None
    # each position: its own target once, each other candidate as often as it stands for tokens
    logits = head(hidden)
    own = functional.one_hot(targets, VOCABULARY).bool()
    weights = torch.zeros(VOCABULARY, dtype=torch.float64).index_add(0, ids, terms.log_weights.double().exp())
    log_sum = ((logits.exp() * weights).masked_fill(own, 0).sum(1) + logits[own].exp()).log()
    expected = (log_sum - logits[own]).sum()
    (expected + z_loss * log_sum.square().sum()).backward()
    assert result.loss_sum.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(mine[0], hidden.grad, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(mine[1], head.weight.grad, rtol=1e-5, atol=1e-7)


def test_the_sum_over_the_vocabulary_is_estimated_without_bias():
    head, hidden, targets = make(40)
    logits = head(hidden).detach()
    whole, sums = logits.exp().sum(1), []
    for seed in range(4000):
        torch.manual_seed(seed)
        losses = judged(head, hidden, targets).losses_N
        sums.append((losses + logits.gather(1, targets[:, None]).squeeze(1)).exp())
    found = torch.stack(sums)
    error = found.std(0) / len(sums) ** 0.5
    assert ((found.mean(0) - whole).abs() < 5 * error + 1e-9).all()


def test_validation_and_small_vocabularies_have_the_whole_softmax():
    head, hidden, targets = make(40)
    expected = functional.cross_entropy(head(hidden), targets, reduction="none")
    with torch.no_grad():
        torch.testing.assert_close(judged(head, hidden, targets).losses_N, expected, check_dtype=False)
    head, hidden, targets = make(VOCABULARY)
    torch.testing.assert_close(judged(head, hidden, targets).losses_N, functional.cross_entropy(head(hidden), targets, reduction="none"), check_dtype=False)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(UserError, match="sampled_tokens -1: must be 0"):
        LinearHead(WIDTH, VOCABULARY, candidates=-1)
