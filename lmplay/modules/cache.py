"""The key-value cache of attention, with which generation reads each token once.  Imports torch only.

Shapes: B texts, T new positions, L positions of the cache, H heads, K width of a head.
"""
from __future__ import annotations

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values of every block, for texts of different lengths side by side.

    Each of the `batch` texts has its own length, at most `length` tokens: its next tokens are at positions ``length, length + 1, …``. Texts are padded on the
    right; `keep` says how many of the new tokens belong to each text.
    """

    def __init__(self, batch: int, length: int, device: torch.device):
        self.lengths_B = torch.zeros(batch, dtype=torch.int64, device=device)
        self._length = length
        self._blocks: list[tuple[Tensor, Tensor]] = []
        self._block = 0
        self.positions_BT = self.mask_B1TL = torch.empty(0)

    def begin(self, n_tokens: int) -> None:
        """Prepare for T new tokens of each text; the model calls it before its blocks."""
        self._block = 0
        self.positions_BT = self.lengths_B[:, None] + torch.arange(n_tokens, device=self.lengths_B.device)
        self.mask_B1TL = (torch.arange(self._length, device=self.lengths_B.device) <= self.positions_BT[:, :, None])[:, None]

    def extend(self, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values of the new tokens, block after block, and return those of all positions (B, H, L, K)."""
        if self._block == len(self._blocks):
            shape = (*key_BHTK.shape[:2], self._length, key_BHTK.shape[3])
            self._blocks.append((key_BHTK.new_zeros(shape), value_BHTK.new_zeros(shape)))
        keys, values = self._blocks[self._block]
        self._block += 1
        positions_BHTK = self.positions_BT[:, None, :, None].expand_as(key_BHTK)
        return keys.scatter_(2, positions_BHTK, key_BHTK), values.scatter_(2, positions_BHTK, value_BHTK)

    def keep(self, counts_B: Tensor) -> None:
        """Keep the first tokens of the last T, as many as belong to each text; the rest was padding and will be overwritten."""
        self.lengths_B = self.lengths_B + counts_B
