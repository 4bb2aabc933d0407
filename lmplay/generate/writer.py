"""A model that writes texts, piece by piece, as they are shown."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..data.permutation import hash64
from ..device.memory import memory_left
from ..tokenizer import Tokenizer
from ..writing.drafts import MOST_TEXTS, make_draft
from ..writing.generation import generate
from ..writing.packed import pack
from ..writing.prompting import Prompting
from ..writing.sampling import Sampling
from ..writing.stops import cut_at_stops

if TYPE_CHECKING:
    from torch import nn


# The most tokens that a character has, with some to spare.
_LONGEST = 8


@dataclass(frozen=True)
class Writer:
    """A model, its tokenizer and how to generate."""

    model: nn.Module
    prompting: Prompting
    context_len: int
    sampling: Sampling
    most_tokens: int
    seed: int
    stops: tuple[str, ...] = ()
    """Texts that end a text before them."""
    draft: nn.Module | None = None
    """Guesses what the model will write, see :func:`lmplay.writing.generation.generate`."""

    def faster(self, texts: int) -> Writer:
        """Make it faster at writing N texts side by side, where there is memory for that; what it writes is the same but for rounding."""
        model, draft = sped_up(self.model, texts, self.sampling.is_greedy and texts <= MOST_TEXTS)
        return replace(self, model=model, draft=draft)

    def write(self, prompts: Sequence[Sequence[int]], first: int) -> Iterator[list[str | None]]:
        """Continue prompts side by side.

        :param prompts: token ids.
        :param first: the number of the first text, which its random numbers depend on.
        :return: for each step what is added to each text; None once it has ended.
        """
        seeds = [text_seed(self.seed, first + number) for number in range(len(prompts))]
        texts = [GrowingText(self.prompting.tokenizer, self.stops, self.prompting.continued(prompt)) for prompt in prompts]
        over = [False] * len(prompts)
        for step in generate(self.model, prompts, self.prompting.ends, self.context_len, self.sampling, seeds, self.most_tokens,
                             draft=self.draft):
            parts: list[str | None] = [None] * len(prompts)
            for number, (text, token) in enumerate(zip(texts, step, strict=True)):
                if not over[number]:
                    parts[number] = text.end() if token is None else text.add(token)
                    over[number] = token is None or text.is_stopped
            yield parts
            if all(over):
                break
        yield [text.end() for text in texts]


def sped_up(model: nn.Module, texts: int, guesses: bool) -> tuple[nn.Module, nn.Module | None]:
    """Make what writes N texts side by side faster, where something is gained and there is memory for it: a copy of a model, and a draft for it.

    :param guesses: make a draft, too: there may be greedy texts, and few at once.
    """
    device = next(model.parameters()).device
    draft = make_draft(model, (memory_left(device) or 0) // 2) if guesses else None
    return pack(model, texts if draft is None else max(MOST_TEXTS, texts), (memory_left(device) or 0) // 2), draft


def text_seed(seed: int, number: int) -> int:
    """Choose the seed of a text by that of the user and the number of the text."""
    return hash64(seed, number) >> 1


class GrowingText:
    """A text that gets token after token, and what can be shown of it; `is_stopped` once it has a stop text.

    What a token adds depends on the tokens before it: some tokenizers leave out a space at the beginning of a text, and a character may take several tokens.
    So tokens are decoded together with those that were decoded last; not with all, which would take longer with each token.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], before: Sequence[int] = ()):
        """:param before: the tokens of the text that this one continues."""
        self.is_stopped = False
        self._tokenizer, self._stops = tokenizer, stops
        # the fewest that are whole characters: of a broken one some tokenizers decode nothing of what follows, either
        self._ids = next((list(before[-count:]) for count in range(1, min(len(before), _LONGEST) + 1)
                          if "\ufffd" not in tokenizer.decode(before[-count:])), [])
        self._from, self._settled = 0, len(self._ids)  # tokens before `settled` are in the text
        self._text = self._shown = ""

    def add(self, token: int) -> str:
        """Add a token; gives what can be shown besides what has been.  A character may take several tokens: it is shown when it is whole."""
        self._ids.append(token)
        new = self._new()
        if new and not new.endswith("\ufffd"):
            self._text += new
            self._from, self._settled = self._settled, len(self._ids)
        return self._show(self._text, is_whole=False)

    def end(self) -> str:
        """Give what is left to be shown when no more tokens come."""
        return self._show(self._text + self._new(), is_whole=True)

    def _new(self) -> str:
        """Decode the tokens that are not in the text yet."""
        tokens = self._ids[self._from:]
        return self._tokenizer.decode(tokens)[len(self._tokenizer.decode(tokens[:self._settled - self._from])):]

    def _show(self, text: str, is_whole: bool) -> str:
        """Cut a text at the stop texts, and give what of it is new."""
        text, self.is_stopped = cut_at_stops(text, self._stops, is_whole)
        before, self._shown = self._shown, text
        return text[len(before):]
