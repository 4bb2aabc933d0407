"""The token that a text begins with, for models that others have trained.  Data floor, no torch."""
from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..tokenizer import Tokenizer
from .chat import choose_template
from .continuation import Piece


def begun(piece: Piece, begin_id: int | None, tokenizer: Tokenizer) -> Piece:
    """Let a piece begin as a model has learned it; what is to be learned stays as it is.

    A chat begins as its template has it. Where nothing is given but an end token, which begins our texts, the begin token takes its place.

    :param begin_id: the token that everything begins with, in a model that others have trained; None = there is none.
    :param tokenizer: that the piece was made with.
    """
    sample = piece.sample
    if begin_id is None or (sample.turns and choose_template(sample.chat, tokenizer.chat_template) is not None):
        return piece
    nothing_given = piece.n_prompt == 1 and piece.tokens[0] == tokenizer.end_id
    tokens = np.array([begin_id, *piece.tokens[int(nothing_given):]], dtype=np.int32)
    return replace(piece, tokens=tokens, n_prompt=piece.n_prompt + len(tokens) - len(piece.tokens))
