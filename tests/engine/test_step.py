"""The training step: invariant 4, against a plain loop in float64; freezing, precision, compilation."""
import copy
import dataclasses
import math

import pytest
import torch
from helpers import differences as compare
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import step_on
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from lmplay.data.collate import collate
from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.device.runtime import Runtime
from lmplay.errors import TrainingError
from lmplay.exp import build_model, get_experiment
from lmplay.optim.optimizers import OPTIMIZERS, build_optimizers
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


def do_step(pieces, mini_batch_size, runtime=None, wrap=lambda model: model, token_budget=0, packed=False, multiple=0, **options):
    model = make_model()
    optimizer = build_optimizers("sgd", model, 1.0)
    mini_batches = collate(pieces, mini_batch_size, multiple or (runtime or Runtime(CPU)).length_multiple, 63, token_budget, packed)
    return model, step_on(model, optimizer, runtime or Runtime(CPU), mini_batches, wrap=wrap, **options)


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


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9), st.integers(1, 10), st.just(0) | st.integers(1, 300), st.booleans(), st.sampled_from([1, 16]))
@settings(max_examples=40, deadline=None)
def test_mini_batches_do_not_matter(lengths, mini_batch_size, token_budget, packed, multiple):
    pieces = make_pieces(lengths)
    expected_loss, expected = reference(pieces)
    model, result = do_step(pieces, mini_batch_size, token_budget=token_budget, packed=packed, multiple=multiple)
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
    result = step_on(model, build_optimizers("adamw", model, 0.1), Runtime(CPU), collate(make_pieces([3] * 6), 2), interrupted=lambda: next(calls))
    assert result is None
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def memory_of(model, optimizer):
    """All that a step may change, as copies."""
    states = [part["state"] for part in optimizer.state().values()]
    return copy.deepcopy([model.state_dict(), states])


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_numbers_that_are_not_finite_reach_neither_weights_nor_optimizer(kind, first, asynchronous, monkeypatch):
    """Also as on a GPU, where only the device knows; a step with poison is as if it had not been, whether it is the first or not."""
    model, runtime = make_model(), Runtime(CPU)
    runtime.asynchronous = asynchronous
    optimizer = build_optimizers(kind, model, 0.1)

    def step(lengths=(3, 2)):
        return step_on(model, optimizer, runtime, collate(make_pieces(lengths), 1), grad_clip=1, accuracy_pieces=range(0))

    if not first:
        step()
    before = memory_of(model, optimizer)
    with monkeypatch.context() as poison:
        forward = type(model).forward
        poison.setattr(type(model), "forward", lambda self, tokens: forward(self, tokens) * math.inf)
        result = step()
    assert not math.isfinite(float(result.loss_sum))
    assert not compare(memory_of(model, optimizer), before)
    step()
    assert compare(memory_of(model, optimizer), before)
    untouched, other = model, make_model()
    model, optimizer = other, build_optimizers(kind, other, 0.1)
    for _ in range(1 if first else 2):
        step()
    assert not compare(list(untouched.state_dict().values()), list(model.state_dict().values()))


def test_the_device_is_not_waited_for_once_the_optimizer_has_its_state(monkeypatch):
    runtime = Runtime(CPU)
    runtime.asynchronous = True
    model = make_model()
    optimizer = build_optimizers("adamw", model, 0.1)
    mini_batches = collate(make_pieces([3, 2]), 1)

    def step():
        return step_on(model, optimizer, runtime, mini_batches, grad_clip=1, accuracy_pieces=range(0), sources=[0, 1])

    step()
    before = memory_of(model, optimizer)

    def wait(*_):
        raise AssertionError("waits for the device")

    for name in ("item", "tolist", "__float__", "__bool__", "__int__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, wait)
    step()
    monkeypatch.undo()
    assert compare(memory_of(model, optimizer), before)


def test_a_gradient_that_overflows_only_lowers_the_scale():
    model, runtime = make_model(), Runtime(CPU)
    runtime.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model.final_norm.weight.register_hook(lambda gradient: gradient * (math.inf if runtime.scaler.get_scale() > 200 else 1.0))
    optimizer = build_optimizers("adamw", model, 0.1)
    before = memory_of(model, optimizer)[0]
    norms = []
    while not norms or not math.isfinite(norms[-1]):
        assert not compare(memory_of(model, optimizer)[0], before)
        result = step_on(model, optimizer, runtime, collate(make_pieces([8] * 6), 2), grad_clip=0, accuracy_pieces=range(0))
        assert math.isfinite(float(result.loss_sum))
        norms.append(float(result.grad_norm))
    assert len(norms) == 4  # 1024, 512, 256, 128
    assert compare(memory_of(model, optimizer)[0], before)


def test_a_batch_with_nothing_to_learn_changes_nothing():
    model = make_model()
    optimizer = build_optimizers("adamw", model, 0.1)
    before = memory_of(model, optimizer)
    [mini_batch] = collate(make_pieces([3, 2]), 2)
    none = torch.empty(0, dtype=torch.int64)
    empty = dataclasses.replace(mini_batch, positions_N=none, targets_N=none, rows=[(0, slice(0, 0)), (1, slice(0, 0))])
    result = step_on(model, optimizer, Runtime(CPU), [empty], grad_clip=1, sources=[0, 1])
    assert (float(result.loss_sum), float(result.grad_norm), result.source_sums.tolist()) == (0, 0, [0, 0])
    assert not compare(memory_of(model, optimizer), before)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=9), st.integers(1, 10))
