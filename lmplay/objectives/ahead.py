"""Which truth tokens come later in the same piece, for heads that predict more than the next one.  Math floor."""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..data.collate import MiniBatch


def find_later(mini_batch: MiniBatch, distance: int) -> tuple[Tensor, Tensor]:
    """Pair each truth token with the one that is `distance` tokens later, where it and all between are truth of the same piece.

    They are looked for on the CPU: how many there are decides a shape, and a device would have to be waited for.

    :param distance: at least 1.
    :return: indices among the mini-batch's N truth tokens, on the CPU: of the earlier ones, and of the later ones.
    """
    positions_N = (mini_batch.host or mini_batch).positions_N
    ends = np.concatenate([np.full(where.stop - where.start, where.stop) for _, where in mini_batch.rows]) if mini_batch.rows else np.empty(0, np.int64)
    inside = torch.from_numpy(np.arange(len(ends)) + distance < ends)[:max(0, len(ends) - distance)]
    # between the answers of a chat there are tokens that nobody could know
    joined = positions_N[distance:] - positions_N[:max(0, len(positions_N) - distance)] == distance
    here = (inside & joined).nonzero().squeeze(1)
    return here, here + distance
