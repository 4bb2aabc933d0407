"""Attention within the pieces that are packed into one row, and their positions.

Shapes: T positions of all pieces, P pieces, N pieces of one length L, H heads of queries, G heads of keys and values, K width of a head.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.collate import to_device
from .causal import causal_attention

_HALF = (torch.bfloat16, torch.float16)


class Starts(NamedTuple):
    """Where packed pieces begin, as compiled code takes it: the same code for all lengths."""

    starts: Tensor
    """Where they begin, and where the last one ends (P + 1,), int32, on the model's device; a piece may be empty."""
    longest: int
    """The most tokens that a piece can have."""


Lengths = tuple[int, ...] | Starts
"""The pieces that are packed into a row: how long they are, or where they begin."""


def packed_attention(query_THK: Tensor, key_TGK: Tensor, value_TGK: Tensor, lengths: Lengths, dropout: float = 0.0, scale: float | None = None) -> Tensor:
    """Attend: each position to itself and those before it in its piece.

    On a GPU of NVIDIA that has the kernel (:func:`has_kernel`) all pieces at once, else those of equal length that follow each other.

    :param dropout: the probability of dropping an attention weight; 0 with :class:`Starts`.
    :param scale: of the products of queries and keys; None = 1 / sqrt(K).
    :return: (T, H, K).
    """
    on_gpu = query_THK.device.type == "cuda"
    if isinstance(lengths, Starts):
        same = _of_one_type(query_THK, key_TGK, value_TGK)
        if on_gpu:
            return _by_kernel(*same, lengths, scale)
        mixed: Tensor = torch.ops.lmplay.packed_attention(*same, lengths.starts, query_THK.shape[-1]**-0.5 if scale is None else scale)[0]
        return mixed
    if on_gpu and not dropout and has_kernel(query_THK.device, query_THK.shape[-1]):
        same = _of_one_type(query_THK, key_TGK, value_TGK)
        if same[0].dtype in _HALF:
            return _by_kernel(*same, starts_of(lengths, max(lengths), query_THK.device), scale)
    # split and cat, because the gradient of a slice would be as large as the whole tensor
    runs = _runs(lengths)
    split = [part.split([length * count for length, count in runs]) for part in (query_THK, key_TGK, value_TGK)]
    mixed_parts = []
    for parts, (length, count) in zip(zip(*split, strict=True), runs, strict=True):
        query, key, value = (part.unflatten(0, (count, length)).transpose(1, 2) for part in parts)
        mixed_parts.append(causal_attention(query, key, value, dropout, scale).transpose(1, 2).flatten(0, 1))
    return torch.cat(mixed_parts)


def packed_positions(lengths: Lengths, device: torch.device, total: int) -> Tensor:
    """Number the positions in each piece from 0 on (T,), int64; `total` is T."""
    if not isinstance(lengths, Starts):
        return to_device(torch.cat([torch.arange(length) for length in lengths]), device)
    places = torch.arange(total, dtype=torch.int32, device=device)
    return (places - lengths.starts[torch.searchsorted(lengths.starts[1:], places, right=True)]).long()


@lru_cache(maxsize=8)  # the blocks of a model ask one after the other
def starts_of(lengths: tuple[int, ...], longest: int, device: torch.device) -> Starts:
    """Say where pieces of these lengths begin."""
    with torch.inference_mode(False):  # what is made in inference mode cannot be used in training
        return Starts(to_device(torch.tensor([*accumulate(lengths, initial=0)], dtype=torch.int32), device), longest)


@cache
def has_kernel(device: torch.device, width: int) -> bool:
    """Tell whether a GPU can attend within all pieces at once, in half precision and without dropout: by torch's flash attention, from Ampere on.

    :param width: K.
    """
    if device.type != "cuda" or torch.version.hip or width % 8 or width > 256 or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return inspect.signature(varlen_attn).parameters.keys() >= {"scale", "window_size", "enable_gqa"}  # older ones lack some


