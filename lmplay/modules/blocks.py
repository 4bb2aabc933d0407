"""Transformer blocks.  Shapes: B pieces, T positions, D embedding width."""
from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from .attention import CausalSelfAttention
from .cache import KeyValueCache
from .packed import Lengths

NORM_EPSILON = 1e-5  # the value of GPT-2, and torch's default; written here because logits depend on it


def layer_norm(embed_dim: int) -> nn.Module:
    """Make GPT-2's norm."""
    return nn.LayerNorm(embed_dim, NORM_EPSILON)


class PreNormBlock(nn.Module):
    """Attention, then an MLP; each reads the normalized residual stream and adds to the stream."""

    def __init__(self, embed_dim: int, attention: CausalSelfAttention, mlp: nn.Module, norm: Callable[[int], nn.Module] = layer_norm):
        """
        :param norm: makes a norm of a width.
        """
        super().__init__()
        self.attention_norm = norm(embed_dim)
        self.attention = attention
        self.mlp_norm = norm(embed_dim)
        self.mlp = mlp

    def forward(self, hidden_BTD: Tensor, cache: KeyValueCache | None = None, lengths: Lengths | None = None,
                rotation: tuple[Tensor, Tensor] | None = None, other_values: Tensor | None = None) -> Tensor:
        """Pass the residual stream (B, T, D) through the block; the other arguments as in :class:`CausalSelfAttention`."""
        hidden_BTD = hidden_BTD + self.attention(self.attention_norm(hidden_BTD), cache, lengths, rotation, other_values)
        return hidden_BTD + self.mlp(self.mlp_norm(hidden_BTD))
