"""Ways to make a unit of pieces of a sample.  Data floor, no torch: the processes that prepare data (:mod:`.workers`) are sent one of these functions.

A process imports what the file of its function imports. So objectives are not sent: torch would take a second and hundreds of megabytes in each process.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from .continuation import Cutter, Piece
from .permutation import hash64
from .samples import Sample
from .sentences import Cut


class Preparing(Protocol):
    """How a sample becomes a unit, see :attr:`lmplay.objectives.base.Objective.prepare`."""

    def __call__(self, sample: Sample, cutter: Cutter) -> list[Piece]:
        """Make the pieces of a sample."""


def cut_text(sample: Sample, cutter: Cutter) -> list[Piece]:
    """Cut a sample to the context length."""
    return cutter.cut(sample)


def cut_weighed(sample: Sample, cutter: Cutter) -> list[Piece]:
    """Cut a sample; each of its truth tokens counts 1 / (their number)."""
    pieces = cutter.cut(sample)
    total = sum(piece.n_truth for piece in pieces)
    return [replace(piece, weight=1 / total) for piece in pieces]


def cut_pair(sample: Sample, cutter: Cutter) -> list[Piece]:
    """Make a piece of the answer that is chosen, and one of the answer that is rejected."""
    return cutter.cut_pair(sample)


def cut_task(sample: Sample, cutter: Cutter, most_tokens: int | None) -> list[Piece]:
    """Cut the prompt so that an answer fits behind it, and keep what fits of the answer that texts are judged by.

    :param most_tokens: of an answer, see :func:`answer_limit`.
    """
    pieces = cutter.cut(sample, answer_limit(most_tokens, cutter.context_len))
    return [replace(pieces[0], last=True)] if pieces else []


def cut_thoughts(sample: Sample, cutter: Cutter, most_tokens: int | None, start: str, end: str, horizon: int) -> list[Piece]:
    """Cut a sample so that a thought fits in, and choose a place for one in each piece.

    The place is decided by the number of the row and that of the piece alone, and is one before a token that would be learned.

    :param most_tokens: of a thought, see :func:`thought_limit`.
    :param start: the mark before a thought, and `end` that after it.
    :param horizon: the most tokens behind it that are predicted.
    :return: pieces of what lies before the place, the mark, and the tokens behind it, fewer than `horizon` where the piece ends.
    """
    import numpy as np

    before, after = (cutter.tokenizer.encode_markup(mark).ids for mark in (start, end))
    found = []
    for piece in cutter.with_context(cutter.context_len - thought_limit(most_tokens, cutter.context_len) - len(before) - len(after)).cut(sample):
        learned = np.arange(piece.n_prompt, len(piece.tokens)) if piece.learned is None else piece.n_prompt + np.flatnonzero(piece.learned)
        place = int(learned[hash64(sample.source, sample.row, piece.number) % len(learned)])
        tokens, empty = piece.tokens, np.zeros(0, dtype=np.int64)
        ahead = tokens[place:place + horizon]
        found.append(Piece(sample, np.concatenate([tokens[:place], before.astype(tokens.dtype), ahead]), place + len(before), cutter.tokenizer.decode(ahead),
                           Cut.END, piece.number, piece.last, starts=empty, cuttable=empty.astype(bool)))
    return found


def answer_limit(most_tokens: int | None, context_len: int) -> int:
    """Give the most tokens of an answer: None = half of the context."""
    return most_tokens or context_len // 2


def thought_limit(most_tokens: int | None, context_len: int) -> int:
    """Give the most tokens of a thought: None = a quarter of the context."""
    return most_tokens or context_len // 4
