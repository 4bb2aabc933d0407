"""Texts that the model writes itself at the end of a stage, from the prompts of validation samples, and how near they come to the truth.  Engine floor."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from torch import nn

from ..data.continuation import Piece
from ..device.memory import is_out_of_memory
from ..stats.accuracy import count_edits
from ..tokenizer import Tokenizer
from ..writing.generation import generate
from ..writing.sampling import Sampling

# Samples whose prompts are continued, and the most tokens of each.
_TEXTS, _TOKENS = 16, 128


def judge_written(model: nn.Module, tokenizer: Tokenizer, units: Iterable[list[Piece]], context_len: int, interrupted: Callable[[], bool]) \
        -> dict[str, float] | None:
    """Let the model write, always the most probable token, and compare with the truth by edit distance.

    :param units: the pieces of samples; the first piece of each of the first ones is taken.
    :return: sums by the names of :mod:`lmplay.stats.figures`; none when memory runs out, None when interrupted.
    """
    pieces = [unit[0] for unit in islice(units, _TEXTS)]
    truths = [[token for token in _truth(piece) if token != tokenizer.end_id][:_TOKENS] for piece in pieces]
    texts: list[list[int]] = [[] for _ in pieces]
    was_training = model.training
    try:
        for tokens in generate(model, [piece.tokens[:piece.n_prompt].tolist() for piece in pieces], {tokenizer.end_id}, context_len, Sampling(temperature=0),
                               [0] * len(pieces), max(map(len, truths))):
            if interrupted():
                return None
            for text, truth, token in zip(texts, truths, tokens, strict=True):
                if token is not None and len(text) < len(truth):
                    text.append(token)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return {}
    finally:
        model.train(was_training)
    counts = [count_edits(tokenizer.decode(truth), tokenizer.decode(text)) for truth, text in zip(truths, texts, strict=True)]
    return dict(zip(("written_right", "written_words"), (float(sum(column)) for column in zip(*counts, strict=True)), strict=True))


def _truth(piece: Piece) -> list[int]:
    """Give the tokens to be learned that follow the prompt without a gap."""
    tokens: list[int] = piece.tokens[piece.n_prompt:].tolist()
    return tokens if piece.learned is None or piece.learned.all() else tokens[:int(piece.learned.argmin())]
