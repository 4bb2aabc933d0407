"""A model that writes texts, piece by piece, as they are shown."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..data.permutation import hash64
from ..device.memory import memory_left
from ..writing.generation import generate
from ..writing.packed import pack
from ..writing.prompting import Prompting
from ..writing.sampling import Sampling

if TYPE_CHECKING:
    from torch import nn


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

    def faster(self, texts: int) -> Writer:
        """Make it faster at writing N texts side by side, where there is memory for that; what it writes is the same but for rounding."""
        free = memory_left(next(self.model.parameters()).device)
        return replace(self, model=pack(self.model, texts, (free or 0) // 2))

    def write(self, prompts: Sequence[Sequence[int]], first: int) -> Iterator[list[str | None]]:
        """Continue prompts side by side.

        :param prompts: token ids.
        :param first: the number of the first text, which its random numbers depend on.
        :return: for each step what is added to each text; None once it has ended.
        """
        tokenizer = self.prompting.tokenizer
        seeds = [hash64(self.seed, first + number) >> 1 for number in range(len(prompts))]
        new: list[list[int]] = [[] for _ in prompts]
        told, over = [""] * len(prompts), [False] * len(prompts)
        for step in generate(self.model, prompts, self.prompting.ends, self.context_len, self.sampling, seeds, self.most_tokens):
            parts: list[str | None] = [None] * len(prompts)
            for number, token in enumerate(step):
                if over[number]:
                    continue
                over[number] = token is None
                if token is not None:
                    new[number].append(token)
                text = tokenizer.decode(new[number])
                # A character may take several tokens: it is shown when it is whole.
                shown, stopped = cut_at_stops(text if token is None else text.rstrip("\ufffd"), self.stops, is_whole=token is None)
                over[number] |= stopped
                parts[number] = shown[len(told[number]):]
                told[number] = shown
            yield parts
            if all(over):
                break
        yield [cut_at_stops(tokenizer.decode(ids), self.stops, is_whole=True)[0][len(before):] for ids, before in zip(new, told, strict=True)]


def cut_at_stops(text: str, stops: Sequence[str], is_whole: bool) -> tuple[str, bool]:
    """Cut a text before the stop text in it that ends first.

    :param is_whole: False = more of it may come, so what may be the beginning of a stop text is cut off as well.
    :return: the text, and whether there was a stop text in it.
    """
    found = [(text.find(stop) + len(stop), len(stop)) for stop in stops if stop in text]
    if found:
        end, length = min(found, key=lambda one: (one[0], -one[1]))
        return text[:end - length], True
    if is_whole:
        return text, False
    begun = max((length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])), default=0)
    return text[:len(text) - begun], False
