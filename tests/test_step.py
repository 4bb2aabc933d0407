"""The training step: invariant 4, against a plain loop in float64; freezing, precision, compilation."""
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from lmplay.data.collate import collate
from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.engine.runtime import Runtime, random_state, restore_random_state, seed_everything
from lmplay.engine.step import train_step
from lmplay.errors import TrainingError, UserError
from lmplay.exp import build_model, get_experiment
from lmplay.optim.optimizers import build_optimizer
from lmplay.plan.settings import Settings
from lmplay.tokenizer import load_tokenizer

BYTES = load_tokenizer("bytes")
CPU = Settings(device="cpu")


def make_model(dropout=0.0, seed=1):
    torch.manual_seed(seed)
    return build_model(get_experiment("gpt2ish"), vocab_size=BYTES.vocab_size, context_len=64, num_blocks=2, embed_dim=16, num_heads=2, dropout=dropout)


def make_pieces(lengths):
    cutter = Cutter(BYTES, 64)
    return [piece for i, length in enumerate(lengths) for piece in cutter.cut(Sample("title\n\n" if i % 2 else "", "abcde. " * length, row=i))]


def do_step(pieces, mini_batch_size, runtime=None, wrap=lambda model: model, **options):
    model = make_model()
    optimizer = build_optimizer("sgd", model, 1.0)
    mini_batches = collate(pieces, mini_batch_size, (runtime or Runtime(CPU)).length_multiple, 63)
    result = train_step(model, wrap(model), optimizer, runtime or Runtime(CPU), mini_batches, grad_clip=options.pop("grad_clip", 0), watch=range(4),
                        interrupted=lambda: False, **options)
    return model, result


def reference(pieces):
    """Loss sum and gradient of the mean loss over all truth tokens: one piece at a time, in float64."""
    model = make_model().double()
    losses, count = [], 0
    for piece in pieces:
        tokens = torch.tensor(piece.tokens, dtype=torch.int64)
        logits = model.head(model(tokens[None, :-1]))[0, piece.n_prompt - 1:]
        losses.append(functional.cross_entropy(logits, tokens[piece.n_prompt:], reduction="sum"))
        count += piece.n_truth
    loss_sum = torch.stack(losses).sum()
    (loss_sum / count).backward()
    return float(loss_sum), {name: parameter.grad for name, parameter in model.named_parameters()}


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9), st.integers(1, 10))
@settings(max_examples=25, deadline=None)
def test_mini_batches_do_not_matter(lengths, mini_batch_size):
    pieces = make_pieces(lengths)
    expected_loss, expected = reference(pieces)
    model, result = do_step(pieces, mini_batch_size)
    assert float(result.loss_sum) == pytest.approx(expected_loss, rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].float(), rtol=1e-3, atol=1e-5)


def test_fifty_by_four_is_thirteen_mini_batches():
    pieces = make_pieces([1 + i % 7 for i in range(50)])
    assert len(collate(pieces, 4)) == 13
    whole, _ = do_step(pieces, 50)
    parts, _ = do_step(pieces, 4)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_predictions_are_those_of_the_pieces_watched():
    pieces = make_pieces([3, 8, 1, 5, 2, 6])
    _, result = do_step(pieces, 2)
    untrained = make_model()
    assert sorted(result.predictions) == [0, 1, 2, 3]
    for number, ids in result.predictions.items():
        tokens = torch.tensor(pieces[number].tokens, dtype=torch.int64)
        logits = untrained.head(untrained(tokens[None, :-1]))[0, pieces[number].n_prompt - 1:]
        assert ids.tolist() == logits.argmax(-1).tolist()


def test_clipping_bounds_the_update():
    pieces = make_pieces([3, 4])
    before = make_model()
    model, result = do_step(pieces, 2, grad_clip=0.01)
    moved = math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(model.parameters(), before.parameters(), strict=True)))
    assert float(result.grad_norm) > 0.01
    assert moved == pytest.approx(0.01, rel=1e-3)  # sgd with lr 1: the first update is the gradient


def test_an_interrupted_step_changes_nothing():
    model = make_model()
    before = [parameter.clone() for parameter in model.parameters()]
    calls = iter([False, False, True])
    result = train_step(model, model, build_optimizer("adamw", model, 0.1), Runtime(CPU), collate(make_pieces([3] * 6), 2), grad_clip=0, watch=range(4),
                        interrupted=lambda: next(calls))
    assert result is None
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_loss_that_is_no_number_never_reaches_the_weights():
    model = make_model()
    with torch.no_grad():
        model.final_norm.weight[0] = math.nan
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with pytest.raises(TrainingError, match="not finite"):
        train_step(model, model, build_optimizer("adamw", model, 0.1), Runtime(CPU), collate(make_pieces([3]), 2), grad_clip=1, watch=range(0),
                   interrupted=lambda: False)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.nan_to_num(7), before[name].nan_to_num(7))


def test_mixed_precision_is_near_full():
    pieces = make_pieces([3, 9, 5])
    runtime = Runtime(Settings(device="cpu", amp=True))
    assert runtime.amp_dtype is torch.bfloat16
    _, full = do_step(pieces, 2)
    _, mixed = do_step(pieces, 2, runtime)
    assert float(mixed.loss_sum) == pytest.approx(float(full.loss_sum), rel=0.01)
    assert float(mixed.loss_sum) != float(full.loss_sum)


@pytest.mark.slow
def test_what_is_compiled_is_what_trains():
    pieces = make_pieces([3, 9, 5, 7])
    runtime = Runtime(Settings(device="cpu", compile_model=True, compile_backend="aot_eager"))
    wrapped = []
    full, plain = do_step(pieces, 2)
    model, compiled = do_step(pieces, 2, runtime, lambda raw: wrapped.append(runtime.wrap(raw)) or wrapped[0])
    assert isinstance(wrapped[0], torch._dynamo.OptimizedModule)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert float(compiled.loss_sum) == pytest.approx(float(plain.loss_sum), rel=1e-5)
    for one, other in zip(full.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not [key for key in model.state_dict() if "_orig_mod" in key]


def test_a_backend_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="inductor"):
        Runtime(Settings(device="cpu", compile_model=True, compile_backend="inducter")).wrap(make_model())


def test_random_states_come_back():
    import random

    import numpy as np

    def draw():
        return random.random(), np.random.rand(), np.random.randn(), torch.rand(3).tolist(), random.gauss(0, 1)

    seed_everything(5)
    draw()
    state = random_state()
    first = draw()
    draw()
    restore_random_state(state)
    assert draw() == first
