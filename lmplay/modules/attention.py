"""Attention.  Shapes: B pieces, T positions, D embedding width, H heads, G heads of keys and values, K width of a head."""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .cache import KeyValueCache
from .causal import causal_attention
from .checks import check_heads, check_kv_heads
from .packed import Lengths, packed_attention
from .positions import rotate


class CausalSelfAttention(nn.Module):
    """Causal multi-head attention: a position attends to itself and those before it; one linear layer computes query, key and value.

    As it is by default it is GPT-2's; the other settings make it Llama's, Qwen's, and more.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, *, num_kv_heads: int | None = None, head_dim: int | None = None,
                 bias: bool = True, projection_bias: bool | None = None, query_norm: nn.Module | None = None, key_norm: nn.Module | None = None,
                 value_norm: nn.Module | None = None, mixes_values: bool = False):
        """
        :param dropout: during training, the probability of dropping an attention weight, and an output.
        :param num_kv_heads: G, each shared by num_heads / G heads of queries (Ainslie et al. 2023, "GQA"); None = `num_heads`.
        :param head_dim: K; None = embed_dim / num_heads.
        :param bias: of queries, keys and values.
        :param projection_bias: of the output; None = as `bias`.
        :param query_norm: applied to each head of the queries, before they are turned by their positions.
        :param key_norm: the same for keys (Henry et al. 2020, "Query-Key Normalization for Transformers").
        :param value_norm: the same for values.
        :param mixes_values: `forward` takes other values, which are added to its own by two learned factors.
        :raises UserError: when `num_heads` does not divide `embed_dim`, or `num_kv_heads` does not divide `num_heads`.
        """
        super().__init__()
        if head_dim is None:
            check_heads(embed_dim, num_heads)
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_kv_heads(num_heads, self.num_kv_heads)
        self.head_dim = head_dim or embed_dim // num_heads
        self.dropout = dropout
        self.widths = [heads * self.head_dim for heads in (num_heads, self.num_kv_heads, self.num_kv_heads)]
        """Of queries, keys and values, in the output of `query_key_value`."""
        self.query_key_value = nn.Linear(embed_dim, sum(self.widths), bias)
        self.projection = nn.Linear(self.widths[0], embed_dim, bias if projection_bias is None else projection_bias)
        self.residual_dropout = nn.Dropout(dropout)
        self.query_norm, self.key_norm, self.value_norm = query_norm, key_norm, value_norm
        self.value_mix = nn.Parameter(torch.tensor([1.0, 0.0])) if mixes_values else None

    def forward(self, hidden_BTD: Tensor, cache: KeyValueCache | None = None, lengths: Lengths | None = None,
                rotation: tuple[Tensor, Tensor] | None = None, other_values: Tensor | None = None) -> Tensor:
        """Attend.  Pieces are padded on the right, where no real position attends to: the causal mask is the only one.

        :param hidden_BTD: normalized hidden states.
        :param cache: keys and values of the positions before these, in generation.
        :param lengths: of the pieces packed into the T positions of the only row; none attends to another. None = each row is a piece.
        :param rotation: of :class:`RotaryPositions`; None = positions are in the hidden states.
        :param other_values: (B, T, G K), for `mixes_values`.
        :return: the addition to the residual stream (B, T, D).
        """
        parts = [part.unflatten(2, (-1, self.head_dim)) for part in self.query_key_value(hidden_BTD).split(self.widths, 2)]
        norms = (self.query_norm, self.key_norm, self.value_norm)
        query_BTHK, key_BTGK, value_BTGK = (part if norm is None else norm(part) for part, norm in zip(parts, norms, strict=True))
        if rotation is not None:
            query_BTHK, key_BTGK = rotate(query_BTHK, rotation), rotate(key_BTGK, rotation)
        if self.value_mix is not None and other_values is not None:
            own, other = self.value_mix.to(value_BTGK.dtype)
            value_BTGK = own * value_BTGK + other * other_values.to(value_BTGK.dtype).view_as(value_BTGK)
        if lengths is None:
            mixed_BTD = self._mix(query_BTHK, key_BTGK, value_BTGK, cache)
        else:
            mixed_THK = packed_attention(query_BTHK[0], key_BTGK[0], value_BTGK[0], lengths, self.dropout if self.training else 0.0)
            mixed_BTD = mixed_THK.flatten(1)[None]
        return self.residual_dropout(self.projection(mixed_BTD))

    def values(self, hidden_BTD: Tensor) -> Tensor:
        """Compute the values (B, T, G K) alone, without their norm."""
        part = slice(-self.widths[2], None)
        if type(self.query_key_value) is not nn.Linear:  # one with an adapter is more than its weight
            return self.query_key_value(hidden_BTD)[..., part]
        bias = self.query_key_value.bias
        return functional.linear(hidden_BTD, self.query_key_value.weight[part], None if bias is None else bias[part])

    def _mix(self, query_BTHK: Tensor, key_BTGK: Tensor, value_BTGK: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Attend within each row; gives (B, T, H K)."""
        query_BHTK, key_BGTK, value_BGTK = (part.transpose(1, 2) for part in (query_BTHK, key_BTGK, value_BTGK))
        if cache is None:
            mixed_BHTK = causal_attention(query_BHTK, key_BGTK, value_BGTK, self.dropout if self.training else 0.0)
        else:
            mixed_BHTK = cache.attend(query_BHTK, key_BGTK, value_BGTK)
        return mixed_BHTK.transpose(1, 2).flatten(2)
