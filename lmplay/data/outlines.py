"""What a rank knows of the pieces and samples that another rank has cut: all that batches, counts and statistics need, but neither tokens nor texts.
Data floor, no torch.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .continuation import Piece
from .samples import Sample
from .sentences import Cut

_CUTS = [*Cut]


@dataclass(frozen=True)
class Outline(Piece):
    """A piece that another rank has cut: its lengths and counts are those of that piece, its tokens are zeros, and its text is empty."""


@dataclass(frozen=True)
class CutSample(Sample):
    """A sample that has been cut already, by any rank; prompt and truth are empty."""

    pieces: list[Piece] = field(default_factory=list, compare=False)


def measures(pieces: Sequence[Piece]) -> list[tuple[Any, ...]]:
    """Give what :func:`outlines` needs, as plain values: some 30 bytes a piece when they are pickled."""
    return [(len(piece.tokens), piece.n_prompt, _CUTS.index(piece.cut), piece.number, piece.last, None if piece.learned is None else piece.n_truth,
             piece.bytes_lost, piece.prompt_lost, piece.weight, piece.preferred) for piece in pieces]


def outlines(sample: Sample, found: Sequence[tuple[Any, ...]]) -> list[Piece]:
    """Make the pieces of a sample that another rank has cut.

    :param sample: its numbers; without texts.
    :param found: what :func:`measures` gave.
    """
    import numpy as np

    zeros, pieces = np.zeros(max((length for length, *_ in found), default=0), dtype=np.int32), list[Piece]()
    nothing = zeros[:0]
    for length, n_prompt, cut, number, last, n_learned, bytes_lost, prompt_lost, weight, preferred in found:
        learned = None if n_learned is None else np.arange(length - n_prompt) < n_learned
        pieces.append(Outline(sample, zeros[:length], n_prompt, "", _CUTS[cut], number, last, learned, bytes_lost, prompt_lost, weight,
                              preferred, starts=nothing, cuttable=nothing))
    return pieces


def contents(piece: Piece) -> tuple[bytes, bytes | None]:
    """Give the tokens of a piece, and which of them are learned: all that training on it needs, where there is an outline of it. 2 bytes a token, or 4."""
    import numpy as np

    tokens = piece.tokens.astype(np.uint16 if piece.tokens.max() < 2**16 else np.int32)
    return tokens.tobytes(), None if piece.learned is None else np.packbits(piece.learned).tobytes()


def filled(outline: Piece, found: tuple[bytes, bytes | None]) -> Piece:
    """Give an outlined piece its tokens; it has no text.

    :param found: what :func:`contents` gave.
    """
    import numpy as np

    tokens, learned = found
    return Piece(outline.sample, np.frombuffer(tokens, dtype=np.uint16 if len(tokens) == 2 * len(outline.tokens) else np.int32), outline.n_prompt, "",
                 outline.cut, outline.number, outline.last,
                 None if learned is None else np.unpackbits(np.frombuffer(learned, dtype=np.uint8), count=len(outline.tokens) - outline.n_prompt).astype(bool),
                 outline.bytes_lost, outline.prompt_lost, outline.weight, outline.preferred, starts=outline.starts, cuttable=outline.cuttable)
