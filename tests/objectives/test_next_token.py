"""The objective against plain float64 PyTorch that holds all logits, and what it promises about memory."""
from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from lmplay.data.collate import MiniBatch
from lmplay.modules.heads import LinearHead
from lmplay.objectives.base import Result
from lmplay.objectives.linear_cross_entropy import find_largest
from lmplay.objectives.next_token import CHUNK, NextToken


def next_token(model: nn.Module, tokens: Tensor, positions: Tensor, targets: Tensor, head: nn.Module | None = None, chunk: int = CHUNK) -> Result:
    """The objective on plain tensors."""
    return NextToken(chunk).loss(model, MiniBatch(tokens, positions, targets, [], 0), head or model.get_submodule("head"))


class Toy(nn.Module):
    """The least that is an experiment's model."""

    def __init__(self, vocab: int, width: int, head: str):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.body = nn.Linear(width, width)
        self.head: nn.Module = nn.Linear(width, vocab, bias=head == "biased")
        if head == "deep":
            self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), self.head)
        if head == "tied":
            self.head.weight = self.embedding.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return torch.tanh(self.body(self.embedding(tokens_BT))) * 3


def problem(vocab: int = 50, width: int = 8, head: str = "tied", truths: int = 20, seed: int = 0) -> tuple[Toy, tuple[Tensor, Tensor, Tensor]]:
    torch.manual_seed(seed)
    model = Toy(vocab, width, head)
    positions = torch.randperm(4 * 16)[:truths]
    return model, (torch.randint(vocab, (4, 16)), positions, torch.randint(vocab, (truths,)))


