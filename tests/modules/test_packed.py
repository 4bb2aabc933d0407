"""Attention within packed pieces: by every way the same as piece by piece in float64, and what the kernel of a GPU is given."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from lmplay.modules import packed
from lmplay.modules.packed import Starts, define_operator, has_kernel, packed_attention, packed_positions, starts_of

CPU = torch.device("cpu")
define_operator()


def make(lengths, heads=4, groups=2, width=8, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (heads, groups, groups)
    return [torch.randn(sum(lengths), size, width, generator=generator).to(dtype).requires_grad_() for size in sizes]


def reference(query, key, value, lengths, scale=None):
    """One piece at a time, in float64."""
    parts = []
    for one in zip(*(part.double().split(lengths) for part in (query, key, value)), strict=True):
        rows = (part.transpose(0, 1)[None] for part in one)
        parts.append(functional.scaled_dot_product_attention(*rows, is_causal=True, scale=scale, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(parts)


def both(lengths, given, scale=None, **options):
    inputs = make(lengths, **options)
    expected = reference(*inputs, lengths, scale)
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = torch.autograd.grad((expected * direction).sum(), inputs)
    found = packed_attention(*inputs, given, scale=scale)
    return found, torch.autograd.grad((found * direction).sum(), inputs), expected, wanted


lengths_of = st.lists(st.integers(1, 9), min_size=1, max_size=7).map(tuple)


@given(lengths_of, st.sampled_from([(4, 4), (4, 2), (3, 1)]), st.booleans(), st.sampled_from([None, 0.3]))
@settings(max_examples=40, deadline=None)
def test_all_ways_are_the_same_as_piece_by_piece(lengths, heads, by_starts, scale):
    where = starts_of(lengths, 9, CPU) if by_starts else lengths
    found, gradients, expected, wanted = both(lengths, where, scale, heads=heads[0], groups=heads[1])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_starts", [False, True])
def test_bfloat16_is_near(by_starts):
    lengths = (40, 40, 3, 17)
    found, gradients, expected, wanted = both(lengths, starts_of(lengths, 64, CPU) if by_starts else lengths, dtype=torch.bfloat16)
    assert found.dtype is torch.bfloat16
    for one, other in ((found, expected), *zip(gradients, wanted, strict=True)):
        assert (one.double() - other.double()).norm() < 0.01 * other.double().norm()


def test_the_operator_keeps_its_promises_to_the_compiler():
    """Its results have the shapes, types and strides that it says, and its gradient can be traced."""
    query, key, value = make((5, 5, 2))
    torch.library.opcheck(torch.ops.lmplay.packed_attention.default, (query, key, value, starts_of((5, 5, 2), 9, CPU).starts, 0.35))


@given(lengths_of)
@settings(max_examples=30, deadline=None)
def test_positions_begin_anew_in_each_piece(lengths):
    expected = [position for length in lengths for position in range(length)]
    for where in (lengths, starts_of(lengths, 9, CPU)):
        assert packed_positions(where, CPU, sum(lengths)).tolist() == expected


def test_compiled_code_is_made_once_for_all_lengths():
    calls = []

    def backend(graph, example):
        calls.append(graph)
        return graph.forward

    torch._dynamo.reset()

    @torch.compile(dynamic=True, backend=backend)
    def attend(query, key, value, where):
        positions = packed_positions(where, CPU, len(query))
        return packed_attention(query, key, value, where) + positions[:, None, None]

    for lengths in ((4, 5), (3, 3, 3), (9,), (1, 2, 3, 4)):
        inputs = make(lengths)
        expected = reference(*inputs, lengths) + packed_positions(lengths, CPU, sum(lengths))[:, None, None]
        torch.testing.assert_close(attend(*inputs, starts_of(lengths, 9, CPU)).double(), expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 1


@pytest.mark.parametrize(("lengths", "longest"), [((5, 3), 5), (Starts(torch.tensor([0, 5, 8], dtype=torch.int32), 64), 64)])
def test_the_kernel_of_a_gpu_gets_all_pieces_at_once(monkeypatch, lengths, longest):
    """What torch says of its function: causal is a window of (-1, 0). It is called as its signature wants it."""
    import inspect

    from torch.nn.attention import varlen

    signature, got = inspect.signature(varlen.varlen_attn), []

    def stand_in(*arguments, **named):
        bound = signature.bind(*arguments, **named).arguments
        got.append(bound)
        return bound["query"]

    class OnGpu(torch.Tensor):
        device = torch.device("cuda", 0)

    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    monkeypatch.setattr(packed, "has_kernel", lambda device, width: True)
    monkeypatch.setattr(packed, "to_device", lambda tensor, device: tensor)
    starts_of.cache_clear()
    query, key, value = (part.detach().bfloat16().as_subclass(OnGpu) for part in make((5, 3)))
    packed_attention(query, key, value, lengths, scale=0.5)
    starts_of.cache_clear()
    [call] = got
    assert call["cu_seq_q"].tolist() == call["cu_seq_k"].tolist() == [0, 5, 8]
    assert call["cu_seq_q"].dtype is torch.int32
    assert (call["max_q"], call["max_k"], call["window_size"], call["enable_gqa"], call["scale"]) == (longest, longest, (-1, 0), True, 0.5)
    if isinstance(lengths, tuple) and not isinstance(lengths, Starts):
        for inputs, dropout in (((query, key, value), 0.1), ([part.float() for part in (query, key, value)], 0.0)):  # what it does not have
            del got[:]
            packed_attention(*(part.as_subclass(torch.Tensor) for part in inputs), lengths, dropout)
            assert not got


@pytest.mark.parametrize(("capability", "width", "there"),
                         [((9, 0), 64, True), ((8, 0), 256, True), ((7, 5), 64, False), ((9, 0), 60, False), ((9, 0), 264, False)])
def test_the_kernel_is_there_from_ampere_on(monkeypatch, capability, width, there):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    has_kernel.cache_clear()
    assert has_kernel(torch.device("cuda:1"), width) is there
    has_kernel.cache_clear()
    assert not has_kernel(CPU, width)


def test_a_kernel_of_an_older_torch_that_cannot_do_what_is_needed_is_not_used(monkeypatch):
    def older(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
        raise AssertionError("not called")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    has_kernel.cache_clear()
    assert has_kernel(torch.device("cuda:0"), 64)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", older)
    has_kernel.cache_clear()
    assert not has_kernel(torch.device("cuda:0"), 64)
    has_kernel.cache_clear()
