"""Embeddings that are predicted while training.  Shapes: B pieces, T positions, D width, F width of the front table, V vocabulary."""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import UserError

# Root mean square of gelu(x) for x ~ N(0, 1).
_GELU_SCALE = 0.652


class UnifiedEmbedding(nn.Module):
    """Token embeddings that a small network predicts from a front table: linear, GELU, linear.

    A step changes the network, and with it the embeddings of all tokens; a table alone learns of a rare token only where it occurs. After training the
    network is not needed: :meth:`table` is a plain table of what it predicts. These are the "unified embeddings" of J. Ward
    (github.com/jmward01/lmplay), who saw front tables of 8 and 16 times the width learn faster than plain ones. Below 1 the front table is smaller than a
    plain table.
    """

    def __init__(self, vocab_size: int, embed_dim: int, front_factor: float = 8.0, std: float = 0.02):
        """
        :param front_factor: F / D.
        :param std: standard deviation of the embeddings of a fresh model.
        :raises UserError: when F would be less than 1.
        """
        front_dim = int(embed_dim * front_factor)
        if front_dim < 1:
            raise UserError(f"front_factor {front_factor:g}: the front table must be at least 1 number wide; choose {1 / embed_dim:g} or more.")
        super().__init__()
        self.front = nn.Embedding(vocab_size, front_dim)
        self.expansion = nn.Linear(front_dim, embed_dim)
        self.projection = nn.Linear(embed_dim, embed_dim)
        nn.init.normal_(self.front.weight)
        nn.init.normal_(self.expansion.weight, std=front_dim**-0.5)
        nn.init.normal_(self.projection.weight, std=std / _GELU_SCALE * embed_dim**-0.5)
        nn.init.zeros_(self.expansion.bias)
        nn.init.zeros_(self.projection.bias)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Predict the embeddings of tokens (B, T, D)."""
        if tokens_BT.device.type != "cpu" or torch.compiler.is_compiling():  # how many tokens differ is not known there
            return self._predict(self.front(tokens_BT))
        tokens_U, places_BT = tokens_BT.unique(return_inverse=True)
        return functional.embedding(places_BT, self._predict(self.front(tokens_U)))

    @torch.no_grad()
    def table(self) -> Tensor:
        """Predict the embeddings of all tokens (V, D)."""
        return torch.cat([self._predict(part) for part in self.front.weight.split(4096)])

    def _predict(self, front: Tensor) -> Tensor:
        predicted: Tensor = self.projection(functional.gelu(self.expansion(front)))
        return predicted
