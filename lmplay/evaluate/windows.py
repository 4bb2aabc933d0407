"""How probable texts are to a model, with a sliding window over those that are longer than the context.  No tensors here."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .models import Judged

if TYPE_CHECKING:
    from ..writing.scoring import Span

# Windows that are held, and sorted by length, at once.
_AT_ONCE = 128


class Text(NamedTuple):
    """Tokens, at least one, and which of them are counted; the first is given."""

    ids: NDArray[np.int32]
    counted: NDArray[np.bool_]


class Reading(NamedTuple):
    """How texts are read: the most tokens that a token is predicted from, how far the window moves, and the windows that are read at once."""

    context: int
    stride: int
    batch_size: int


class _Window(NamedTuple):
    """A window over a text, by the number of that, and which of the tokens that it scores are counted."""

    number: int
    span: Span
    counted: NDArray[np.bool_]


def log_probs(model: Judged, texts: Iterable[Text], reading: Reading) -> list[float]:
    """Compute for each text the sum of ln p over its tokens that are counted, each given the tokens before it."""
    from ..writing.scoring import score

    found: list[float] = []
    windows = _windows(texts, found, reading)
    while some := list(islice(windows, _AT_ONCE)):
        for window, scores in zip(some, score(model.module, [one.span for one in some], reading.batch_size), strict=True):
            found[window.number] += float(scores.log_probs[window.counted].sum())
    return found


def _windows(texts: Iterable[Text], found: list[float], reading: Reading) -> Iterator[_Window]:
    """Cut texts into windows that have something to count; `found` gets a zero for each text."""
    from ..writing.scoring import sliding

    for number, text in enumerate(texts):
        found.append(0.0)
        done = 1
        for span in sliding(text.ids, reading.context, reading.stride):
            counted = text.counted[done:done + len(span.tokens) - span.first]
            done += len(counted)
            if counted.any():
                yield _Window(number, span, counted)
