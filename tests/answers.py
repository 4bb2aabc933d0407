"""Answers as a model could have written them, judged."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
from texts import BYTES

from lmplay.data.continuation import Cutter, Piece
from lmplay.data.judged import Judged
from lmplay.data.samples import Sample


def pieces_of_answers(lengths: list[int], advantages: list[float], limit: int = 40, before=None, reference=None) -> list[Piece]:
    """Pieces of answers with these many letters and an end token; `before` and `reference` are log-probabilities of their tokens."""
    cutter = Cutter(BYTES, 64)
    found = []
    for row, (length, advantage) in enumerate(zip(lengths, advantages, strict=True)):
        letters = "".join("abcdefgh"[(row + place) % 8] for place in range(length))
        piece, = cutter.cut(Sample("q" * (1 + row % 3) + "\n\n", letters or "x", row=row))
        if not letters:
            piece = replace(piece, tokens=np.delete(piece.tokens, piece.n_prompt))
        known = {name: np.asarray(values[row]) for name, values in (("before", before), ("reference", reference)) if values is not None}
        found.append(replace(piece, judged=Judged((advantage + 1,), advantage + 1, limit, False, advantage, 0.5, **known)))
    return found
