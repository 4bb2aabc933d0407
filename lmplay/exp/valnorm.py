"""GPT-2 with a layer norm on values, after the "value norm" of J. Ward (github.com/jmward01/lmplay).

Attention decides by queries and keys how much each value counts; a value that is large by accident counts for more. The norm rules that out.
"""
from __future__ import annotations

from torch import nn

from ..modules.attention import CausalSelfAttention
from ..modules.blocks import NORM_EPSILON
from ..modules.checks import check_heads
from .gpt2ish import GPT2ish


class ValNorm(GPT2ish):
    """:class:`GPT2ish` whose attention normalizes each head of the values."""

    def _make_attention(self, embed_dim: int, num_heads: int, dropout: float) -> CausalSelfAttention:
        check_heads(embed_dim, num_heads)
        return CausalSelfAttention(embed_dim, num_heads, dropout, value_norm=nn.LayerNorm(embed_dim // num_heads, NORM_EPSILON))
