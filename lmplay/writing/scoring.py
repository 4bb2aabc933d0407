"""The probabilities that a model gives to texts.  Writing floor: imports torch only.

Shapes: B spans, T positions, D width, N scored tokens, V vocabulary.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

# Logits that are held at once: of a large vocabulary one position has 200,000 of them.
_MOST_LOGITS = 1 << 25


@dataclass(frozen=True)
class Span:
    """Tokens of a text that the model reads at once; those from `first`, at least 1, are scored, each given all before it."""

    tokens: NDArray[np.int32]
    first: int


@dataclass(frozen=True)
class Scores:
    """Of each scored token of a span ln p, and whether it was the most probable one; both (N,)."""

    log_probs: NDArray[np.float64]
    greedy: NDArray[np.bool_]


def sliding(tokens: NDArray[np.int32], context_len: int, stride: int) -> Iterator[Span]:
    """Cut a text into spans of which each token but the first is scored once.

    The first span scores all of its tokens; each further one begins `stride` tokens later and scores those that the one before did not reach, so
    each is given at least `context_len` - `stride` tokens, or all there are.

    :param tokens: of the text.
    :param context_len: the most tokens that a token is predicted from.
    :param stride: from 1 to `context_len`.
    """
    begin, done = 0, 1
    while done < len(tokens):
        end = min(begin + context_len + 1, len(tokens))
        yield Span(tokens[begin:end], done - begin)
        begin, done = begin + stride, end


@torch.inference_mode()
def score(model: nn.Module, spans: Sequence[Span], batch_size: int) -> list[Scores]:
    """Score spans, in float32; puts the model into evaluation mode.

    :param model: see :mod:`lmplay.exp`.
    :param spans: at most one token longer than the model's context each.
    :param batch_size: the spans that go through the model at once, those of similar length together.
    """
    model.eval()
    device = next(model.parameters()).device
    order = sorted(range(len(spans)), key=lambda number: len(spans[number].tokens))
    found: dict[int, Scores] = {}
    for begin in range(0, len(order), batch_size):
        numbers = order[begin:begin + batch_size]
        scores = _score_batch(model, [spans[number] for number in numbers], device)
        found.update(zip(numbers, scores, strict=True))
    return [found[number] for number in range(len(spans))]


def _score_batch(model: nn.Module, spans: Sequence[Span], device: torch.device) -> list[Scores]:
    """Score spans that go through the model at once."""
    head, width = model.get_submodule("head"), max(len(span.tokens) for span in spans) - 1
    tokens_BT = np.zeros((len(spans), width), dtype=np.int64)
    for row, span in zip(tokens_BT, spans, strict=True):
        row[:len(span.tokens) - 1] = span.tokens[:-1]
    hidden_BTD = model(torch.from_numpy(tokens_BT).to(device))
    hidden_ND = torch.cat([row[span.first - 1:len(span.tokens) - 1] for row, span in zip(hidden_BTD, spans, strict=True)])
    wanted_N = torch.from_numpy(np.concatenate([span.tokens[span.first:] for span in spans]).astype(np.int64)).to(device)
    losses, greedy, at_once = [], [], 256
    while hidden_ND.shape[0]:
        logits_NV = head(hidden_ND[:at_once]).float()
        wanted = wanted_N[:at_once]
        losses.append(functional.cross_entropy(logits_NV, wanted, reduction="none").cpu().numpy().astype(np.float64))
        greedy.append((logits_NV.argmax(1) == wanted).cpu().numpy())
        hidden_ND, wanted_N = hidden_ND[at_once:], wanted_N[at_once:]
        at_once = max(1, _MOST_LOGITS // logits_NV.shape[1])
    places = np.cumsum([len(span.tokens) - span.first for span in spans])[:-1]
    empty = np.zeros(0)
    return [Scores(-loss, right) for loss, right in zip(np.split(np.concatenate(losses or [empty]), places),
                                                       np.split(np.concatenate(greedy or [empty.astype(bool)]), places), strict=True)]
