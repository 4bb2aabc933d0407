"""A draft changes how fast a text is written, and nothing else."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lmplay.exp import build_model, get_experiment
from lmplay.writing import drafts
from lmplay.writing.continuous import ContinuousBatch
from lmplay.writing.drafts import MOST_TEXTS, Pace, make_draft
from lmplay.writing.generation import generate
from lmplay.writing.packed import pack
from lmplay.writing.sampling import Sampling

VOCAB, CONTEXT = 61, 24
SIZES = {"vocab_size": VOCAB, "context_len": CONTEXT, "num_blocks": 2, "embed_dim": 32, "num_heads": 4}
EXPERIMENTS = {
    "gpt2ish": {}, "llamaish": {"num_kv_heads": 2, "query_key_value_bias": True},
    "modern": {"soft_cap": 4.0, "head_std": 1.0, "zero_projections": False, "value_residual": True, "tied_head": True}}


def build(name="llamaish"):
    torch.manual_seed(0)
    return build_model(get_experiment(name), **SIZES, **EXPERIMENTS[name]).eval()


@pytest.fixture(scope="module", params=EXPERIMENTS)
def model(request):
    built = build(request.param)
    with torch.no_grad():
        built.get_parameter("head.weight").mul_(30 if request.param != "modern" else 3)  # far from uniform
    return built


def write(model, prompts, sampling, most, **options):
    steps = list(generate(model, prompts, VOCAB - 1, CONTEXT, sampling, list(range(len(prompts))), most, **options))
    return [[step[i] for step in steps if step[i] is not None] for i in range(len(prompts))]


samplings = st.sampled_from([Sampling(temperature=0), Sampling(), Sampling(repetition_penalty=1.3, top_k=5), Sampling(temperature=0.5, top_p=0.9)])
prompt_lists = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=CONTEXT + 8), min_size=1, max_size=MOST_TEXTS + 1)


@settings(max_examples=15, deadline=None)
@given(prompts=prompt_lists, sampling=samplings, most=st.integers(1, 60))
def test_texts_are_those_without(model, prompts, sampling, most):
    """Beyond the context, with texts that end at different steps, and with a copy whose products are others for several rows."""
    draft = make_draft(model, 1 << 30, 1)
    expected = write(model, prompts, sampling, most, use_cache=False)
    assert write(model, prompts, sampling, most) == expected
    assert write(model, prompts, sampling, most, draft=draft) == expected
    assert write(pack(model, 4, 1 << 30), prompts, sampling, most, draft=draft) == expected


class Ends(nn.Module):
    """Guesses nothing but the end token."""

    def __init__(self, model):
        super().__init__()
        self.model, self.head = model, nn.Linear(32, VOCAB)
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.bias.copy_(torch.arange(VOCAB) == VOCAB - 1)

    def forward(self, tokens_BT, cache):
        return self.model(tokens_BT, cache=cache)


def test_guesses_that_are_wrong_change_nothing_and_become_few(model):
    calls, draft = [], Ends(model)
    draft.register_forward_hook(lambda *_: calls.append(1))
    prompts, sampling = [[3, 1, 4, 1], [5]], Sampling(temperature=0)
    expected = write(model, prompts, sampling, 120)
    assert write(model, prompts, sampling, 120, draft=draft) == expected
    assert 0 < len(calls) < 40


def test_a_good_draft_saves_steps(model):
    batch = ContinuousBatch(model, (), CONTEXT, draft=model)  # it guesses what it will write itself
    batch.add("a", [3, 1, 4], Sampling(temperature=0), 0)
    counts = [len(batch.step()["a"]) for _ in range(6)]
    assert counts[0] == 1  # the prompt
    assert min(counts[1:]) > 1
    batch.add("b", [3, 1, 4], Sampling(), 0)
    batch.step()
    assert [len(tokens) for tokens in batch.step().values()] == [1, 1]  # no guesses beside a text whose tokens are drawn


def test_the_end_token_ends_a_text_within_guesses(model):
    """What comes behind it was read in vain."""
    text = [token for step in generate(model, [[3, 1, 4]], (), CONTEXT, Sampling(temperature=0), [0], 20) for token in step]
    end = text[-1]
    batch = ContinuousBatch(model, {end}, CONTEXT, draft=model)
    batch.add("a", [3, 1, 4], Sampling(temperature=0), 0)
    tokens = []
    while len(batch):
        tokens += batch.step()["a"]
    assert tokens == [*text[:text.index(end)], None]


@torch.inference_mode()
def test_rough_weights_are_near_and_all_else_is_shared(model):
    draft = make_draft(model, 1 << 30, 1)
    assert [id(weight) for weight in draft.parameters()] == [id(weight) for weight in model.parameters()]
    tokens_BT = torch.randint(0, VOCAB, (3, 7))
    exact, rough = model.head(model(tokens_BT)), draft.head(draft(tokens_BT))
    assert 0 < (exact - rough).norm() < 0.05 * exact.norm()


def test_there_is_none_where_nothing_is_gained():
    assert make_draft(build(), 1000, 1) is None  # bytes
    assert make_draft(build().bfloat16(), 1 << 30, 1) is None
    assert make_draft(build(), 1 << 30) is None  # a small model


@given(share=st.floats(0, 1), texts=st.integers(1, 8), room=st.integers(0, 20))
def test_the_number_of_guesses_fits_and_follows_those_that_are_right(share, texts, room):
    pace = Pace()
    for _ in range(30):
        count = pace.guesses(texts, room)
        assert 0 <= count <= room
        assert count == 0 or texts <= MOST_TEXTS
        pace.learn(round(count * share), int(count > 0 and share < 1))
    if texts > MOST_TEXTS or not room:
        assert count == 0


def test_guesses_are_tried_again_after_a_rest():
    pace = Pace()
    counts = []
    for _ in range(300):
        counts.append(pace.guesses(1, 20))
        pace.learn(0, int(counts[-1] > 0))
    assert counts.count(0) > 200
    assert any(counts[100:])
    pace.learn(100, 0)
    assert max(pace.guesses(1, 20) for _ in range(drafts._REST + 2)) > 1
