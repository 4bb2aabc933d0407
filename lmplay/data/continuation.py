"""Samples to pieces: a long text is tokenized once and cut at sentence ends into pieces that fit the context.  Data floor, no torch.

A chat is cut like a text: its text begins with the first answer, and parts of it are given, not learned.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ..plan.options import SMALLEST_CONTEXT
from ..tokenizer import Encoded, Tokenizer
from .characters import splits_character
from .chat import Part, choose_template, write_out
from .encoding import PartEncoder
from .judged import Judged
from .samples import Sample
from .sentences import Cut, closes, gaps

if TYPE_CHECKING:
    import numpy as np

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

    `tokens` is prompt, truth and, after the last part, the end token; the first `n_prompt` of them are given, the rest is to be learned: all of it, or
    what `learned` says (a flag for each token after the prompt). `truth` is the text to be learned, `cut` says what the part ends at. `number` counts the
    sample's pieces from 0, `last` marks the final one. `weight` is what the loss of each of its tokens counts, where the objective
    gives one. `preferred` tells the answers of a preference pair, chosen and rejected, which follow each other. `judged` is there where the model itself has
    written the truth. `bytes_lost` are those of its truth that the
    tokenizer cannot write, `prompt_lost` the tokens of the sample's prompt that had to be left out of the first piece. `starts` and `cuttable` are
    those of the tokens after the prompt (see :class:`Encoded`), less the end token after the last part.
    """

    sample: Sample
    tokens: np.ndarray
    n_prompt: int
    truth: str
    cut: Cut
    number: int
    last: bool
    learned: np.ndarray | None = None
    bytes_lost: int = 0
    prompt_lost: int = 0
    weight: float | None = None
    preferred: bool | None = None
    judged: Judged | None = None
    starts: np.ndarray = field(kw_only=True)
    cuttable: np.ndarray = field(kw_only=True)

    @property
    def borders(self) -> np.ndarray:
        """The offsets in `truth`, in half characters, before each of its tokens and after the last; odd inside a character that two tokens share."""
        import numpy as np

        borders = 2 * (self.starts - self.starts[0]) - ~self.cuttable
        return borders if self.learned is None else np.append(0, np.diff(borders)[self.learned[:len(borders) - 1]].cumsum())

    @property
    def answer_starts(self) -> np.ndarray:
        """Number, among the tokens to be learned, those that begin another answer of a chat: what stands between two answers is given."""
        import numpy as np

        return np.zeros(0, dtype=np.intp) if self.learned is None else np.flatnonzero(np.diff(np.flatnonzero(self.learned)) > 1) + 1

    @property
    def answers(self) -> list[str]:
        """Divide the text to be learned into the answers of a chat."""
        places = [0, *(self.borders[self.answer_starts] // 2).tolist(), len(self.truth)]
        return [self.truth[begin:end] for begin, end in pairwise(places)]

    @property
    def n_truth(self) -> int:
        """Count the tokens to be learned, the end token included."""
        return len(self.tokens) - self.n_prompt if self.learned is None else int(self.learned.sum())


# Makes of one sample the pieces that must share a batch; the last of them, and no other, is marked `last`.
Prepare = Callable[[Sample], list[Piece]]


class Cutter:
    """Cuts samples into pieces for one tokenizer and one context length."""

    def __init__(self, tokenizer: Tokenizer, context_len: int, estimate: bool = False):
        """
        :param tokenizer: counts the tokens.
        :param context_len: the most tokens a piece may have, prompt and end token included; at least SMALLEST_CONTEXT.
        :param estimate: also end a piece where 1.5 tokens a word would fill the context.
        """
        import numpy as np

        if context_len < SMALLEST_CONTEXT:
            raise ValueError(f"context_len {context_len} is below {SMALLEST_CONTEXT}")
        self.tokenizer = tokenizer
        self.context_len = context_len
        self._estimate = estimate
        self._tail = min(context_len // _TAIL_SHARE, _TAIL_MOST)
        self._end = np.array([tokenizer.end_id], dtype=np.int32)
        self._dots = tokenizer.encode(_DOTS).ids
        self._parts = PartEncoder(tokenizer)

    def __reduce__(self) -> tuple[type[Cutter], tuple[Tokenizer, int, bool]]:
        """Pickle the arguments of the constructor."""
        return Cutter, (self.tokenizer, self.context_len, self._estimate)

    def with_context(self, context_len: int) -> Cutter:
        """Make one for another context length."""
        return Cutter(self.tokenizer, context_len, self._estimate)

    def cut(self, sample: Sample, n_truth: int | None = None) -> list[Piece]:
        """Cut a sample; its truths, joined, are its text, or the answers of its chat.

        :param sample: with a truth that is not empty, or turns.
        :param n_truth: the prompt is cut as if the truth had this many tokens; None = as many as it has, or the first answer of a chat.
        :return: pieces that fit the context, each with something to learn; none where the tokenizer has no token for any of the text.
        """
        if not sample.turns:
            return self.cut_parts(sample, (Part(sample.prompt, learned=False),), (Part(sample.truth),), n_truth)
        template = choose_template(sample.chat, self.tokenizer.chat_template)
        return self.cut_parts(sample, *write_out(sample.turns, template, self.tokenizer.end_text, self.tokenizer.begin_text), n_truth)

    def cut_pair(self, sample: Sample) -> list[Piece]:
        """Cut a preference pair: the same prompt before both answers, and what fits of each answer in one piece.

        :param sample: one that has a `rejected`.
        :return: the piece of the chosen answer and that of the rejected one; none where the tokenizer has no token for one of them.
        """
        import numpy as np

        assert sample.rejected is not None
        answers = sample, sample.rejected
        cut = [self.cut(one) for one in answers]
        if not all(cut):
            return []
        if not np.array_equal(cut[0][0].tokens[:cut[0][0].n_prompt], cut[1][0].tokens[:cut[1][0].n_prompt]):  # it fits with one of them only
            cut = [self.cut(one, self.context_len) for one in answers]
        return [replace(pieces[0], sample=sample, number=number, last=number == 1, preferred=number == 0) for number, pieces in enumerate(cut)]

    def cut_parts(self, sample: Sample, given: Sequence[Part], truth: Sequence[Part], n_truth: int | None = None) -> list[Piece]:
        """Cut a sample that has been written out to parts.

        :param sample: what the pieces are of.
        :param given: the prompt.
        :param truth: what follows, of which the learned parts are learned; an end token comes after the last.
        :param n_truth: see :meth:`cut`.
        :return: as :meth:`cut`.
        """
        import numpy as np

        head, text, encoded, learned, whole = self._encode(given, truth)
        first_answer = len(encoded.ids) if learned is None or learned.all() else int((~learned).argmax())
        prompt, again = self._prompts(given, head, first_answer if n_truth is None else n_truth, learned is not None)
        lost = len(head.ids) - len(prompt) if len(head.ids) else 0
        pieces: list[Piece] = []
        begin, n, end = 0, len(encoded.ids), len(text.rstrip())
        while begin < n:
            to, cut = self._end_of_piece(text, encoded, begin, self.context_len - len(prompt) - 1, end)
            if learned is not None and to < n:
                to, cut = self._between_turns(encoded, learned, begin, to, cut, self.context_len - len(again) - len(self._dots) - self._tail - 1)
            tokens = np.concatenate([prompt, encoded.ids[begin:to], self._end] if to == n else [prompt, encoded.ids[begin:to]])
            starts, cuttable = encoded.starts[begin:to + 1], whole[begin:to + 1]
            if learned is None:
                pieces.append(Piece(sample, tokens, len(prompt), text[encoded.starts[begin]:encoded.starts[to]], cut, len(pieces), to == n,
                                    starts=starts, cuttable=cuttable))
            elif learned[begin:to].any():
                flags = learned[begin:to + 1] if to == n else learned[begin:to]
                pieces.append(Piece(sample, tokens, len(prompt), _learned_text(text, encoded, learned, begin, to), cut, len(pieces), to == n, flags,
                                    starts=starts, cuttable=cuttable))
            prompt = np.concatenate([again, self._dots, encoded.ids[self._tail_start(text, encoded, begin, to):to]])
            begin = to
        if pieces and lost:
            pieces[0] = replace(pieces[0], prompt_lost=lost)
        if pieces and not pieces[-1].last:  # nothing is learned in what follows
            pieces[-1] = replace(pieces[-1], last=True)
        return pieces if self.tokenizer.writes_all else [self._count_lost(piece) for piece in pieces]

    def _count_lost(self, piece: Piece) -> Piece:
        """Count the bytes of a piece that its tokens do not hold."""
        truth = piece.tokens[piece.n_prompt:][:len(piece.starts) - 1]
        truth = truth if piece.learned is None else truth[piece.learned[:len(truth)]]
        return replace(piece, bytes_lost=sum(len(character.encode("utf-8", "surrogatepass")) * count
                                             for character, count in self.tokenizer.lost(piece.truth, truth).items()))

    def _prompts(self, given: Sequence[Part], head: Encoded, n_truth: int, is_chat: bool) -> tuple[np.ndarray, np.ndarray]:
        """Choose what of a prompt the first piece begins with, and what of it the continuations repeat.

        The first piece has all of it where it fits in a piece together with the truth, or the first answer of a chat; else its end, half of the context at
        most, from the beginning of a word. Continuations repeat its end as well, a quarter at most; of a chat only where that is all of it, as its end is no
        title.

        :param n_truth: the tokens that it is to fit in a piece with, the end token not counted.
        """
        ids, text = head.ids, "".join(part.text for part in given)
        repeated = self.context_len // _TITLE_SHARE
        again = ids[:0] if is_chat and len(ids) > repeated else ids[-repeated:]
        if not len(ids):
            return self._end, again
        if len(ids) <= self.context_len // 2 or len(ids) + n_truth + 1 <= self.context_len:
            return ids, again
        return ids[self._prompt_start(text, head):], again

    def _prompt_start(self, text: str, head: Encoded) -> int:
        """Choose where the end of a long prompt starts, half of the context at most: at a word if one starts soon, as many scripts have no spaces."""
        first = len(head.ids) - self.context_len // 2
        near = range(first, first + max(1, self.context_len // 8))
        words = (number for number in near if head.cuttable[number] and text[head.starts[number]:head.starts[number] + 1].isspace())
        return next(words, next((number for number in range(first, len(head.ids)) if head.cuttable[number]), first))

    def _between_turns(self, encoded: Encoded, learned: np.ndarray, begin: int, to: int, cut: Cut, room: int) -> tuple[int, Cut]:
        """Move the end of a piece of a chat to the end of an answer in it, so that the next piece has what the next answer answers.

        :param begin: the piece's first token.
        :param to: where it would end, and `cut` at what.
        :param room: the most tokens of the next piece. An answer is divided nevertheless where it and what it answers do not fit in them.
        """
        import numpy as np

        turns = begin + 1 + np.flatnonzero(learned[begin:to] & ~learned[begin + 1:to + 1])  # what is given behind an answer begins here
        if not len(turns) or not encoded.cuttable[turns[-1]]:
            return to, cut
        turn = int(turns[-1])
        if turn < to and learned[to - 1]:
            rest = learned[to:len(encoded.ids)]
            answer_end = to + int((~rest).argmax() if not rest.all() else len(rest))
            if answer_end - turn > room:
                return to, cut
        return turn, Cut.SENTENCE

    def _encode(self, given: Sequence[Part], truth: Sequence[Part]) -> tuple[Encoded, str, Encoded, np.ndarray | None, np.ndarray]:
        """Encode the parts of a sample.

        :param given: the prompt.
        :param truth: at least one part.
        :return: the tokens of the prompt; the text of the truth, its tokens, which tokens are learned (the end token after the last as that one), or None
            where all are, and which borders divide no character: `cuttable` is also False where an answer must not be divided from its end.
        """
        import numpy as np

        both, firsts = self._parts.encode((*given, *truth))
        text, head = "".join(part.text for part in truth), firsts[len(given)]
        prompt = Encoded(both.ids[:head], both.starts[:head + 1], both.cuttable[:head + 1])
        whole = both.cuttable[head:].copy()
        whole[0] = True
        starts = both.starts[head:] - sum(len(part.text) for part in given)
        starts[0] = 0
        firsts = firsts[len(given):] - head
        if len(truth) == 1 and truth[0].learned:
            return prompt, text, Encoded(both.ids[head:], starts, whole), None, whole
        cuttable = whole.copy()
        cuttable[[first for part, first in zip(truth, firsts, strict=False) if part.learned and (part.end or part.markup)]] = False  # ends an answer
        cuttable[-1] = True
        learned = np.repeat([part.learned for part in truth], np.diff(firsts))
        return prompt, text, Encoded(both.ids[head:], starts, cuttable), np.append(learned, learned[-1:]), whole

    def _end_of_piece(self, text: str, encoded: Encoded, begin: int, most_tokens: int, end: int) -> tuple[int, Cut]:
        """Choose the token border at which a piece ends.

        :param begin: the piece's first token.
        :param most_tokens: the most tokens it may have, at least 1.
        :param end: where the white space at the end of the text begins.
        :return: number of the first token after the piece, above `begin`, and what it ends at.
        """
        n = len(encoded.ids)
        most = min(begin + most_tokens, n)
        while most > begin + 1 and not encoded.cuttable[most]:
            most -= 1
        position = int(encoded.starts[begin])
        limit = int(encoded.starts[most])
        if self._estimate:
            limit = min(limit, self._estimated_limit(text, position, most_tokens))
        if most == n and limit == len(text):
            return n, Cut.END
        for first, last, cut in gaps(text, position, limit, end):
            border = self._border_within(text, encoded, first, last, begin, most)
            if border:
                return border, cut
        return self._last_character(text, encoded, begin, most, end), Cut.CHARACTER

    def _border_within(self, text: str, encoded: Encoded, first: int, last: int, begin: int, most: int) -> int:
        """Give the last token border from a position to another that divides no visible character, or 0 where none is: one token may span both."""
        border = min(int(encoded.starts.searchsorted(last, "right")) - 1, most)
        while border > begin and encoded.starts[border] >= first:
            if encoded.cuttable[border] and not splits_character(text, int(encoded.starts[border])):
                return border
            border -= 1
        return 0

    def _last_character(self, text: str, encoded: Encoded, begin: int, most: int, end: int) -> int:
        """Give the last token border that divides no visible character, leaves something visible behind it, and no closing mark in front.

        :param end: where the white space at the end of the text begins.
        :return: failing that, the last that divides no visible character; failing that, no code point; failing that, the last one.
        """
        start = int(encoded.starts[begin])
        divided = closed = None
        for border in range(most, begin, -1):
            position = int(encoded.starts[border])
            if encoded.cuttable[border] and position > start:
                if position == len(text) or not splits_character(text, position, start):
                    if position == len(text) or (position < end and not closes(text, position)):
                        return border
                    closed = closed or border
                divided = divided or border
        return closed or divided or most

    def _tail_start(self, text: str, encoded: Encoded, begin: int, to: int) -> int:
        """Choose where the repeated end of the piece before starts: at a word if one starts within reach."""
        first = max(begin, to - self._tail)
        starts, cuttable = encoded.starts[first:to].tolist(), encoded.cuttable[first:to].tolist()
        words = (number for number, start in enumerate(starts) if cuttable[number] and text[start:start + 1].isspace())
        return first + next(words, cuttable.index(True) if True in cuttable else to - first)

    def _estimated_limit(self, text: str, position: int, n_tokens: int) -> int:
        """Give the position after the words that fill a number of tokens, at 1.5 tokens a word; at least one word."""
        words = max(1, int(n_tokens / TOKENS_PER_WORD))
        ends = (match.start() for match in _SPACES.finditer(text, position + 1))
        return next((end for count, end in enumerate(ends, 1) if count == words), len(text))


def _learned_text(text: str, encoded: Encoded, learned: np.ndarray, begin: int, to: int) -> str:
    """Give the learned stretches of a piece, joined."""
    import numpy as np

    flags = learned[begin:to].astype(np.int8)
    borders = begin + np.flatnonzero(np.diff(flags, prepend=0, append=0))
    return "".join(text[encoded.starts[first]:encoded.starts[last]] for first, last in borders.reshape(-1, 2).tolist())
