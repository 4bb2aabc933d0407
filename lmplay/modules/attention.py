"""Attention.  Shapes: B pieces, T positions, D embedding width, H heads, K width of a head."""
from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import UserError
from .cache import KeyValueCache


class CausalSelfAttention(nn.Module):
    """Causal multi-head attention: a position attends to itself and those before it; one linear layer computes query, key and value.

    During training `dropout` is the probability of dropping an attention weight, and an output. Raises UserError when `num_heads` does not divide `embed_dim`.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        check_heads(embed_dim, num_heads)
        self.num_heads = num_heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(embed_dim, 3 * embed_dim)
        self.projection = nn.Linear(embed_dim, embed_dim)
        self.residual_dropout = nn.Dropout(dropout)

    def forward(self, hidden_BTD: Tensor, cache: KeyValueCache | None = None, lengths: tuple[int, ...] | None = None) -> Tensor:
        """Attend.  Pieces are padded on the right, where no real position attends to: the causal mask is the only one.

        :param hidden_BTD: normalized hidden states.
        :param cache: keys and values of the positions before these, in generation.
        :param lengths: in tokens, of the pieces packed into the T positions of the only row; none attends to another. None = each row is a piece.
        :return: the addition to the residual stream (B, T, D).
        """
        query_key_value = self.query_key_value(hidden_BTD)
        if lengths is None:
            mixed_BTD = self._mix(query_key_value, cache)
        else:  # neighbours of equal length as one batch; split and cat, because the gradient of a slice would be as large as the whole tensor
            runs = [(length, len(list(run))) for length, run in groupby(lengths)]
            parts = query_key_value[0].split([length * count for length, count in runs])
            mixed = [self._mix(part.unflatten(0, (count, length))).flatten(0, 1) for part, (length, count) in zip(parts, runs, strict=True)]
            mixed_BTD = torch.cat(mixed)[None]
        return self.residual_dropout(self.projection(mixed_BTD))

    def _mix(self, query_key_value: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Attend within each row: (B, T, 3 D) -> (B, T, D)."""
        query_BHTK, key_BHTK, value_BHTK = query_key_value.unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        if cache is None:
            mixed_BHTK = functional.scaled_dot_product_attention(query_BHTK, key_BHTK, value_BHTK, dropout_p=dropout, is_causal=True)
        else:
            mixed_BHTK = functional.scaled_dot_product_attention(query_BHTK, *cache.extend(key_BHTK, value_BHTK), attn_mask=cache.mask_B1TL)
        return mixed_BHTK.transpose(1, 2).flatten(2)


def check_heads(embed_dim: int, num_heads: int) -> None:
    """Raise a UserError where the number of heads does not divide the width, with the nearest values of both that fit."""
    if embed_dim % num_heads == 0:
        return
    below = embed_dim // num_heads * num_heads
    widths = " or ".join(str(width) for width in (below, below + num_heads) if width)
    divisors = [number for number in range(1, embed_dim + 1) if embed_dim % number == 0]
    nearest = [number for number in divisors if number < num_heads][-1:] + [number for number in divisors if number > num_heads][:1]
    heads = " or ".join(map(str, nearest))
    raise UserError(f"--embed-dim {embed_dim}, --num-heads {num_heads}: the width must be a multiple of the number of heads; "
                    f"choose --embed-dim {widths}, or --num-heads {heads}.")