def _of_one_type(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Give tensors the type that autocast gives those of torch's own attention."""
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    return query.to(dtype), key.to(dtype), value.to(dtype)


def _by_kernel(query_THK: Tensor, key_TGK: Tensor, value_TGK: Tensor, lengths: Starts, scale: float | None) -> Tensor:
    """Attend within all pieces at once; (-1, 0) is a causal mask."""
    from torch.nn.attention.varlen import varlen_attn

    mixed: Any = varlen_attn(query_THK, key_TGK, value_TGK, lengths.starts, lengths.starts, lengths.longest, lengths.longest, scale=scale,
                             window_size=(-1, 0), enable_gqa=key_TGK.shape[1] < query_THK.shape[1])
    return mixed


def _runs(lengths: tuple[int, ...]) -> list[tuple[int, int]]:
    """List the lengths, each with how many pieces that follow each other have it."""
    return [(length, len(list(run))) for length, run in groupby(lengths)]


@cache
def define_operator() -> None:
    """Define what compiled code calls on a CPU: one operator for any number of pieces of any lengths, which the compiler does not look into."""
    forward = torch.library.custom_op("lmplay::packed_attention", _forward, mutates_args=(), device_types="cpu")
    backward = torch.library.custom_op("lmplay::packed_attention_backward", _backward, mutates_args=(), device_types="cpu")
    forward.register_fake(lambda query, key, value, starts, scale: (torch.empty_like(query, memory_format=torch.contiguous_format),
                                                                    query.new_empty(query.shape[:2], dtype=_exact(query.dtype))))
    backward.register_fake(lambda gradient, query, key, value, mixed, log_sums, starts, scale:
                           tuple(torch.empty_like(part, memory_format=torch.contiguous_format) for part in (query, key, value)))

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:3], *output, inputs[3])
        ctx.scale = inputs[4]

    def differentiate(ctx: Any, gradient_THK: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return *backward(gradient_THK, *ctx.saved_tensors, ctx.scale), None, None

    forward.register_autograd(differentiate, setup_context=keep)


def _forward(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend within pieces on a CPU; gives (T, H, K), and the log of the sum of each position's weights (T, H)."""
    mixed, log_sums = torch.empty_like(query, memory_format=torch.contiguous_format), query.new_empty(query.shape[:2], dtype=_exact(query.dtype))
    for part, batched in _batches(starts):
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(batched(query), *_repeated(query, batched(key), batched(value)), 0.0, True,
                                                                           scale=scale)
        mixed[part], log_sums[part] = (one.transpose(1, 2).flatten(0, 1) for one in found)
    return mixed, log_sums


def _backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, log_sums: Tensor, starts: Tensor, scale: float) \
        -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of queries, keys and values."""
    whole_like = partial(torch.empty_like, memory_format=torch.contiguous_format)
    found = whole_like(query), whole_like(key), whole_like(value)
    for part, batched in _batches(starts):
        repeated = _repeated(query, batched(key), batched(value))
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(batched(gradient), batched(query), *repeated, batched(mixed),
                                                                                        batched(log_sums), 0.0, True, scale=scale)
        for whole, one in zip(found, gradients, strict=True):
            summed = one.unflatten(1, (whole.shape[1], -1)).sum(2)  # over the heads of queries that share one
            whole[part] = summed.transpose(1, 2).flatten(0, 1)
    return found


def _batches(starts: Tensor) -> Iterator[tuple[slice, Callable[[Tensor], Tensor]]]:
    """Give the positions of pieces of equal length that follow each other, and what makes of a tensor (T, H, …) theirs (N, H, L, …)."""
    begin = 0
    for length, count in _runs(tuple(end - start for start, end in pairwise(starts.tolist()))):
        if length:
            part = slice(begin, begin + length * count)
            yield part, partial(_batched, part, length)
            begin = part.stop


def _batched(part: slice, length: int, tensor: Tensor) -> Tensor:
    """See :func:`_batches`."""
    return tensor[part].unflatten(0, (-1, length)).transpose(1, 2)


def _repeated(query_THK: Tensor, key_NGLK: Tensor, value_NGLK: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat keys and values for each head of queries that shares them."""
    times = query_THK.shape[1] // key_NGLK.shape[1]
    return key_NGLK.repeat_interleave(times, 1), value_NGLK.repeat_interleave(times, 1)


def _exact(dtype: torch.dtype) -> torch.dtype:
    """Give the type of sums of numbers of a type."""
    return torch.promote_types(dtype, torch.float32)
