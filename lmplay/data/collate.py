"""Batches to mini-batches of tensors.  Data floor; the first file on the way that needs torch."""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from .continuation import Piece


@dataclass(frozen=True)
class MiniBatch:
    """What goes through the device at once.

    `tokens` [B, T] are the inputs, padded on the right; or, where `lengths` are given, [1, T]: pieces of these lengths one behind the other.
    `positions` [N] are the places in the flattened tokens whose next token is to be learned, `targets` [N] those tokens. `rows` says for each piece its
    number in the batch and where its truth lies in the N positions. `n_padding` counts padded places.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    rows: list[tuple[int, slice]]
    n_padding: int
    lengths: tuple[int, ...] | None = None

    def to(self, device: torch.device) -> MiniBatch:
        """Give the same mini-batch on a device; the copy does not wait where memory is pinned."""
        if device.type == "cpu":
            return self
        tensors = (tensor.pin_memory() if device.type == "cuda" else tensor for tensor in (self.tokens, self.positions, self.targets))
        tokens, positions, targets = (tensor.to(device, non_blocking=True) for tensor in tensors)
        return MiniBatch(tokens, positions, targets, self.rows, self.n_padding, self.lengths)


def collate(pieces: Sequence[Piece], mini_batch_size: int, multiple: int = 1, most: int | None = None, room: int = 0, joined: bool = False) \
        -> list[MiniBatch]:
    """Sort pieces by length, longest first, and cut them into mini-batches.

    Sorting changes neither loss nor gradient of the batch and removes most of the padding; the longest first, so that memory is claimed once.

    :param pieces: the pieces of a batch.
    :param mini_batch_size: the most pieces in a mini-batch, where it has no `room`.
    :param multiple: padded lengths are rounded up to a multiple of this (compiled code likes few shapes).
    :param most: but not beyond this length (the context).
    :param room: as many pieces as fit in so many tokens, with padding, however many these are; one that is longer has a mini-batch alone. 0 = not used.
    :param joined: one behind the other, without padding.
    :return: the mini-batches; all pieces are in exactly one.
    """
    order = sorted(range(len(pieces)), key=lambda i: (-len(pieces[i].tokens), i))
    # The last token of a piece is only ever a target.
    lengths = [len(pieces[number].tokens) - 1 for number in order]
    mini_batches, start = [], 0
    while start < len(order):
        width = -(-lengths[start] // multiple) * multiple
        width = max(lengths[start], min(width, most or width))
        ends = list(accumulate(lengths[start:])) if joined else range(width, width * (len(order) - start) + 1, width)
        stop = start + (max(1, bisect_right(ends, room)) if room else mini_batch_size)
        mini_batches.append(_collate_one(pieces, order[start:stop], None if joined else width))
        start = stop
    return mini_batches


def _collate_one(pieces: Sequence[Piece], numbers: list[int], width: int | None) -> MiniBatch:
    """Build one mini-batch from the pieces with these numbers: padded to a width, or joined."""
    lengths = [len(pieces[number].tokens) - 1 for number in numbers]
    starts = list(accumulate(lengths[:-1], initial=0)) if width is None else list(range(0, len(numbers) * width, width))
    tokens = np.zeros(sum(lengths) if width is None else len(numbers) * width, dtype=np.int64)
    positions, targets, rows = [], [], []
    begin = 0
    for start, number in zip(starts, numbers, strict=True):
        piece = pieces[number]
        end = start + len(piece.tokens) - 1
        tokens[start:end] = piece.tokens[:-1]
        places = np.arange(start + piece.n_prompt - 1, end)
        truth = piece.tokens[piece.n_prompt:]
        positions.append(places if piece.learned is None else places[piece.learned])
        targets.append(truth if piece.learned is None else truth[piece.learned])
        rows.append((number, slice(begin, begin + len(targets[-1]))))
        begin += len(targets[-1])
    return MiniBatch(torch.from_numpy(tokens).view(1 if width is None else len(numbers), -1), torch.from_numpy(np.concatenate(positions)),
                     torch.from_numpy(np.concatenate(targets).astype(np.int64)), rows, tokens.size - sum(lengths), tuple(lengths) if width is None else None)
