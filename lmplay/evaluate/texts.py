"""Perplexity and bits per byte of texts, with a sliding window.  No tensors here."""
from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.continuation import Cutter
from ..data.samples import Sample
from ..errors import UserError
from .models import Judged
from .results import PER_BYTE, Measure, Result
from .sets import DataSet, TextSet, shown

if TYPE_CHECKING:
    from ..writing.scoring import Span

# No text is cut: a context that is longer than any.
_ENDLESS = 1 << 40
# Windows that are held, and sorted by length, at once.
_AT_ONCE = 128


class _Window(NamedTuple):
    """A window over a document, by the number of that, and which of the tokens that it scores are counted."""

    document: int
    span: Span
    counted: NDArray[np.bool_]


def judge_texts(model: Judged, data: DataSet, texts: TextSet, context: int, stride: int, batch_size: int) -> Result:
    """Judge a model by texts: each token of a text, and one end token for each, is predicted once.

    :param context: the most tokens that a token is predicted from.
    :param stride: how far the window moves.
    :param batch_size: windows that go through the model at once.
    """
    from ..writing.scoring import score

    losses, tokens, n_bytes = [], [], []

    def documents() -> Iterator[_Window]:
        cutter = Cutter(model.tokenizer, _ENDLESS)
        for sample in shown(texts.samples(), model.label, data):
            found = _tokens_of(cutter, sample)
            if found is not None:
                ids, counted, length = found
                losses.append(0.0)
                tokens.append(int(counted.sum()))
                n_bytes.append(length)
                yield from _windows(len(losses) - 1, ids, counted, context, stride)

    windows = documents()
    while some := list(islice(windows, _AT_ONCE)):
        for window, scores in zip(some, score(model.module, [one.span for one in some], batch_size), strict=True):
            losses[window.document] -= float(scores.log_probs[window.counted].sum())
    if not losses:
        raise UserError(f"{data.label}: no text that the tokenizer of {model.label} can write.")
    loss = np.array(losses)
    measures = [Measure("loss", loss, np.array(tokens, dtype=np.float64), "nats per token", False, "perplexity")]
    if sum(n_bytes):
        measures.append(Measure("bits_per_byte", loss / math.log(2), np.array(n_bytes, dtype=np.float64), PER_BYTE, False))
    return Result("texts", data.name, model.label, data.source, {"context": context, "stride": stride, "most": data.most},
                  {"documents": len(losses), "tokens": sum(tokens), "bytes": sum(n_bytes)}, tuple(measures))


def _tokens_of(cutter: Cutter, sample: Sample) -> tuple[NDArray[np.int32], NDArray[np.bool_], int] | None:
    """Turn a sample into its tokens, those that are counted, and their bytes; None where the tokenizer has no token for any of it."""
    pieces = cutter.cut(sample)
    if not pieces:
        return None
    piece = pieces[0]
    counted = np.zeros(len(piece.tokens), dtype=bool)
    counted[piece.n_prompt:] = True if piece.learned is None else piece.learned
    return piece.tokens, counted, len(piece.truth.encode("utf-8", "surrogatepass")) - piece.bytes_lost


def _windows(number: int, ids: NDArray[np.int32], counted: NDArray[np.bool_], context: int, stride: int) -> Iterator[_Window]:
    """Cut a document into windows that have something to count."""
    from ..writing.scoring import sliding

    done = 1
    for span in sliding(ids, context, stride):
        wanted = counted[done:done + len(span.tokens) - span.first]
        done += len(wanted)
        if wanted.any():
            yield _Window(number, span, wanted)
