"""Batches to mini-batches of tensors.  Data floor; the first file on the way that needs torch."""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch

from .continuation import Piece
from .judged import Judged

Said = tuple[np.ndarray, np.ndarray]
"""What a teacher says of the truth tokens of a piece: the two parts of :class:`Taught` as arrays."""


class Taught(NamedTuple):
    """What a teacher says of C truth tokens: the ids of the K that it thinks likeliest, the first one most (int64); and R = K + 2 log-probabilities: of these,
    of all other tokens together, and of the truth, the last at the temperature 1."""

    ids_CK: torch.Tensor
    log_probs_CR: torch.Tensor


# Bytes of pinned memory that are tried: more than a mini-batch has.
_PINNED = 1 << 20


@dataclass(frozen=True)
class MiniBatch:
    """What goes through the device at once.

    `tokens_BT` (int64) are the inputs, padded on the right; or, where `seq_lens` are given, one row (B = 1) of pieces of these lengths, each with its own
    padding if any, packed one behind the other. `positions_N` (int64) are the positions in the flattened tokens whose next token is to be learned, `targets_N`
    (int64) those next tokens. `rows` says for each piece its number in the batch and which of the N are its own. `n_padding` counts the slots that are padding.
    `weights_N` (float64, on the CPU) are what their losses count, where the objective has given weights to the pieces. `reference_R` (float64) are the
    log-probabilities that the reference gives to the truth of each piece, where there is one. `judged` is known of each piece where the model has written them.
    `taught` is what a teacher says of the N truth tokens, where there is one. `host` is the mini-batch on the CPU, where this one is on another device: what
    depends on values is worked out there, without waiting for the device.
    """

    tokens_BT: torch.Tensor
    positions_N: torch.Tensor
    targets_N: torch.Tensor
    rows: list[tuple[int, slice]]
    n_padding: int
    seq_lens: tuple[int, ...] | None = None
    weights_N: torch.Tensor | None = None
    reference_R: torch.Tensor | None = None
    judged: list[Judged] | None = None
    taught: Taught | None = None
    host: MiniBatch | None = None

    @property
    def n_slots(self) -> int:
        """Count the tokens that go through the model, padding included."""
        return self.tokens_BT.numel()

    def to(self, device: torch.device) -> MiniBatch:
        """Give the same mini-batch on a device; from pinned memory it is copied without waiting."""
        if device.type == "cpu":
            return self
        mine = (self.tokens_BT, self.positions_N, self.targets_N, *(self.taught or ()))
        tokens_BT, positions_N, targets_N, *taught = (to_device(tensor, device) for tensor in mine)
        return replace(self, tokens_BT=tokens_BT, positions_N=positions_N, targets_N=targets_N, taught=Taught(*taught) if taught else None,
                       host=self)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor from the CPU to a device; to a GPU of NVIDIA from pinned memory, without waiting for it. On the CPU it is the same tensor."""
    if device.type != "cuda" or not can_pin():
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@cache
def can_pin() -> bool:
    """Tell whether memory can be pinned. Some containers and virtual machines (WSL 2) do not allow it; copies to and from a GPU are waited for then."""
    try:
        torch.empty(_PINNED, dtype=torch.uint8).pin_memory()
    except RuntimeError:
        return False
    return True


def collate(pieces: Sequence[Piece], mini_batch_size: int, multiple: int = 1, longest: int | None = None, token_budget: int = 0, packed: bool = False,
            reference: Callable[[Piece], float] | None = None, teacher: Callable[[Piece], Said] | None = None, outlined: bool = False) -> list[MiniBatch]:
    """Sort pieces by length, longest first, and cut them into mini-batches.  The answers of a preference pair follow each other in one mini-batch.

    Sorting changes neither loss nor gradient of the batch and removes most of the padding; the longest come first, so that memory is allocated once.

    :param pieces: the pieces of a batch.
    :param mini_batch_size: the most pieces in a mini-batch, but at least a pair; used without a `token_budget`.
    :param multiple: padded lengths, and those of packed pieces, are rounded up to a multiple of this: compiled code and products in half precision want few
        shapes.
    :param longest: but not beyond this length (the context).
    :param token_budget: the most tokens in a mini-batch, padding included, however many pieces these are; a longer piece has one alone. 0 = not used.
    :param packed: one behind the other, without padding but for `multiple`.
    :param reference: gives the log-probability of a piece's truth by the reference; None = there is none.
    :param teacher: gives what a teacher says of a piece's truth tokens; None = there is none.
    :param outlined: of the right sizes, but empty: their tensors take no memory, see :func:`fill`.
    :return: the mini-batches; all pieces are in exactly one.
    """
    units = sorted(_pairs(pieces), key=lambda unit: (-max(len(pieces[i].tokens) for i in unit), unit[0]))
    order, borders = [i for unit in units for i in unit], list(accumulate(map(len, units)))
    # The last token of a piece is only ever a target.
    widths = [_round_up(len(pieces[number].tokens) - 1, multiple, longest) for number in order]
    mini_batches, start = [], 0
    while start < len(order):
        first = bisect_right(borders, start)
        width = max(widths[start:borders[first]])
        ends = list(accumulate(widths[start:])) if packed else range(width, width * (len(order) - start) + 1, width)
        stop = start + (bisect_right(ends, token_budget) if token_budget else mini_batch_size)
        stop = borders[max(first, bisect_right(borders, stop) - 1)]
        numbers, own = order[start:stop], widths[start:stop] if packed else [width] * (stop - start)
        mini_batches.append(_outline(pieces, numbers, own, packed) if outlined else _collate_one(pieces, numbers, own, packed, reference, teacher))
        start = stop
    return mini_batches


def fill(outline: MiniBatch, pieces: Sequence[Piece]) -> MiniBatch:
    """Make a mini-batch of which only the sizes were known.

    :param outline: as :func:`collate` gave it.
    :param pieces: of the batch; those of this mini-batch are needed.
    """
    widths = [outline.tokens_BT.shape[1]] * len(outline.rows) if outline.seq_lens is None else [*outline.seq_lens]
    return _collate_one(pieces, [number for number, _ in outline.rows], widths, outline.seq_lens is not None, None, None)


def _round_up(length: int, multiple: int, longest: int | None) -> int:
    """Round a length up to a multiple, but not beyond the longest."""
    width = -(-length // multiple) * multiple
    return max(length, min(width, longest or width))


def _pairs(pieces: Sequence[Piece]) -> list[list[int]]:
    """Number the pieces, those of a preference pair together."""
    units: list[list[int]] = []
    for number, piece in enumerate(pieces):
        if piece.preferred is False:
            units[-1].append(number)
        else:
            units.append([number])
    return units


def _collate_one(pieces: Sequence[Piece], numbers: list[int], widths: list[int], packed: bool, reference: Callable[[Piece], float] | None,
                 teacher: Callable[[Piece], Said] | None) -> MiniBatch:
    """Build one mini-batch from the pieces with these numbers, each padded to its width: all widths are equal, unless the pieces are packed."""
    starts = accumulate(widths[:-1], initial=0)
    tokens = np.zeros(sum(widths), dtype=np.int64)
    positions, targets, rows = [], [], []
    begin = 0
    for start, number in zip(starts, numbers, strict=True):
        piece = pieces[number]
        end = start + len(piece.tokens) - 1
        tokens[start:end] = piece.tokens[:-1]
        before_truth = np.arange(start + piece.n_prompt - 1, end)
        truth = piece.tokens[piece.n_prompt:]
        positions.append(before_truth if piece.learned is None else before_truth[piece.learned])
        targets.append(truth if piece.learned is None else truth[piece.learned])
        rows.append((number, slice(begin, begin + len(targets[-1]))))
        begin += len(targets[-1])
    n_tokens = sum(len(pieces[number].tokens) - 1 for number in numbers)
    return MiniBatch(torch.from_numpy(tokens).view(1 if packed else len(numbers), -1), torch.from_numpy(np.concatenate(positions)),
                     torch.from_numpy(np.concatenate(targets).astype(np.int64)), rows, tokens.size - n_tokens, tuple(widths) if packed else None,
                     _weights([pieces[number] for number in numbers]),
                     None if reference is None else torch.tensor([reference(pieces[number]) for number in numbers], dtype=torch.float64),
                     [one for number in numbers if (one := pieces[number].judged) is not None] or None,
                     taught=None if teacher is None else _join([teacher(pieces[number]) for number in numbers]))


def _join(said: Sequence[Said]) -> Taught:
    """Make tensors of what a teacher says of pieces."""
    ids, log_probs = zip(*said, strict=True)
    return Taught(torch.from_numpy(np.concatenate(ids).astype(np.int64)), torch.from_numpy(np.concatenate(log_probs)))


def _outline(pieces: Sequence[Piece], numbers: list[int], widths: list[int], packed: bool) -> MiniBatch:
    """Build an empty mini-batch of the sizes that one of these pieces has, see :func:`_collate_one`: its tensors are one zero that stands in all places."""
    ends = list(accumulate(pieces[number].n_truth for number in numbers))
    rows = [(number, slice(*span)) for number, span in zip(numbers, pairwise((0, *ends)), strict=True)]
    zero = torch.zeros((), dtype=torch.int64)
    tokens_BT, none_N = zero.expand((1, sum(widths)) if packed else (len(numbers), widths[0])), zero.expand(ends[-1])
    n_padding = sum(widths) - sum(len(pieces[number].tokens) - 1 for number in numbers)
    return MiniBatch(tokens_BT, none_N, none_N, rows, n_padding, tuple(widths) if packed else None, _weights([pieces[number] for number in numbers]))


def _weights(pieces: Sequence[Piece]) -> torch.Tensor | None:
    """Give what the losses of the pieces' truth tokens count, as [N]; None where no piece says it."""
    if all(piece.weight is None for piece in pieces):
        return None
    weights = [1.0 if piece.weight is None else piece.weight for piece in pieces]
    return torch.from_numpy(np.repeat(weights, [piece.n_truth for piece in pieces]))