def plain(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The same by the shortest way, with all logits."""
    tokens, positions, targets = batch
    logits = model.head(model(tokens).flatten(0, 1)[positions])  # type: ignore[operator]
    return functional.cross_entropy(logits.double(), targets, reduction="sum"), logits.argmax(1)


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same_gradients(model: nn.Module, reference: nn.Module, tolerance: float) -> None:
    """Compare by norm, as rounding of a type that is coarser than the reference's is spread over a tensor."""
    expected = gradients(reference)
    for name, found in gradients(model).items():
        theirs = expected[name]
        assert (found is None) == (theirs is None), name
        if found is not None and theirs is not None:
            assert (found.double() - theirs.double()).norm() <= tolerance * (theirs.double().norm() + 1e-6), name


HEADS = ["tied", "untied", "biased", "deep"]


@given(
    head=st.sampled_from(HEADS), vocab=st.integers(1, 70), width=st.integers(1, 12), truths=st.integers(0, 64), chunk=st.integers(1, 70),
    scale=st.floats(0.01, 100), seed=st.integers(0, 99),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_agrees_with_plain_float64(head: str, vocab: int, width: int, truths: int, chunk: int, scale: float, seed: int) -> None:
    model, batch = problem(vocab, width, head, truths, seed)
    reference = copy.deepcopy(model).double()
    result = next_token(model, *batch, chunk=chunk)
    expected, _ = plain(reference, batch)
    assert len(result.losses_N) == truths
    assert result.loss_sum.dtype == torch.float32
    torch.testing.assert_close(result.loss_sum.double(), expected, rtol=1e-5, atol=1e-4)
    (result.loss_sum * scale).backward()
    (expected * scale).backward()
    assert_same_gradients(model, reference, 1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_predictions_are_the_most_probable_tokens(head: str) -> None:
    model, batch = problem(head=head, truths=40)
    result = next_token(model, *batch, chunk=7)
    assert result.predictions_N.dtype == torch.int64
    assert torch.equal(result.predictions_N, plain(model, batch)[1])
    assert len(result.predictions_N.unique()) > 3


@pytest.mark.parametrize("head", HEADS)
def test_the_losses_stand_by_themselves_too(head: str) -> None:
    model, (tokens, positions, targets) = problem(head=head, truths=40)
    result = next_token(model, tokens, positions, targets, chunk=7)
    assert not result.losses_N.requires_grad
    logits = model.head(model(tokens).flatten(0, 1)[positions])  # type: ignore[operator]
    torch.testing.assert_close(result.losses_N, functional.cross_entropy(logits, targets, reduction="none"))
    torch.testing.assert_close(result.losses_N.sum(), result.loss_sum)


@pytest.mark.parametrize("head", ["untied", "deep"])
def test_float64_stays_float64(head: str) -> None:
    model, batch = problem(head=head)
    model = model.double()
    reference = copy.deepcopy(model)
    result, (expected, _) = next_token(model, *batch, chunk=6), plain(reference, batch)
    result.loss_sum.backward()
    expected.backward()
    torch.testing.assert_close(result.loss_sum, expected, rtol=1e-12, atol=0)
    assert_same_gradients(model, reference, 1e-12)


def test_extreme_logits() -> None:
    model, batch = problem(head="untied")
    with torch.no_grad():
        model.head.weight.mul_(1e4)  # type: ignore[operator]
    reference = copy.deepcopy(model).double()
    result, (expected, _) = next_token(model, *batch, chunk=6), plain(reference, batch)
    result.loss_sum.backward()
    expected.backward()
    assert expected > 1e4
    torch.testing.assert_close(result.loss_sum.double(), expected, rtol=1e-5, atol=0)
    assert_same_gradients(model, reference, 1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_mini_batches_add_up(head: str) -> None:
    model, (tokens, positions, targets) = problem(head=head, truths=50)
    whole = copy.deepcopy(model)
    expected = next_token(whole, tokens, positions, targets)
    (expected.loss_sum / 50).backward()
    losses = []
    for row in range(4):
        mine = positions // 16 == row
        result = next_token(model, tokens[row : row + 1], positions[mine] - 16 * row, targets[mine], chunk=5)
        (result.loss_sum / 50).backward()
        losses.append(result.loss_sum)
    torch.testing.assert_close(torch.stack(losses).sum(), expected.loss_sum)
    assert_same_gradients(model, whole, 1e-5)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_autocast(head: str, dtype: torch.dtype, tolerance: float) -> None:
    model, batch = problem(vocab=300, head=head, truths=60)
    reference = copy.deepcopy(model).double()
    with torch.autocast("cpu", dtype=dtype):
        result = next_token(model, *batch, chunk=16)
    result.loss_sum.backward()
    expected, _ = plain(reference, batch)
    expected.backward()
    assert result.loss_sum.dtype == torch.float32
    torch.testing.assert_close(result.loss_sum.double(), expected, rtol=tolerance, atol=0)
    assert_same_gradients(model, reference, tolerance)


class Watch(TorchDispatchMode):
    """Notes the types of matrix products, and which storages are alive at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[torch.dtype] = []
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_, torch.ops.aten.linear):
            self.products.append(result.dtype)
        given = {tensor.untyped_storage()._cdata for tensor in args if isinstance(tensor, Tensor)}
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in given:  # a view is not new
                self.largest = max(self.largest, tensor.numel())
                self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes() // tensor.element_size())
        self.peak = max(self.peak, self.alive())
        return result

    def alive(self) -> int:
        """Give the values held by storages that were made here and are still there."""
        self.storages = {key: (storage, size) for key, (storage, size) in self.storages.items() if not storage.expired()}
        return sum(size for _, size in self.storages.values())


@pytest.mark.parametrize("head", HEADS)
def test_never_holds_all_logits(head: str) -> None:
    vocab, truths, chunk, width = 4000, 64, 4, 4
    model, batch = problem(vocab, width, head, truths)
    with Watch() as watch:
        result = next_token(model, *batch, chunk=chunk)
        after_forward = watch.alive()
        result.loss_sum.backward()
    assert watch.largest <= max(chunk, width) * (vocab + 64)
    # a few chunks and a few gradients of the head, where all logits would be 64 * 4000
    assert watch.peak < 24 * vocab
    assert after_forward < 12 * vocab


class Strides(TorchDispatchMode):
    """Notes how far apart the rows of the operands and results of matrix products are, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            operands = [*args[-2:], (kwargs or {}).get("out")]
            self.found |= {max(operand.stride()) * operand.element_size() for operand in operands if operand is not None}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_logits_begin_at_whole_cache_lines(dtype: torch.dtype) -> None:
    """Of an odd vocabulary, as GPT-2's; a GPU's fast products ask for 16 bytes."""
    model, batch = problem(1001, 64, "untied", 70)
    with Strides() as strides, torch.autocast("cpu", dtype=dtype):
        next_token(model, *batch, chunk=32)
    assert len(strides.found) > 1
    assert all(stride % 128 == 0 for stride in strides.found), strides.found


def test_the_watch_sees_plain_logits() -> None:
    model, batch = problem(4000, 4, "tied", 64)
    with Watch() as watch:
        plain(model, batch)[0].backward()
    assert watch.largest == 64 * 4000
    assert watch.peak > 64 * 4000


def test_products_are_in_the_autocast_type() -> None:
    model, batch = problem(head="tied")
    with Watch() as watch, torch.autocast("cpu", dtype=torch.bfloat16):
        next_token(model, *batch, chunk=6)
    assert set(watch.products) == {torch.bfloat16}


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_float16_with_a_grad_scaler(head: str) -> None:
    model, batch = problem(vocab=2000, head=head, truths=60)
    reference = copy.deepcopy(model).double()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with torch.autocast("cpu", dtype=torch.float16):
        result = next_token(model, *batch, chunk=16)
    scaler.scale(result.loss_sum / len(result.losses_N)).backward()
    scaler.unscale_(optimizer)
    (plain(reference, batch)[0] / 60).backward()
    assert_same_gradients(model, reference, 1e-2)
    before = model.body.weight.clone()
    scaler.step(optimizer)
    assert not torch.equal(before, model.body.weight)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("frozen", ["head", "body", "all"])
def test_frozen_parts(head: str, frozen: str) -> None:
    model, batch = problem(head=head)
    if frozen in ("head", "all"):
        model.head.requires_grad_(False)
    if frozen in ("body", "all"):
        model.body.requires_grad_(False)
        if head != "tied" or frozen == "all":
            model.embedding.requires_grad_(False)
    reference = copy.deepcopy(model).double()
    result, (expected, _) = next_token(model, *batch, chunk=6), plain(reference, batch)
    torch.testing.assert_close(result.loss_sum.double(), expected, rtol=1e-5, atol=1e-5)
    assert result.loss_sum.requires_grad == expected.requires_grad == (frozen != "all")
    if frozen != "all":
        result.loss_sum.backward()
        expected.backward()
        assert_same_gradients(model, reference, 1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_no_truth_gives_zero_loss_and_zero_gradients(head: str) -> None:
    model, batch = problem(head=head, truths=0)
    result = next_token(model, *batch)
    assert (result.loss_sum.item(), len(result.losses_N), result.predictions_N.shape) == (0, 0, (0,))
    result.loss_sum.backward()
    assert all(gradient is not None and not gradient.any() for gradient in gradients(model).values())


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_validation_gives_the_same_loss_and_no_graph(head: str, mode: Any) -> None:
    model, batch = problem(vocab=2000, head=head)
    training = next_token(model, *batch, chunk=4)
    with mode(), Watch() as watch:
        result = next_token(model, *batch, chunk=4)
    assert not result.loss_sum.requires_grad
    assert torch.equal(result.loss_sum, training.loss_sum.detach())
    assert torch.equal(result.predictions_N, training.predictions_N)
    if head in ("tied", "untied"):
        assert len(watch.products) == 1 + 5  # the body's, and one for each chunk of 4 out of 20
    assert watch.largest <= 4 * (2000 + 64)  # no gradient of the head, 8 * 2000, is made


def test_same_bits_each_time() -> None:
    def once() -> tuple[Result, dict[str, Tensor | None]]:
        model, batch = problem(vocab=3000, width=64, truths=64)
        result = next_token(model, *batch, chunk=10)
        result.loss_sum.backward()
        return result, gradients(model)

    (first, found), (second, again) = once(), once()
    assert torch.equal(first.loss_sum, second.loss_sum)
    assert all(torch.equal(found[name], again[name]) for name in found)  # type: ignore[arg-type]


def test_a_second_backward_is_refused_not_wrong() -> None:
    model, batch = problem()
    loss = next_token(model, *batch).loss_sum
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_head_of_a_wrapper_is_given_apart() -> None:
    model, batch = problem()

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = model

        def forward(self, tokens_BT: Tensor) -> Tensor:
            return self.module(tokens_BT)

    assert torch.equal(next_token(Wrapper(), *batch, head=model.head).loss_sum, next_token(model, *batch).loss_sum)


def test_subclass_of_linear_is_asked_itself() -> None:
    class Doubled(nn.Linear):
        def forward(self, hidden: Tensor) -> Tensor:
            return 2 * super().forward(hidden)

    model, batch = problem(head="untied")
    model.head = Doubled(8, 50, bias=False)
    torch.testing.assert_close(next_token(model, *batch, chunk=6).loss_sum.double(), plain(model, batch)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 127, 128, 129, 1000, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_logit_is_found_and_of_equal_ones_the_first(size, dtype):
    logits = torch.randint(-40, 40, (200, size), generator=torch.Generator().manual_seed(size)).to(dtype)
    assert find_largest(logits).squeeze(1).tolist() == [row.index(max(row)) for row in logits.tolist()]
    logits[3, size // 2] = float("nan")
    assert find_largest(logits)[3] == size // 2


@given(soft_cap=st.sampled_from([0.0, 2.0, 15.0]), z_loss=st.sampled_from([0.0, 0.01, 0.3]), truths=st.integers(0, 40), chunk=st.integers(1, 50),
       seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_soft_cap_and_z_loss_against_plain_float64(soft_cap: float, z_loss: float, truths: int, chunk: int, seed: int) -> None:
    model, batch = problem(truths=truths, seed=seed)
    model.head = LinearHead(8, 50, soft_cap, z_loss)
    model.head.weight.data.mul_(9)
    reference = copy.deepcopy(model).double()
    tokens, positions, targets = batch
    logits = reference.head(reference(tokens).flatten(0, 1)[positions])
    if soft_cap:
        raw = functional.linear(reference(tokens).flatten(0, 1)[positions], reference.head.weight)
        torch.testing.assert_close(logits, soft_cap * torch.tanh(raw / soft_cap))
    expected = functional.cross_entropy(logits, targets, reduction="sum")
    result = next_token(model, *batch, chunk=chunk)
    torch.testing.assert_close(result.loss_sum.double(), expected, rtol=1e-5, atol=1e-4)  # the value is that of the cross-entropy alone
    result.loss_sum.backward()
    (expected + z_loss * logits.logsumexp(1).square().sum()).backward()
    assert_same_gradients(model, reference, 1e-4)
    if soft_cap == 2:  # so near to the cap, one minus the square of a rounded tanh is anything
        return
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model.zero_grad()
        rounded = next_token(model, *batch, chunk=chunk)
    rounded.loss_sum.backward()
    torch.testing.assert_close(rounded.loss_sum.double(), expected, rtol=3e-2, atol=1e-1)
    assert_same_gradients(model, reference, 5e-2)
