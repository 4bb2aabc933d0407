"""Transformer blocks.  Model floor: imports torch and its own folder only.

Shapes: B pieces, T positions, D width.
"""
from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from .attention import CausalSelfAttention
from .cache import KeyValueCache

NORM_EPSILON = 1e-5
"""GPT-2's, and torch's own default; written down because logits depend on it."""


class Mlp(nn.Module):
    """Two layers with a GELU (its tanh form, as in GPT-2) between them, four times as wide inside."""

    def __init__(self, embed_dim: int, dropout: float = 0.0):
        """Build it.

        :param embed_dim: D.
        :param dropout: share of outputs dropped while training.
        """
        super().__init__()
        self.expansion = nn.Linear(embed_dim, 4 * embed_dim)
        self.projection = nn.Linear(4 * embed_dim, embed_dim)
        self.residual_dropout = nn.Dropout(dropout)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Work on each position by itself: (B, T, D) -> what to add to the residual stream (B, T, D)."""
        return self.residual_dropout(self.projection(functional.gelu(self.expansion(hidden_BTD), approximate="tanh")))


class PreNormBlock(nn.Module):
    """Attention, then an MLP; each reads a normalised copy of the residual stream and adds to the stream itself."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0):
        """Build it.

        :param embed_dim: D.
        :param num_heads: number of attention heads.
        :param dropout: share dropped while training, in both parts.
        """
        super().__init__()
        self.attention_norm = nn.LayerNorm(embed_dim, NORM_EPSILON)
        self.attention = CausalSelfAttention(embed_dim, num_heads, dropout)
        self.mlp_norm = nn.LayerNorm(embed_dim, NORM_EPSILON)
        self.mlp = Mlp(embed_dim, dropout)

    def forward(self, hidden_BTD: Tensor, cache: KeyValueCache | None = None, lengths: tuple[int, ...] | None = None) -> Tensor:
        """Pass the residual stream (B, T, D) through the block; `cache` and `lengths` as in :class:`CausalSelfAttention`."""
        hidden_BTD = hidden_BTD + self.attention(self.attention_norm(hidden_BTD), cache, lengths)
        return hidden_BTD + self.mlp(self.mlp_norm(hidden_BTD))
