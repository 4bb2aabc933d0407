"""A rough copy of a model that guesses what the model will write, for generation on a CPU.  Writing floor: imports torch only.

A step of generation takes as long as it takes to read the weights. With weights of a byte each a token takes about a quarter of that, and it is mostly the one
that the model itself would write; the model reads several guesses in about the time of one token.
"""
from __future__ import annotations

import torch
from torch import Tensor, nn

from .packed import linear_layers, with_layers

# The most texts side by side for which guesses pay: with more, products take longer than reading the weights.
MOST_TEXTS = 4
# The most guesses, and the most rows that the model then reads: a token of each text, and its guesses.
_MOST_GUESSES, _MOST_ROWS = 7, 16
# Times in those of the model with one row (`benchmarks/generate.py`): a guess, and what each further row of the model adds.
_GUESS, _ROW = 0.3, 0.05
# The share of right ones among about the last N guesses is taken for that of the next, and this one before there are any.
_MEMORY, _FIRST = 32, 0.8
# Tokens without guesses, where they do not pay, before some are tried again.
_REST = 64
# Fewer weights (48 MB in float32) are read from the processor's cache, or so fast that calling the operators takes longer.
_FEWEST_WEIGHTS = 12_000_000
# The weights that a kernel reads at once.
_MULTIPLE = 16


class Pace:
    """How many tokens are guessed at a time: as many as would have been fastest with the share of right guesses so far."""

    def __init__(self) -> None:
        self._right, self._wrong = _FIRST * _MEMORY / 4, (1 - _FIRST) * _MEMORY / 4
        self._rest = 0

    def guesses(self, texts: int, room: int) -> int:
        """Say how many tokens to guess of each of B texts, at most `room`."""
        most = min(room, _MOST_GUESSES, _MOST_ROWS // texts - 1)
        if texts > MOST_TEXTS or most < 1:
            return 0
        if self._rest:
            self._rest -= 1
            return 0
        best = max(range(most + 1), key=lambda count: self._tokens(count) / _time(texts, count))
        if not best:
            self._rest, self._right, self._wrong = _REST, _FIRST, 1 - _FIRST  # then a few guesses decide
        return best

    def learn(self, right: int, wrong: int) -> None:
        """Take in how many guesses were right, and how many were the first wrong one."""
        kept = max(0.0, 1 - (right + wrong) / _MEMORY)
        self._right, self._wrong = kept * self._right + right, kept * self._wrong + wrong

    def _tokens(self, count: int) -> float:
        """Give the mean number of tokens of a step with so many guesses."""
        share = self._right / (self._right + self._wrong)
        return sum(share**number for number in range(count + 1))


def _time(texts: int, count: int) -> float:
    """Give the time of a step with so many guesses of each text."""
    return 1 + _ROW * (texts * (count + 1) - 1) + count * (_GUESS + _ROW * (texts - 1))


class _RoughLinear(nn.Linear):
    """A linear layer with weights of a byte each: of an output they are its largest weight times -127/127 to 127/127."""

    rough: Tensor
    scales: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """See torch."""
        # in bfloat16, because the kernel for float32 is slower than that of exact weights
        product: Tensor = torch.ops.aten._weight_int8pack_mm(x.reshape(-1, x.shape[-1]).bfloat16(), self.rough, self.scales).to(x.dtype)
        return (product if self.bias is None else product.add_(self.bias)).view(*x.shape[:-1], -1)


@torch.no_grad()
def make_draft(model: nn.Module, free_bytes: int, fewest_weights: int = _FEWEST_WEIGHTS) -> nn.Module | None:
    """Make a copy of a model with rough weights in its linear layers; all else is shared with the model.

    It takes a quarter of the memory of these weights.

    :param model: of any kind. It is not changed, and must not be while the copy is used.
    :param free_bytes: memory that may be used.
    :param fewest_weights: of a model for which a copy is made.
    :return: the copy, not to be trained; None where nothing is gained, or where the memory is too small.
    """
    layers = {name: layer for name, layer in linear_layers(model).items() if layer.weight.shape[1] % _MULTIPLE == 0}
    size = sum(layer.weight.numel() + 4 * len(layer.weight) for layer in layers.values())
    if size < fewest_weights or size > free_bytes:
        return None

    def make_rough(layer: _RoughLinear) -> None:
        scales = layer.weight.abs().amax(1).div_(127).clamp_(min=torch.finfo(torch.float32).tiny).bfloat16()
        layer.rough, layer.scales = (layer.weight / scales[:, None]).round_().clamp_(-127, 127).to(torch.int8), scales

    return with_layers(model, layers, _RoughLinear, make_rough)