@settings(max_examples=15, deadline=None)
def test_losses_are_told_apart_by_source(lengths_and_sources, mini_batch_size):
    pieces = make_pieces([length for length, _ in lengths_and_sources])
    sources = [lengths_and_sources[piece.sample.row][1] for piece in pieces]
    _, result = do_step(pieces, mini_batch_size, sources=sources)
    for source, found in enumerate(result.source_sums.tolist()):
        mine = [piece for piece, its in zip(pieces, sources, strict=True) if its == source]
        assert found == pytest.approx(reference(mine)[0] if mine else 0.0, rel=1e-5)
    assert len(result.source_sums) == max(sources) + 1
    assert not len(do_step(pieces, mini_batch_size)[1].source_sums)


def test_an_optimizer_without_memory_for_its_state_says_so(monkeypatch):
    model = make_model()
    optimizer = build_optimizers("adamw", model, 0.1)

    def fail(*_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(optimizer.members["main"], "step", fail)
    with pytest.raises(TrainingError, match="optimizer's state"):
        step_on(model, optimizer, Runtime(CPU), collate(make_pieces([3]), 1), grad_clip=1, accuracy_pieces=range(0))


def test_mixed_precision_is_near_full():
    pieces = make_pieces([3, 9, 5])
    runtime = Runtime(Settings(device="cpu", amp=True))
    assert runtime.amp_dtype is torch.bfloat16
    _, full = do_step(pieces, 2)
    _, mixed = do_step(pieces, 2, runtime)
    assert float(mixed.loss_sum) == pytest.approx(float(full.loss_sum), rel=0.01)
    assert float(mixed.loss_sum) != float(full.loss_sum)


def test_float16_clips_the_gradient_as_it_is_without_the_scale():
    """Against float64: the norm that is shown and clipped by is that of the gradient, not of what the scaler made of it."""
    pieces = make_pieces([3, 5, 2])
    expected = make_model().double()
    _, gradients = reference(pieces)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
    clip = norm / 3
    with torch.no_grad():
        for name, parameter in expected.named_parameters():
            parameter -= 1.0 * gradients[name] * clip / norm
    model, runtime = make_model(), Runtime(Settings(device="cpu", amp="float16"))
    assert runtime.scaler.is_enabled()
    optimizer = build_optimizers("sgd", model, 1.0)
    result = step_on(model, optimizer, runtime, collate(pieces, 1), grad_clip=clip)
    assert float(result.grad_norm) == pytest.approx(norm, rel=0.02)
    start = dict(make_model().named_parameters())
    for (name, parameter), wanted in zip(model.named_parameters(), expected.parameters(), strict=True):
        moved, should = parameter.double() - start[name].double(), wanted - start[name].double()
        assert float((moved - should).norm()) < 0.05 * clip


def test_a_first_step_that_overflows_leaves_no_state_undefined(monkeypatch):
    """A fused kernel that is told to skip its first step would leave a momentum that nobody has written: here such memory is full of NaN."""
    torch.use_deterministic_algorithms(True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    try:
        model, runtime = make_model(), Runtime(Settings(device="cpu", amp="float16"))
        optimizer = build_optimizers("sgd", model, 0.1)
        with monkeypatch.context() as poison:
            forward = type(model).forward
            poison.setattr(type(model), "forward", lambda self, tokens: forward(self, tokens) * math.inf)
            step_on(model, optimizer, runtime, collate(make_pieces([3, 2]), 1), grad_clip=1)
        step_on(model, optimizer, runtime, collate(make_pieces([3, 2]), 1), grad_clip=1)
        assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
        assert all(bool(value.isfinite().all()) for state in optimizer.members["main"].state.values() for value in state.values() if value is not None)
    finally:
        torch.use_deterministic_algorithms(False)


class Shapes(TorchDispatchMode):
    """Takes note of the shapes of all matrix products."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            self.seen.add((function, *(tuple(one.shape) for one in args if isinstance(one, torch.Tensor))))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("packed", [False, True])
def test_lengths_that_differ_a_little_make_no_new_products_in_half_precision(packed):
    half = Runtime(Settings(device="cpu", amp="bfloat16"))
    shapes = []
    for lengths in ([6, 5, 2], [6, 4, 2], [5, 4, 1]):  # 33 to 48 tokens, the same, and up to 16
        with Shapes() as products:
            do_step(make_pieces(lengths), 3, half, packed=packed)
        shapes.append(products.seen)
    assert shapes[0]
    assert shapes[0] == shapes[1] == shapes[2]
