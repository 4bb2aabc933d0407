"""Causal attention by the fastest way there is.  Imports torch only.

Shapes: B pieces, T positions, H heads of queries, G heads of keys and values, R = H / G, K width of a head, P = B G.
"""
from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

# The most positions for which plain products are faster on a CPU in bfloat16 than torch's fused kernel: 1.3 times at 256, 3 times at 64.
_MOST_POSITIONS = 256
# The most attention weights of a call: they are kept for the backward pass, 2 bytes each, and torch's kernel keeps none.
_MOST_WEIGHTS = 1 << 25


def causal_attention(query_BHTK: Tensor, key_BGTK: Tensor, value_BGTK: Tensor, dropout: float = 0.0, scale: float | None = None) -> Tensor:
    """Attend: each position to itself and those before it.

    :param dropout: the probability of dropping an attention weight.
    :param scale: of the products of queries and keys; None = 1 / sqrt(K).
    :return: (B, H, T, K).
    """
    batch, heads, length, _ = query_BHTK.shape
    plain = query_BHTK.dtype is torch.bfloat16 and query_BHTK.device.type == "cpu" and not dropout and length <= _MOST_POSITIONS
    if plain and batch * heads * length**2 <= _MOST_WEIGHTS and not torch.compiler.is_compiling() and _has_bfloat16_products():
        mixed: Tensor = _PlainAttention.apply(query_BHTK, key_BGTK, value_BGTK, query_BHTK.shape[-1]**-0.5 if scale is None else scale)
        return mixed
    return functional.scaled_dot_product_attention(query_BHTK, key_BGTK, value_BGTK, None, dropout, is_causal=True, scale=scale,
                                                   enable_gqa=key_BGTK.shape[1] < query_BHTK.shape[1])


@cache
def _has_bfloat16_products() -> bool:
    """Tell whether torch's products in bfloat16 are those of oneDNN here."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def _mask() -> Tensor:
    """Make what is added to the scores: 0 where a position may attend to another, else minus infinity."""
    return torch.full((_MOST_POSITIONS, _MOST_POSITIONS), float("-inf")).triu_(1)


class _PlainAttention(torch.autograd.Function):
    """Attention whose weights are held in bfloat16. Scores are float32: those of a trained model are too large for bfloat16's three digits."""

    @staticmethod
    def forward(ctx: Any, query_BHTK: Tensor, key_BGTK: Tensor, value_BGTK: Tensor, scale: float) -> Tensor:
        batch, heads, length, width = query_BHTK.shape
        groups = key_BGTK.shape[1]
        repeated = heads // groups
        # the heads that share keys lie one below the other
        query = query_BHTK.reshape(batch * groups, repeated * length, width)
        key, value = (part.reshape(batch * groups, length, width) for part in (key_BGTK, value_BGTK))
        mask = _mask()[:length, :length].repeat(repeated, 1)
        with torch.autocast("cpu", enabled=False):
            weights = torch.baddbmm(mask, query.float(), key.float().transpose(1, 2), alpha=scale).softmax(2).bfloat16()  # (P, R T, T)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale, ctx.kept = scale, key_BGTK.shape
        return torch.bmm(weights, value).view(query_BHTK.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BHTK: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        of_mixed = gradient_BHTK.reshape(query.shape)
        of_value = torch.bmm(weights.transpose(1, 2), of_mixed)
        of_weights = torch.bmm(of_mixed, value.transpose(1, 2))
        of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, 2, weights.dtype)
        of_query, of_key = torch.bmm(of_scores, key).mul_(ctx.scale), torch.bmm(of_scores.transpose(1, 2), query).mul_(ctx.scale)
        of_keys = (part.view(ctx.kept) for part in (of_key, of_value))
        return of_query.view(gradient_BHTK.shape), *of_keys, None
