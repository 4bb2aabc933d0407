"""Word accuracy: how many words of the truth a prediction gets right, by edit distance.  Stats floor, no torch."""
from __future__ import annotations

import re

# Scripts that are written without spaces: Thai, Lao, Khmer, kana, Han.
_SPACELESS = r"\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
# One of their characters; a word of the other scripts; a mark.
_WORDS = re.compile(rf"[{_SPACELESS}]|[^\W{_SPACELESS}]+|[^\w\s]")


def words(text: str) -> list[str]:
    """Divide a text into words and punctuation marks."""
    return _WORDS.findall(text)


def count_right(truth: str, predicted: str) -> tuple[int, int]:
    """Count the words of the truth and how many of them a prediction has right.

    :param truth: what should be there.
    :param predicted: what was predicted.
    :return: (right, all): words less the edit distance in words (substitutions, insertions and deletions cost 1), never below 0.
    """
    import editdistance

    expected = words(truth)
    return max(0, len(expected) - editdistance.eval(expected, words(predicted))), len(expected)
