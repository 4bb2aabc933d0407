"""Texts side by side that begin and end at any step: each is what it would be alone."""
import copy

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from lmplay.exp import build_model, get_experiment
from lmplay.writing.continuous import ContinuousBatch
from lmplay.writing.drafts import make_draft
from lmplay.writing.generation import generate
from lmplay.writing.sampling import Sampling

VOCAB, CONTEXT = 23, 24


class Plain(nn.Module):
    """The same model without a cache."""

    def __init__(self, model):
        super().__init__()
        self.model, self.head = model, model.head

    def forward(self, tokens_BT):
        return self.model(tokens_BT)


@pytest.fixture(scope="module", params=["gpt2ish", "llamaish", "without a cache"])
def model(request):
    torch.manual_seed(0)
    name = "gpt2ish" if request.param == "without a cache" else request.param
    built = build_model(get_experiment(name), vocab_size=VOCAB, context_len=CONTEXT, num_blocks=2, embed_dim=16, num_heads=2, dropout=0.1, tied_head=False)
    with torch.no_grad():
        built.head.weight.mul_(30)  # far from uniform
    return Plain(built) if request.param == "without a cache" else built


@pytest.fixture(scope="module", params=["alone", "with a good draft", "with a bad draft"])
def draft(request, model):
    if request.param == "alone" or isinstance(model, Plain):
        return None
    if request.param == "with a good draft":
        return make_draft(model, 1 << 30, 1)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.3 * parameter.std().item())
    return other


def alone(model, prompt, sampling, seed, most):
    return [step[0] for step in generate(model, [prompt], VOCAB - 1, CONTEXT, sampling, [seed], most) if step[0] is not None]


texts = st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=CONTEXT + 8), st.integers(0, 12), st.integers(1, 40),
                  st.sampled_from([Sampling(), Sampling(temperature=0), Sampling(repetition_penalty=1.3, top_k=5)]), st.integers(0, 40))


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(texts, min_size=1, max_size=6))
@example(texts=[([21], 0, 24, Sampling(repetition_penalty=1.3, top_k=5), 24)])  # ends with the token that no longer fits in the context
def test_each_text_is_what_it_would_be_alone(model, draft, texts):
    """A text is (prompt, the step at which it begins, most tokens, sampling, the step at which its reader goes away)."""
    batch = ContinuousBatch(model, {VOCAB - 1}, CONTEXT, draft=draft)
    written, over = {number: [] for number in range(len(texts))}, set()
    for now in range(60):
        for number, (prompt, begin, _, sampling, _) in enumerate(texts):
            if begin == now:
                batch.add(number, prompt, sampling, seed=number)
        for number, tokens in batch.step().items():
            assert number not in over
            assert len(tokens) == 1 or draft is not None
            written[number] += [token for token in tokens if token is not None]
            if None in tokens:
                over.add(number)
        for number, (_, begin, most, _, leaves) in enumerate(texts):
            if now >= begin and (len(written[number]) >= most or now - begin == leaves):
                batch.remove(number)
                over.add(number)
    assert len(batch) == 0
    for number, (prompt, _, most, sampling, leaves) in enumerate(texts):
        expected = alone(model, prompt, sampling, number, most)
        # with a draft a text may be further at each step
        assert written[number][:most] == expected[:len(written[number])]
        assert len(written[number]) >= min(len(expected), leaves + 1)


def test_no_text_is_no_step(model):
    batch = ContinuousBatch(model, {VOCAB - 1}, CONTEXT)
    batch.remove("nobody")
    assert batch.step() == {}
    batch.add("a", [1], Sampling(), 0)
    batch.remove("a")
    assert batch.step() == {}
