"""Perplexity and bits per byte of texts.  No tensors here."""
from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..data.chat import choose_template
from ..data.continuation import Cutter, Piece
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
                ids = _begun(model, piece)
                counted = np.zeros(len(ids), dtype=bool)
                counted[len(ids) - len(piece.tokens) + piece.n_prompt:] = True if piece.learned is None else piece.learned
                numbers.append(number)
                tokens.append(int(counted.sum()))
                n_bytes.append(len(piece.truth.encode("utf-8", "surrogatepass")) - piece.bytes_lost)
                yield Text(ids, counted)

    losses = -np.array(log_probs(model, documents(), reading))
    if not len(losses):
        raise UserError(f"{data.label}: holds no text that the tokenizer of {model.label} can write.")
    measures = [Measure("loss", losses, np.array(tokens, dtype=np.float64), "nats per token", False, "perplexity")]
    if sum(n_bytes):
        measures.append(Measure("bits_per_byte", losses / math.log(2), np.array(n_bytes, dtype=np.float64), PER_BYTE, False))
    return Result("texts", data.name, model.label, data.source, {"context": reading.context, "stride": reading.stride, "most": data.most},
                  {"documents": len(losses), "left_out": n_read - len(losses), "tokens": sum(tokens), "bytes": sum(n_bytes)}, tuple(measures),
                  numbers=tuple(numbers))


def _begun(model: Judged, piece: Piece) -> NDArray[np.int32]:
    """Begin a text as the model has learned it: ours after an end token, one of others with its begin token; a chat begins as its template has it."""
    begin, sample = model.prompting.begin_id, piece.sample
    if begin is None or (sample.turns and choose_template(sample.chat, model.tokenizer.chat_template) is not None):
        return piece.tokens
    nothing_given = piece.n_prompt == 1 and piece.tokens[0] == model.tokenizer.end_id
    return np.array([begin, *piece.tokens[int(nothing_given):]], dtype=np.int32)
