"""Rotary positions (Su et al. 2021, "RoFormer").  Shapes: B pieces, T positions, L context length, H heads, K width of a head."""
from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import UserError
from .cache import KeyValueCache
from .packed import Lengths, Starts, packed_positions


class RotaryPositions(nn.Module):
    """The angles by which queries and keys are turned: number i of the first half of a head and number i of the second are a point in a plane.

    This is the order of Llama in transformers ("rotate half"). The tables are computed and not saved.
    """

    cosine_LK: Tensor
    sine_LK: Tensor

    def __init__(self, head_dim: int, context_len: int, base: float = 10_000.0):
        """
        :param head_dim: K, even.
        :param context_len: L.
        :param base: the slowest plane turns by 1 / base a position, about.
        :raises UserError: when K is odd, or the base is not above 1.
        """
        super().__init__()
        if head_dim % 2:
            raise UserError(f"rotary positions turn pairs of numbers, and a head of width {head_dim} has an odd number of them; "
                            "choose --embed-dim and --num-heads (or head_dim) so that a head is an even number wide.")
        if not base > 1:
            raise UserError(f"rope_base {base:g}: must be above 1; 10000 is usual.")
        self.base = base
        device = torch.get_default_device()
        with torch.device("cpu"):  # on "meta" torch would import its compiler for a division
            frequencies = 1 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)
            angles = torch.outer(torch.arange(context_len).float(), frequencies)
        self.register_buffer("cosine_LK", torch.cat([angles.cos(), angles.cos()], 1).to(device), persistent=False)
        self.register_buffer("sine_LK", torch.cat([-angles.sin(), angles.sin()], 1).to(device), persistent=False)  # signed, for :func:`rotate`

    def forward(self, tokens_BT: Tensor, cache: KeyValueCache | None = None, lengths: Lengths | None = None) -> tuple[Tensor, Tensor]:
        """Begin to read tokens: look up what :func:`rotate` needs, once for all blocks.

        :param cache: begins with these tokens, at the positions that it gives them.
        :param lengths: of the pieces packed into the only row, each from position 0 on.
        :return: cosine and signed sine: (T, 1, K), with a cache (B, T, 1, K).
        :raises ValueError: when a piece has more tokens than the context length.
        """
        length = check_length(tokens_BT, len(self.cosine_LK), lengths)
        if cache is not None:
            cache.begin(length)
            return self.cosine_LK[cache.positions_BT].unsqueeze(-2), self.sine_LK[cache.positions_BT].unsqueeze(-2)
        if lengths is None:
            return self.cosine_LK[:length, None], self.sine_LK[:length, None]
        positions_T = packed_positions(lengths, tokens_BT.device, tokens_BT.shape[1])
        return self.cosine_LK[positions_T].unsqueeze(-2), self.sine_LK[positions_T].unsqueeze(-2)


def check_length(tokens_BT: Tensor, context_len: int, lengths: Lengths | None) -> int:
    """Return the tokens of the longest piece; raises ValueError when they are more than the context length."""
    length: int = tokens_BT.shape[1] if lengths is None else lengths.longest if isinstance(lengths, Starts) else max(lengths)
    if length > context_len:
        raise ValueError(f"a sequence of {length} tokens is longer than the model's context length of {context_len}")
    return length


def rotate(x_BTHK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries or keys by their positions, in their own type."""
    cosine, sine = (table.to(x_BTHK.dtype) for table in rotation)
    return torch.addcmul(x_BTHK * cosine, x_BTHK.roll(x_BTHK.shape[-1] // 2, -1), sine)
