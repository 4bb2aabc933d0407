"""Word accuracy: how many words of the truth were predicted at their positions, or by edit distance.  Stats floor, no torch."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..words import WORD

try:
    from editdistance import eval as _distance
except ImportError:  # there are no wheels for this Python
    _distance = None


def count_right(truth: str, borders: np.ndarray, right: np.ndarray, starts: Sequence[int] | np.ndarray = ()) -> tuple[int, int]:
    """Count the words of the truth, and those that were predicted: all tokens with a part of the word are right.

    :param truth: the text to be predicted.
    :param borders: (n + 1,) offsets in the text, ascending, in half characters: token k goes from borders[k] to borders[k + 1]; odd = inside a character.
    :param right: whether each token was predicted; the end token (after the n-th, or between two answers) belongs to no word, and no word goes on behind it.
    :param starts: tokens with which another answer begins: no word continues from the answer before.
    :return: (right, all) words and punctuation marks.
    """
    end = (np.diff(borders) == 0) & (borders[:-1] % 2 == 0)  # writes nothing: an end token between two answers
    places = [0, *sorted({int(place) // 2 for place in (*borders[:-1][end], *(borders[start] for start in starts))}), len(truth)]
    words = np.array([match.span() for begin, to in pairwise(places) for match in WORD.finditer(truth, begin, to)], dtype=np.int64).reshape(-1, 2)
    wrong_before = np.zeros(len(borders), dtype=np.int64)
    np.cumsum(~(right[:len(borders) - 1] | end), out=wrong_before[1:])
    first = borders.searchsorted(2 * words[:, 0], "right") - 1
    stop = np.minimum(borders.searchsorted(2 * words[:, 1]), len(borders) - 1)  # a piece may end inside a character
    return int((wrong_before[stop] == wrong_before[first]).sum()), len(words)


def count_edits(truth: str, predicted: str) -> tuple[int, int]:
    """Count the words of the longer of two texts, and those that are left when the edit distance between the words of both is taken off.

    :return: (right, all) words and punctuation marks.
    """
    words, others = WORD.findall(truth), WORD.findall(predicted)
    most = max(len(words), len(others))
    return most - (edit_distance if _distance is None else _distance)(words, others), most


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Count the fewest words to insert, delete or replace that make one text of the other (Levenshtein 1966), where the package editdistance is missing."""
    numbers: dict[str, int] = {}
    columns = np.array([numbers.setdefault(word, len(numbers)) for word in other], dtype=np.int64)
    steps = np.arange(len(other) + 1)
    row = steps.copy()
    for count, word in enumerate(one, 1):
        best = np.minimum(row[1:] + 1, row[:-1] + (columns != numbers.get(word, -1)))
        row = np.minimum.accumulate(np.concatenate([[count], best]) - steps) + steps
    return int(row[-1])
