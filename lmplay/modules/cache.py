"""The key-value cache of attention, with which generation reads each token once.  Imports torch only.

Shapes: B texts, T new positions, L positions of the cache, H heads of keys and values, R heads of queries to each of them, K width of a head.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

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
        self._begin: int | None = 0  # the position of the first new token, where it is that of all texts
        self.positions_BT = torch.empty(0)
        self._mask_B1TL: Tensor | None = None  # what is added to the scores; None: `_is_causal` says what the new tokens attend to
        self._is_causal = False  # with no mask: the new tokens are the first ones, and attend to those before them; else they attend to all

    def begin(self, n_tokens: int) -> None:
        """Prepare for T new tokens of each text; the model calls it before its blocks."""
        self._block = 0
        longest, shortest = max(self._lengths), min(self._lengths)
        self._used = min(self._most, longest + n_tokens)
        self._begin = longest if shortest == longest and longest + n_tokens <= self._most else None
        lengths_B = to_device(torch.tensor(self._lengths), self._device)
        self.positions_BT = lengths_B[:, None] + torch.arange(n_tokens, device=self._device)
        self._is_causal = self._used == n_tokens
        self._mask_B1TL = None
        if not self._is_causal and (n_tokens > 1 or shortest < longest):
            later_BTL = torch.arange(self._used, device=self._device) > self.positions_BT[:, :, None]
            # numbers: of a mask of truth values each block would make them anew
            self._mask_B1TL = torch.zeros(later_BTL.shape, device=self._device).masked_fill_(later_BTL, float("-inf"))[:, None]

    def attend(self, query_BHTK: Tensor, key_BHTK: Tensor, value_BHTK: Tensor, scale: float | None = None) -> Tensor:
        """Store keys and values of the new tokens, block after block, and let each new token attend to those of its text up to its own.

        :param query_BHTK: of H R heads; those that follow each other share keys and values.
        :param scale: of the products of queries and keys; None = 1 / sqrt(K).
        :return: (B, H R, T, K).
        """
        keys_BHLK, values_BHLK = self._extend(key_BHTK, value_BHTK)
        shared = query_BHTK.shape[1] // keys_BHLK.shape[1]
        mask = None if self._mask_B1TL is None else self._mask_B1TL.to(query_BHTK.dtype)
        if shared == 1 or self._is_causal:
            return functional.scaled_dot_product_attention(query_BHTK, keys_BHLK, values_BHLK, mask, is_causal=self._is_causal, scale=scale,
                                                           enable_gqa=shared > 1)
        # R T queries of each head of keys: told that heads share keys, torch would copy all keys for each of them
        together_BHQK = query_BHTK.reshape(len(query_BHTK), keys_BHLK.shape[1], -1, query_BHTK.shape[3])
        mask = mask if mask is None or mask.shape[2] == 1 else mask.repeat(1, 1, shared, 1)
        return functional.scaled_dot_product_attention(together_BHQK, keys_BHLK, values_BHLK, mask, scale=scale).reshape(query_BHTK.shape)

    def keep(self, counts: Sequence[int]) -> None:
        """Keep the first tokens of the last T, as many as belong to each text; the rest was padding and will be overwritten."""
        self._lengths = [length + count for length, count in zip(self._lengths, counts, strict=True)]

    def drop(self, counts: Sequence[int]) -> None:
        """Take back the last tokens of each text; they will be overwritten."""
        self._lengths = [length - count for length, count in zip(self._lengths, counts, strict=True)]

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

    def _extend(self, key_BHTK: Tensor, value_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values of the new tokens of the next block, and return those of all positions in use (B, H, L, K)."""
        if self._block == len(self._blocks):
            self._blocks.append((key_BHTK[:, :, :0], value_BHTK[:, :, :0]))
        if self._blocks[self._block][0].shape[2] < self._used:
            keys, values = self._blocks[self._block]
            self._blocks[self._block] = self._grown(keys), self._grown(values)
        keys, values = self._blocks[self._block]
        self._block += 1
        if self._begin is not None:
            keys[:, :, self._begin:self._used] = key_BHTK
            values[:, :, self._begin:self._used] = value_BHTK
        else:
            positions_BHTK = self.positions_BT[:, None, :, None].expand_as(key_BHTK)
            keys.scatter_(2, positions_BHTK, key_BHTK)
            values.scatter_(2, positions_BHTK, value_BHTK)
        return keys[:, :, :self._used], values[:, :, :self._used]

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
