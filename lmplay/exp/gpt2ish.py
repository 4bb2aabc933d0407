"""The GPT-2 family: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".  Shapes: B pieces, T positions, D width, V vocabulary."""
from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..modules.attention import CausalSelfAttention
from ..modules.blocks import NORM_EPSILON, PreNormBlock
from ..modules.cache import KeyValueCache
from ..modules.checks import check_sizes
from ..modules.mlps import Mlp
from ..modules.positions import check_length


class GPT2ish(nn.Module):
    """Pre-norm transformer with learned positions and fresh weights; with GPT-2's weights it computes GPT-2's logits."""

    def __init__(self, vocab_size: int, context_len: int, num_blocks: int, embed_dim: int, num_heads: int, dropout: float = 0.1, tied_head: bool = True):
        """
        :param context_len: the longest sequence, in tokens.
        :param embed_dim: D, a multiple of `num_heads`.
        :param dropout: share of embeddings, attention weights and outputs of blocks that is dropped during training; 0.1 is GPT-2's.
        :param tied_head: the head's weight is the token embedding's.
        :raises UserError: when a size is not a positive number, or the heads don't divide the width.
        """
        super().__init__()
        check_sizes(vocab_size, context_len, num_blocks, embed_dim, num_heads, dropout)
        self.context_len = context_len
        self.token_embedding: nn.Module = nn.Embedding(vocab_size, embed_dim)
        self.position_embedding = nn.Embedding(context_len, embed_dim)
        self.embedding_dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            PreNormBlock(embed_dim, self._make_attention(embed_dim, num_heads, dropout), Mlp(embed_dim, dropout)) for _ in range(num_blocks))
        self.final_norm = nn.LayerNorm(embed_dim, NORM_EPSILON)
        # on "meta" the weight that a tied head does not need takes neither memory nor random numbers
        self.head = nn.Linear(embed_dim, vocab_size, bias=False, device="meta" if tied_head else None)
        if tied_head:
            self.head.weight = self.token_embedding.get_parameter("weight")
        self._initialize(num_blocks)

    def forward(self, tokens_BT: Tensor, cache: KeyValueCache | None = None, lengths: tuple[int, ...] | None = None) -> Tensor:
        """Read tokens.

        :param tokens_BT: token ids, right-padded (no position sees a later one, so padding needs no mask).
        :param cache: in generation, the keys and values of the tokens before these; those of these tokens are added.
        :param lengths: where B is 1: in tokens, of the pieces packed into this row, each read as if it were alone.
        :return: hidden states after the final norm (B, T, D); ``head(hidden)`` are the logits (B, T, V).
        :raises ValueError: when a piece has more tokens than the context length.
        """
        length = check_length(tokens_BT, self.context_len, lengths)
        if cache is not None:
            cache.begin(length)
            positions = self.position_embedding(cache.positions_BT)
        elif lengths is not None:
            positions = self.position_embedding(torch.cat([torch.arange(length, device=tokens_BT.device) for length in lengths]))
        else:
            positions = self.position_embedding.weight[:length]
        hidden_BTD = self.embedding_dropout(self.token_embedding(tokens_BT) + positions)
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD, cache, lengths)
        return self.final_norm(hidden_BTD)

    def _make_attention(self, embed_dim: int, num_heads: int, dropout: float) -> CausalSelfAttention:
        """Make the attention of a block."""
        return CausalSelfAttention(embed_dim, num_heads, dropout)

    def _initialize(self, num_blocks: int) -> None:
        """Draw weights as GPT-2 does: N(0, 0.02), with a smaller deviation in the 2 * num_blocks layers that add to the residual stream; biases are 0."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.endswith("projection.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * num_blocks))
            elif "norm" not in name:
                nn.init.normal_(parameter, std=0.02)
