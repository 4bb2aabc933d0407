"""Writing texts: the cache changes nothing but the time, tokens are chosen as asked, and the door `lmp_generator`."""
import io
import json

import pytest
import torch
from helpers import TINY, sentences, trainer, write_plan, write_rows
from helpers import generate as run
from hypothesis import given, settings
from hypothesis import strategies as st

from lmplay.exp import build_model, get_experiment
from lmplay.writing.generation import generate
from lmplay.writing.sampling import Sampling, choose

VOCAB, CONTEXT = 23, 24


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    built = build_model(get_experiment("gpt2ish"), vocab_size=VOCAB, context_len=CONTEXT, num_blocks=2, embed_dim=16, num_heads=2, dropout=0.1, tied_head=False)
    with torch.no_grad():
        built.head.weight.mul_(30)  # far from uniform
    return built


def write(model, prompts, sampling, seeds=None, most=40, **options):
    steps = list(generate(model, prompts, VOCAB - 1, CONTEXT, sampling, seeds or list(range(len(prompts))), most, **options))
    return [[step[i] for step in steps if step[i] is not None] for i in range(len(prompts))]


prompt_lists = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=CONTEXT + 8), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(prompts=prompt_lists, temperature=st.sampled_from([0.0, 1.0]), penalty=st.sampled_from([1.0, 1.3]))
def test_the_cache_changes_nothing(model, prompts, temperature, penalty):
    sampling = Sampling(temperature=temperature, repetition_penalty=penalty)
    assert write(model, prompts, sampling) == write(model, prompts, sampling, use_cache=False)


@settings(max_examples=15, deadline=None)
@given(prompts=prompt_lists)
def test_a_text_does_not_depend_on_its_neighbours(model, prompts):
    together = write(model, prompts, Sampling())
    alone = [write(model, [prompt], Sampling(), seeds=[seed])[0] for seed, prompt in enumerate(prompts)]
    assert together == alone


@settings(max_examples=60, deadline=None)
@given(vocab=st.integers(2, 700), kept=st.integers(1, 20), seed=st.integers(0, 2**20), draw=st.sampled_from([0.0, 0.5, 1 - 2**-24]) | st.floats(0, 1 - 2**-24))
def test_a_draw_finds_its_token_and_never_one_that_was_removed(vocab, kept, seed, draw):
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed)) * 4
    chosen = choose(logits, [[]] * 3, Sampling(top_k=kept), torch.full((3,), draw, dtype=torch.float64))
    exact = logits.masked_fill(logits < logits.topk(min(kept, vocab)).values[:, -1:], float("-inf")).softmax(1)
    assert (exact.gather(1, chosen[:, None]) > 0).all()
    sums = exact.double().cumsum(1)
    before = (sums - exact).gather(1, chosen[:, None]) / sums[:, -1:]
    after = sums.gather(1, chosen[:, None]) / sums[:, -1:]
    assert ((before - 1e-12 <= draw) & (draw <= after + 1e-12)).all()


@settings(max_examples=60, deadline=None)
@given(temperature=st.sampled_from([5e-324, 1e-300, 1e-40, 1e-9, 1e-4]), seed=st.integers(0, 2**20), draw=st.floats(0, 1 - 2**-24))
def test_a_tiny_temperature_is_greedy(temperature, seed, draw):
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(seed)).mul(4).round()
    logits[:, 7] = 30
    assert choose(logits, [[]] * 3, Sampling(temperature=temperature), torch.full((3,), draw, dtype=torch.float64)).tolist() == [7] * 3


@pytest.mark.parametrize("vocab", [2, 40, 300, 512])
def test_a_model_that_gives_no_numbers_chooses_a_token_of_the_vocabulary(vocab):
    chosen = choose(torch.full((2, vocab), float("nan")), [[]] * 2, Sampling(), torch.tensor([0.0, 0.9]))
    assert all(0 <= token < vocab for token in chosen.tolist())


def test_greedy_is_the_most_probable_token_again_and_again(model):
    model.eval()
    text = [3, 1, 4]
    for token in write(model, [text], Sampling(temperature=0), most=CONTEXT - 3)[0]:
        with torch.no_grad():
            assert token == int(model.head(model(torch.tensor([text]))[0, -1]).argmax())
        text = [*text, token]
    assert len(text) > 3


def test_a_text_ends_at_the_end_token(model):
    with torch.no_grad():
        before = model.head.weight.clone()
        model.head.weight.zero_()
        model.head.weight[VOCAB - 1] = 100 * model(torch.tensor([[5]]))[0, -1]
        assert write(model, [[5]], Sampling(temperature=0)) == [[]]
        model.head.weight.copy_(before)


def test_tokens_come_as_often_as_they_are_probable():
    logits = torch.tensor([[1.0, 2.0, 0.0, -1.0]])
    draws = (torch.arange(20_000) + 0.5) / 20_000
    for temperature in (1.0, 0.5):
        chosen = choose(logits.expand(len(draws), 4), [[]] * len(draws), Sampling(temperature=temperature), draws)
        assert torch.allclose(torch.bincount(chosen, minlength=4) / len(draws), (logits[0] / temperature).softmax(0), atol=2e-4)


probabilities = st.lists(st.integers(1, 1000), min_size=2, max_size=12, unique=True)


