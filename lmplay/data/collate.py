"""Batches to mini-batches of tensors.  Data floor; the first file on the way that needs torch."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .continuation import Piece


@dataclass(frozen=True)
class MiniBatch:
    """What goes through the device at once.

    `tokens` [B, T] are the inputs, padded on the right; `positions` [N] are the places in the flattened [B*T] whose next token is to be learned,
    `targets` [N] those tokens. `rows` says for each piece its number in the batch and where its truth lies in the N positions. `n_padding` counts
    padded places.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    rows: list[tuple[int, slice]]
    n_padding: int

    def to(self, device: torch.device) -> MiniBatch:
        """Give the same mini-batch on a device; the copy does not wait where memory is pinned."""
        if device.type == "cpu":
            return self
        tensors = (tensor.pin_memory() if device.type == "cuda" else tensor for tensor in (self.tokens, self.positions, self.targets))
        tokens, positions, targets = (tensor.to(device, non_blocking=True) for tensor in tensors)
        return MiniBatch(tokens, positions, targets, self.rows, self.n_padding)


def collate(pieces: Sequence[Piece], mini_batch_size: int, multiple: int = 1, most: int | None = None) -> list[MiniBatch]:
    """Sort pieces by length, longest first, and cut them into padded mini-batches.

    Sorting changes neither loss nor gradient of the batch and removes most of the padding; the longest first, so that memory is claimed once.

    :param pieces: the pieces of a batch.
    :param mini_batch_size: the most pieces in a mini-batch.
    :param multiple: lengths are rounded up to a multiple of this (compiled code likes few shapes).
    :param most: but not beyond this length (the context).
    :return: the mini-batches; all pieces are in exactly one.
    """
    order = sorted(range(len(pieces)), key=lambda i: (-len(pieces[i].tokens), i))
    return [_collate_one(pieces, order[start:start + mini_batch_size], multiple, most) for start in range(0, len(order), mini_batch_size)]


def _collate_one(pieces: Sequence[Piece], numbers: list[int], multiple: int, most: int | None) -> MiniBatch:
    """Build one mini-batch from the pieces with these numbers, longest first."""
    # The last token of a piece is only ever a target.
    longest = len(pieces[numbers[0]].tokens) - 1
    width = -(-longest // multiple) * multiple
    width = max(longest, min(width, most or width))
    tokens = np.zeros((len(numbers), width), dtype=np.int64)
    positions, targets, rows = [], [], []
    begin = 0
    for row, number in enumerate(numbers):
        piece = pieces[number]
        tokens[row, :len(piece.tokens) - 1] = piece.tokens[:-1]
        places = np.arange(row * width + piece.n_prompt - 1, row * width + len(piece.tokens) - 1)
        truth = piece.tokens[piece.n_prompt:]
        positions.append(places if piece.learned is None else places[piece.learned])
        targets.append(truth if piece.learned is None else truth[piece.learned])
        rows.append((number, slice(begin, begin + len(targets[-1]))))
        begin += len(targets[-1])
    real = sum(len(pieces[number].tokens) - 1 for number in numbers)
    return MiniBatch(torch.from_numpy(tokens), torch.from_numpy(np.concatenate(positions)),
                     torch.from_numpy(np.concatenate(targets).astype(np.int64)), rows, tokens.size - real)
