"""From logits to the next token.  Writing floor.

Shapes: B texts, V vocabulary, T tokens of a text so far.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..data.collate import to_device

# Lower temperatures count as 0: divided by them, logits may exceed float32.
_LEAST_TEMPERATURE = 1e-4
# Tokens whose probabilities are added up first, when one is drawn.
_BLOCK = 256


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen: the fields are applied in this order, then a token is drawn from those that are left.

    `repetition_penalty` divides the positive logits of tokens in the text so far, and multiplies the negative ones (Keskar et al. 2019, "CTRL"); 1 = off.
    `temperature` divides the logits; 0 (or less than 0.0001) = always the most probable token; the fields below have no effect.
    `top_k` keeps the k most probable tokens; 0 = off.
    `top_p` keeps the fewest tokens whose probabilities sum to at least p (Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration"); 1 = off.
    `min_p` keeps tokens at least min_p times as probable as the most probable one (Nguyen et al. 2024, "Turning Up the Heat"); 0 = off.
    """

    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def is_greedy(self) -> bool:
        """Whether it is always the most probable token."""
        return self.temperature < _LEAST_TEMPERATURE

    @property
    def reads_texts(self) -> bool:
        """Whether a token depends on the text so far by more than its logits."""
        return self.repetition_penalty != 1


def choose(logits_BV: Tensor, texts: list[list[int]], sampling: Sampling, draws_B: Tensor) -> Tensor:
    """Choose a token for each text.

    :param logits_BV: of the next token.
    :param texts: the token ids of each text so far, with its prompt; read only where `sampling` reads texts.
    :param draws_B: a number from [0, 1) for each text; the same numbers choose the same tokens, on every device and in every batch.
    :return: token ids (B,), int64; some are on the CPU already.
    """
    logits_BV = logits_BV.float()
    if sampling.reads_texts:
        logits_BV = _penalized(logits_BV, texts, sampling.repetition_penalty)
    if sampling.is_greedy:
        return logits_BV.argmax(1)
    return _drawn(_kept(logits_BV / sampling.temperature, sampling).cpu(), draws_B)  # Apple's GPUs have no float64


def _drawn(probabilities_BV: Tensor, draws_B: Tensor) -> Tensor:
    """Find where the draw of each text lies among its probabilities, one below the other: first the block of tokens, then the token.

    Where the probabilities are NaN, some token of the vocabulary is found.
    Sums are float64, of blocks first: a sum over the whole vocabulary at each token would take longer than a small model.
    """
    size = probabilities_BV.shape[1]
    blocks_BNS = functional.pad(probabilities_BV, (0, -size % _BLOCK)).unflatten(1, (-1, _BLOCK))
    sums_BN = blocks_BNS.sum(2, dtype=torch.float64).cumsum(1)
    targets_B1 = draws_B.to(sums_BN)[:, None] * sums_BN[:, -1:]
    block_B1 = torch.searchsorted(sums_BN, targets_B1, right=True).clamp_(max=sums_BN.shape[1] - 1)
    of_block_BS = blocks_BNS.take_along_dim(block_B1[:, :, None], 1).squeeze(1)
    before_B1 = functional.pad(sums_BN, (1, 0)).gather(1, block_B1)
    inside_B1 = torch.searchsorted(of_block_BS.double().cumsum(1) + before_B1, targets_B1, right=True)
    # A draw at the very end of a block may be rounded past the last token that was kept.
    last_B1 = _BLOCK - 1 - (of_block_BS > 0).flip(1).int().argmax(1, keepdim=True)
    return (block_B1 * _BLOCK + torch.minimum(inside_B1, last_B1)).squeeze(1).clamp_(max=size - 1)


def _penalized(logits_BV: Tensor, texts: list[list[int]], penalty: float) -> Tensor:
    """Make tokens that are in a text less probable."""
    size = logits_BV.shape[1]
    numbers = [row * size + token for row, text in enumerate(texts) for token in sorted(set(text))]
    there = to_device(torch.tensor(numbers, dtype=torch.int64), logits_BV.device)
    values = logits_BV.flatten().index_select(0, there)
    return logits_BV.flatten().index_copy(0, there, torch.where(values > 0, values / penalty, values * penalty)).view_as(logits_BV)


def _kept(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Compute the probabilities after top-k, top-p and min-p; 0 for removed tokens."""
    if sampling.top_k:
        least = logits_BV.topk(min(sampling.top_k, logits_BV.shape[1])).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least, float("-inf"))
    probabilities_BV = logits_BV.softmax(1)
    if sampling.top_p < 1:
        ordered, order = probabilities_BV.sort(descending=True, stable=True)
        before = ordered.cumsum(1) - ordered
        out = torch.zeros_like(ordered, dtype=torch.bool).scatter(1, order, before >= sampling.top_p)
        out.scatter_(1, order[:, :1], False)  # the most probable one stays, whatever p is
        probabilities_BV = probabilities_BV.masked_fill(out, 0)
    if sampling.min_p:
        highest = probabilities_BV.max(1, keepdim=True).values
        probabilities_BV = probabilities_BV.masked_fill(probabilities_BV < sampling.min_p * highest, 0)
    return probabilities_BV
