"""The key-value cache of attention, with which generation reads each token once.  Imports torch only.

Shapes: B texts, T new positions, L positions of the cache, H heads, K width of a head.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data.collate import to_device


class KeyValueCache:
    """Keys and values of every block, for texts of different lengths side by side.

    Each of the `batch` texts has its own length, at most `length` tokens: its next tokens are at positions ``length, length + 1, …``. Texts are padded on the
    right; `keep` says how many of the new tokens belong to each text. Only the positions up to the longest text are attended to, and stored, so that a token
    costs what the texts are long, not what the context is.
    """

    def __init__(self, batch: int, length: int, device: torch.device):
        self._lengths = [0] * batch
        self._most, self._device = length, device
        self._used = 0  # positions up to the end of the longest text and its new tokens
        self._blocks: list[tuple[Tensor, Tensor]] = []
        self._block = 0
        self.positions_BT = torch.empty(0)
        self.mask_B1TL: Tensor | None = None
        """Which positions the new tokens attend to; None: `is_causal` says it."""
        self.is_causal = False
        """With no mask: the new tokens are the first ones, and attend to those before them; else they attend to all."""

    def begin(self, n_tokens: int) -> None:
        """Prepare for T new tokens of each text; the model calls it before its blocks."""
        self._block = 0
        self._used = min(self._most, max(self._lengths) + n_tokens)
        lengths_B = to_device(torch.tensor(self._lengths), self._device)
        self.positions_BT = lengths_B[:, None] + torch.arange(n_tokens, device=self._device)
        self.is_causal = self._used == n_tokens
        self.mask_B1TL = None
        if not self.is_causal and (n_tokens > 1 or min(self._lengths) < max(self._lengths)):
            self.mask_B1TL = (torch.arange(self._used, device=self._device) <= self.positions_BT[:, :, None])[:, None]

    def extend(self, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values of the new tokens, block after block, and return those of all positions in use (B, H, L, K)."""
        if self._block == len(self._blocks):
            self._blocks.append((key_BHTK[:, :, :0], value_BHTK[:, :, :0]))
        if self._blocks[self._block][0].shape[2] < self._used:
            keys, values = self._blocks[self._block]
            self._blocks[self._block] = self._grown(keys), self._grown(values)
        keys, values = self._blocks[self._block]
        self._block += 1
        positions_BHTK = self.positions_BT[:, None, :, None].expand_as(key_BHTK)
        keys.scatter_(2, positions_BHTK, key_BHTK)
        values.scatter_(2, positions_BHTK, value_BHTK)
        return keys[:, :, :self._used], values[:, :, :self._used]

    def keep(self, counts: Sequence[int]) -> None:
        """Keep the first tokens of the last T, as many as belong to each text; the rest was padding and will be overwritten."""
        self._lengths = [length + count for length, count in zip(self._lengths, counts, strict=True)]

    def joined(self, other: KeyValueCache) -> KeyValueCache:
        """Make a cache of the texts of this and of another; what is shorter is filled up with zeros, which nothing attends to."""
        both = KeyValueCache(0, self._most, self._device)
        both._lengths = [*self._lengths, *other._lengths]
        both._blocks = [(_below(one[0], two[0]), _below(one[1], two[1])) for one, two in zip(self._blocks, other._blocks, strict=True)]
        return both

    def selected(self, rows: Sequence[int]) -> KeyValueCache:
        """Make a cache of some of the texts, at least one."""
        some = KeyValueCache(0, self._most, self._device)
        some._lengths = [self._lengths[row] for row in rows]
        most, rows_B = max(some._lengths), to_device(torch.tensor(rows), self._device)
        some._blocks = [(keys_BHLK[:, :, :most].index_select(0, rows_B), values_BHLK[:, :, :most].index_select(0, rows_B))
                        for keys_BHLK, values_BHLK in self._blocks]
        return some

    def _grown(self, kept_BHLK: Tensor) -> Tensor:
        """Copy what is stored to a tensor with space for half as many positions again as are needed now."""
        batch, heads, length, width = kept_BHLK.shape
        grown = kept_BHLK.new_zeros((batch, heads, min(self._most, self._used + self._used // 2 + 64), width))
        grown[:, :, :length] = kept_BHLK
        return grown


def _below(one_BHLK: Tensor, two_BHLK: Tensor) -> Tensor:
    """Put the texts of the second tensor below those of the first."""
    batch, heads, _, width = one_BHLK.shape
    both = one_BHLK.new_zeros((batch + len(two_BHLK), heads, max(one_BHLK.shape[2], two_BHLK.shape[2]), width))
    both[:batch, :, :one_BHLK.shape[2]] = one_BHLK
    both[batch:, :, :two_BHLK.shape[2]] = two_BHLK
    return both
