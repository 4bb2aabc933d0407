"""Transformer blocks.  Shapes: B pieces, T positions, D embedding width."""
from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from .attention import CausalSelfAttention
from .cache import KeyValueCache

NORM_EPSILON = 1e-5  # the value of GPT-2, and torch's default; written here because logits depend on it


class Mlp(nn.Module):
    """Two linear layers with a GELU (tanh approximation, as in GPT-2) between them, and dropout of outputs; the hidden width is 4 D."""

    def __init__(self, embed_dim: int, dropout: float = 0.0):
        super().__init__()
        self.expansion = nn.Linear(embed_dim, 4 * embed_dim)
        self.projection = nn.Linear(4 * embed_dim, embed_dim)
        self.residual_dropout = nn.Dropout(dropout)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Compute the addition to the residual stream, for each position alone: (B, T, D) -> (B, T, D)."""
        return self.residual_dropout(self.projection(functional.gelu(self.expansion(hidden_BTD), approximate="tanh")))


class PreNormBlock(nn.Module):
    """Attention, then an MLP, both with dropout; each reads the normalized residual stream and adds to the stream."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        self.attention_norm = nn.LayerNorm(embed_dim, NORM_EPSILON)
        self.attention = CausalSelfAttention(embed_dim, num_heads, dropout)
        self.mlp_norm = nn.LayerNorm(embed_dim, NORM_EPSILON)
        self.mlp = Mlp(embed_dim, dropout)

    def forward(self, hidden_BTD: Tensor, cache: KeyValueCache | None = None, lengths: tuple[int, ...] | None = None) -> Tensor:
        """Pass the residual stream (B, T, D) through the block; `cache` and `lengths` as in :class:`CausalSelfAttention`."""
        hidden_BTD = hidden_BTD + self.attention(self.attention_norm(hidden_BTD), cache, lengths)
        return hidden_BTD + self.mlp(self.mlp_norm(hidden_BTD))
