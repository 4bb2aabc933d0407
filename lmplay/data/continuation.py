"""Samples to pieces: a long text is tokenized once and cut at sentence ends into pieces that fit the context.  Data floor, no torch."""
from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ..tokenizer import Encoded, Tokenizer
from .samples import Sample
from .sentences import Cut, last_cut, splits_character

if TYPE_CHECKING:
    import numpy as np

# A context has room for a prompt (half of it at most), an end token, and a few tokens of text: the longest character of UTF-8 takes four.
SMALLEST_CONTEXT = 16
# The usual estimate for English text and GPT-2's vocabulary, used by `--continuation estimate`.
TOKENS_PER_WORD = 1.5
# A continuation's prompt: at most this share of the context for the title, and this many tokens of what came before.
_TITLE_SHARE = 4
_TAIL_SHARE, _TAIL_MOST = 8, 64
_DOTS = "..."
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Piece:
    """A sample, or a part of one: what the model is trained on.

    `tokens` is prompt, truth and, after the last part, the end token; the first `n_prompt` of them are given, the rest is to be learned.
    `truth` is the part's text, `cut` says what it ends at. `number` counts the sample's pieces from 0, `last` marks the final one.
    """

    sample: Sample
    tokens: np.ndarray
    n_prompt: int
    truth: str
    cut: Cut
    number: int
    last: bool

    @property
    def n_truth(self) -> int:
        """Count the tokens to be learned, the end token included."""
        return len(self.tokens) - self.n_prompt


class Cutter:
    """Cuts samples into pieces for one tokenizer and one context length."""

    def __init__(self, tokenizer: Tokenizer, context_len: int, estimate: bool = False):
        """
        :param tokenizer: counts the tokens.
        :param context_len: the most tokens a piece may have, prompt and end token included; at least SMALLEST_CONTEXT.
        :param estimate: also end a piece where 1.5 tokens a word would fill the context.
        """
        if context_len < SMALLEST_CONTEXT:
            raise ValueError(f"context_len {context_len} is below {SMALLEST_CONTEXT}")
        self._tokenizer = tokenizer
        self.context_len = context_len
        self._estimate = estimate
        self._tail = min(context_len // _TAIL_SHARE, _TAIL_MOST)
        self._encode_short = lru_cache(maxsize=256)(lambda text: tokenizer.encode(text).ids)

    def __reduce__(self) -> tuple[type[Cutter], tuple[Tokenizer, int, bool]]:
        """Go to another process by what it was made from."""
        return Cutter, (self._tokenizer, self.context_len, self._estimate)

    def cut(self, sample: Sample) -> list[Piece]:
        """Cut a sample; its truths, joined, are its text.

        :param sample: with a truth that is not empty.
        :return: at least one piece; each fits the context.
        """
        import numpy as np

        head = self._encode_short(sample.prompt)
        encoded = self._tokenizer.encode(sample.truth)
        end = np.array([self._tokenizer.end_id], dtype=np.int32)
        prompt = head[-(self.context_len // 2):] if len(head) else end
        pieces: list[Piece] = []
        begin, n = 0, len(encoded.ids)
        while True:
            room = self.context_len - len(prompt) - 1
            to, cut = self._end_of_piece(sample.truth, encoded, begin, room)
            last = to == n
            truth = sample.truth[encoded.starts[begin]:encoded.starts[to]]
            tokens = np.concatenate([prompt, encoded.ids[begin:to], end] if last else [prompt, encoded.ids[begin:to]])
            pieces.append(Piece(sample, tokens, len(prompt), truth, cut, len(pieces), last))
            if last:
                return pieces
            prompt = np.concatenate([head[-(self.context_len // _TITLE_SHARE):], self._encode_short(_DOTS),
                                     encoded.ids[self._tail_start(sample.truth, encoded, begin, to):to]])
            begin = to

    def _end_of_piece(self, text: str, encoded: Encoded, begin: int, room: int) -> tuple[int, Cut]:
        """Choose the token border at which a piece ends.

        :param begin: the piece's first token.
        :param room: the most tokens it may have, at least 1.
        :return: number of the first token after the piece, above `begin`, and what it ends at.
        """
        n = len(encoded.ids)
        most = min(begin + room, n)
        while most > begin + 1 and not encoded.cuttable[most]:
            most -= 1
        position = int(encoded.starts[begin])
        limit = int(encoded.starts[most])
        if self._estimate:
            limit = min(limit, self._estimated_limit(text, position, room))
        if most == n and limit == len(text):
            return n, Cut.END
        found = last_cut(text, position, limit)
        if found is not None:
            border = self._border_after(encoded, found[0], most)
            if border > begin:
                return border, found[1]
        return self._last_character(text, encoded, begin, most), Cut.CHARACTER

    def _border_after(self, encoded: Encoded, position: int, most: int) -> int:
        """Give the first token border at or after a position (a token may hold a full stop and a line end), or 0 where none fits."""
        border = int(encoded.starts.searchsorted(position))
        while border <= most and not encoded.cuttable[border]:
            border += 1
        return border if border <= most else 0

    def _last_character(self, text: str, encoded: Encoded, begin: int, most: int) -> int:
        """Give the last token border that divides no visible character; failing that, no code point; failing that, the last one."""
        borders = [border for border in range(most, begin, -1) if encoded.cuttable[border] and encoded.starts[border] > encoded.starts[begin]]
        whole = (border for border in borders if not splits_character(text, int(encoded.starts[border])))
        return next(whole, borders[0] if borders else most)

    def _tail_start(self, text: str, encoded: Encoded, begin: int, to: int) -> int:
        """Choose where the repeated end of the piece before starts: at a word if one starts within reach."""
        reach = range(max(begin, to - self._tail), to)
        cuttable = [border for border in reach if encoded.cuttable[border]]
        words = (border for border in cuttable if text[encoded.starts[border]:encoded.starts[border] + 1].isspace())
        return next(words, cuttable[0] if cuttable else to)

    def _estimated_limit(self, text: str, position: int, room: int) -> int:
        """Give the position after as many words as would fill the room at 1.5 tokens a word; at least one word."""
        words = max(1, int(room / TOKENS_PER_WORD))
        ends = (match.start() for match in _SPACES.finditer(text, position + 1))
        return next((end for count, end in enumerate(ends, 1) if count == words), len(text))
