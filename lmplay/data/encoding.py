"""The parts of a sample as tokens.  Data floor, no torch.

A chat that a template has written is encoded as one text, as `transformers` does: tokenizers may join what stands at the end of one part with the beginning
of the next, and many put a mark of a new word in front of every text that they are given.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ..tokenizer import Encoded, Tokenizer
from .chat import Part

if TYPE_CHECKING:
    import numpy as np


class PartEncoder:
    """Encodes parts with one tokenizer; what is given often repeats, titles and a template's words, and is remembered."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._encode_given = lru_cache(maxsize=256)(tokenizer.encode)
        self._encode_markup = lru_cache(maxsize=256)(tokenizer.encode_markup)

    def encode(self, parts: Sequence[Part]) -> tuple[Encoded, np.ndarray]:
        """Encode parts: a template's as one text where that changes nothing of what is learned, others one by one.

        :param parts: any number.
        :return: the tokens of their text, and for each part the number of its first token, as [n_parts + 1]; a token that two parts share is the first one's.
        """
        if any(part.markup for part in parts) and not any(part.end for part in parts):
            together = self._together(parts)
            if together is not None:
                return together
        return self._one_by_one(parts)

    def _together(self, parts: Sequence[Part]) -> tuple[Encoded, np.ndarray] | None:
        """Encode the text of all parts; None where a token would be given and learned, or what somebody says would become a special token."""
        import numpy as np

        text = "".join(part.text for part in parts)
        begins = np.cumsum([0, *(len(part.text) for part in parts)])
        encoded = self._tokenizer.encode_markup(text)
        borders = np.flatnonzero(encoded.cuttable)
        firsts = borders[encoded.starts[borders].searchsorted(begins)]
        firsts[-1] = len(encoded.ids)
        changes = 1 + np.flatnonzero(np.diff([part.learned for part in parts]))
        if (encoded.starts[firsts[changes]] != begins[changes]).any():
            return None
        for token in np.flatnonzero(np.isin(encoded.ids, self._tokenizer.special_ids)).tolist():
            span = text[encoded.starts[token]:encoded.starts[token + 1]]  # with white space that the token may take in
            end = int(encoded.starts[token]) + len(span.rstrip())
            part = int(begins.searchsorted(end - len(span.strip()), "right")) - 1
            if not parts[min(part, len(parts) - 1)].markup or end > begins[part + 1]:
                return None
        return encoded, firsts

    def _one_by_one(self, parts: Sequence[Part]) -> tuple[Encoded, np.ndarray]:
        """Encode each part, and put their tokens together."""
        import numpy as np

        encoded = [self._encode(part) for part in parts]
        begins = np.cumsum([0, *(len(part.text) for part in parts)])
        firsts = np.cumsum([0, *(len(one.ids) for one in encoded)])
        starts = np.concatenate([[0], *(one.starts[1:] + begin for one, begin in zip(encoded, begins[:-1], strict=True))])
        starts[-1] = begins[-1]
        cuttable = np.concatenate([[True], *(one.cuttable[1:] for one in encoded)])
        cuttable[-1] = True
        return Encoded(np.concatenate([np.zeros(0, dtype=np.int32), *(one.ids for one in encoded)]), starts, cuttable), firsts

    def _encode(self, part: Part) -> Encoded:
        """Encode one part."""
        import numpy as np

        if part.end:
            return Encoded(np.array([self._tokenizer.end_id], dtype=np.int32), np.zeros(2, dtype=np.int64), np.ones(2, dtype=bool))
        if part.markup:
            return self._encode_markup(part.text)
        return self._tokenizer.encode(part.text) if part.learned else self._encode_given(part.text)
