"""Perplexity and bits per byte of texts.  No tensors here."""
from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..data.beginning import begun
from ..data.continuation import Cutter
from ..errors import UserError
from .models import Judged
from .results import PER_BYTE, Measure, Result
from .sets import DataSet, TextSet, shown
from .windows import Reading, Text, log_probs

# No text is cut: a context that is longer than any.
_ENDLESS = 1 << 40


def judge_texts(model: Judged, data: DataSet, texts: TextSet, reading: Reading) -> Result:
    """Judge a model by texts: each token of a text, and one end token for each, is predicted once.

    :raises UserError: when the tokenizer has no token for any of them.
    """
    tokens: list[int] = []
    n_bytes: list[int] = []
    numbers: list[int] = []
    n_read = 0

    def documents() -> Iterator[Text]:
        nonlocal n_read
        cutter = Cutter(model.tokenizer, _ENDLESS)
        for number, sample in enumerate(shown(texts.samples(), model.label, data)):
            n_read += 1
            for piece in cutter.cut(sample):  # one, or none where the tokenizer has no token for any of it
                piece = begun(piece, model.prompting.begin_id, model.tokenizer)
                counted = np.zeros(len(piece.tokens), dtype=bool)
                counted[piece.n_prompt:] = True if piece.learned is None else piece.learned
                numbers.append(number)
                tokens.append(int(counted.sum()))
                n_bytes.append(len(piece.truth.encode("utf-8", "surrogatepass")) - piece.bytes_lost)
                yield Text(piece.tokens, counted)

    losses = -np.array(log_probs(model, documents(), reading))
    if not len(losses):
        raise UserError(f"{data.label}: holds no text that the tokenizer of {model.label} can write.")
    measures = [Measure("loss", losses, np.array(tokens, dtype=np.float64), "nats per token", False, "perplexity")]
    if sum(n_bytes):
        measures.append(Measure("bits_per_byte", losses / math.log(2), np.array(n_bytes, dtype=np.float64), PER_BYTE, False))
    return Result("texts", data.name, model.label, data.source, {"context": reading.context, "stride": reading.stride, "most": data.most},
                  {"documents": len(losses), "left_out": n_read - len(losses), "tokens": sum(tokens), "bytes": sum(n_bytes)}, tuple(measures),
                  numbers=tuple(numbers))
