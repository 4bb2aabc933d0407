"""Preference pairs, as rows and as units of pieces."""
from __future__ import annotations

from helpers import sentences
from texts import BYTES

from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample


def rows_of_pairs(count: int, most: int = 3) -> list[dict[str, str]]:
    """Rows whose chosen answers are about cats, the rejected ones about dogs."""
    return [{"prompt": f"Say {i}.", "chosen": sentences(1 + i % most), "rejected": sentences(1 + (i + 1) % most, "dog")} for i in range(count)]


def pieces_of_pairs(lengths: list[tuple[int, int]], context_len: int = 64) -> list:
    """Pieces of pairs whose answers have these many letters."""
    cutter = Cutter(BYTES, context_len)
    return [piece for row, (one, other) in enumerate(lengths)
            for piece in cutter.cut_pair(Sample("q\n\n", "a" * one, row=row, rejected=Sample("q\n\n", "b" * other, row=row)))]