@settings(max_examples=100, deadline=None)
@given(weights=probabilities, top_k=st.integers(1, 12), top_p=st.floats(0.01, 1), min_p=st.floats(0, 1))
def test_what_is_kept_is_what_the_definitions_say(weights, top_k, top_p, min_p):
    p = torch.tensor(weights, dtype=torch.float64)
    p /= p.sum()
    order = sorted(range(len(weights)), key=lambda i: -weights[i])

    def possible(sampling):
        draws = torch.linspace(0, 1, 4001)[:-1]
        return set(choose(p.log().float().expand(len(draws), -1), [[]] * len(draws), sampling, draws).tolist())

    likely = {i for i in order if p[i] > 0.002}  # the others may lie between two draws
    assert possible(Sampling(top_k=top_k)) & likely == set(order[:top_k]) & likely
    sums = {i: float(sum(p[j] for j in order[:rank])) for rank, i in enumerate(order)}
    found = possible(Sampling(top_p=top_p))
    assert {i for i in likely if i == order[0] or sums[i] < top_p - 1e-4} <= found <= {i for i in order if i == order[0] or sums[i] < top_p + 1e-4}
    found = possible(Sampling(min_p=min_p))
    assert {i for i in likely if p[i] > (min_p + 1e-4) * p.max() or i == order[0]} <= found
    assert all(p[i] > (min_p - 1e-4) * p.max() for i in found)


def test_a_repeated_token_gets_less_probable():
    logits = torch.tensor([[2.0, 1.9, -1.0], [2.0, 1.9, -1.0]])
    sampling = Sampling(temperature=0, repetition_penalty=1.2)
    assert choose(logits, [[0, 0], [1]], sampling, torch.zeros(2)).tolist() == [1, 0]
    assert choose(-logits, [[2], [0]], Sampling(temperature=0, repetition_penalty=4), torch.zeros(2)).tolist() == [2, 2]
    assert choose(torch.tensor([[-1.0, -1.1]]), [[0]], sampling, torch.zeros(1)).tolist() == [1]  # a negative logit gets more so


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    write_rows(folder / "a.jsonl", [{"title": "Cats", "text": sentences(3)} for _ in range(400)])
    plan = write_plan(folder, {"a": {"dataset": "a.jsonl", "epochs": 2, "lr": 0.01}})
    done = trainer(*TINY, "--dropout", "0", "--training-plan", plan, "--out-dir", folder, "--batch-size", "8", "--validation-interval", "0",
                   "--optimizer-warmup-steps", "2")
    assert done.returncode == 0, done.stderr
    return folder


def test_a_trained_model_writes_what_it_has_learned(capsys, trained):
    code, out, err = run(capsys, "--out-dir", trained, "--title", "Cats", "--greedy", "--max-tokens", 24)
    assert (code, out) == (0, "The cat number 0 sat dow\n")
    assert "gpt2ish_model.lmp" in err


def test_the_same_seed_writes_the_same_text(capsys, trained):
    texts = [run(capsys, "--model", trained / "gpt2ish_model.lmp", "--prompt", "The", "--temperature", 1.5, "--max-tokens", 30, "--seed", seed)[1]
             for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("The")


def test_many_prompts_and_samples_as_json(capsys, trained, tmp_path):
    (tmp_path / "p.txt").write_text("The cat\nA dog\n")
    flags = ["--out-dir", trained, "--prompts", tmp_path / "p.txt", "--samples", 3, "--max-tokens", 9, "--json"]
    _, out, _ = run(capsys, *flags, "--batch-size", 4)
    texts = [json.loads(line) for line in out.splitlines()]
    assert [(text["prompt"], text["sample"]) for text in texts] == [(prompt, sample) for prompt in ("The cat", "A dog") for sample in (1, 2, 3)]
    assert run(capsys, *flags, "--batch-size", 1)[1] == out
    (tmp_path / "p.jsonl").write_text('"The cat"\n{"prompt": "A dog"}\n')
    assert run(capsys, "--out-dir", trained, "--prompts", tmp_path / "p.jsonl", *flags[4:])[1] == out
    assert "=== prompt 2, sample 3\nA dog" in run(capsys, *flags[:-1])[1]


def test_a_prompt_can_be_piped_in(capsys, trained, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("The cat number\n"))
    code, out, _ = run(capsys, "--out-dir", trained, "--greedy", "--max-tokens", 2)
    assert code == 0
    assert out.startswith("The cat number")


@pytest.mark.parametrize(("arguments", "words"), [
    (["--model", "missing.lmp"], "no such file"), (["--out-dir", "/nowhere"], "--model"), (["--top-p", "2", "--samples", "0"], "--top-p 2.0"),
    (["--repetition-penalty", "1e-300"], "--repetition-penalty 1e-300: allowed is a number from 0.01 to 100"), (["--repetition-penalty", "nan"], "0.01 to 100"),
    (["--temperature", "inf"], "--temperature inf: allowed is a number from 0 to 100"),
    (["--temprature", "2"], "Did you mean '--temperature'?"),
    (["--prompt", "a", "--prompts", "b"], "one of them"), (["--prompts", "missing.txt"], "cannot be read")])
def test_what_is_wrong_is_said_in_a_line(capsys, arguments, words):
    code, out, err = run(capsys, *(arguments if "--prompts" in arguments or "--prompt" in arguments else [*arguments, "--prompt", "a"]))
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err
