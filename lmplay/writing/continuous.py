"""Generating many texts side by side, each of which begins and ends at any step.  Writing floor: imports torch, modules and the ground.

Shapes: B texts, R rows: one for each text and each token that is guessed of it, V vocabulary.
"""
from __future__ import annotations

import inspect
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..data.collate import to_device
from ..modules.cache import KeyValueCache
from ..modules.sharded import is_sharded
from .drafts import Pace
from .sampling import Sampling, choose


@dataclass(eq=False)
class _Text:
    """A text that is being written: its tokens, where the model begins to read them, and how many from there it has read."""

    name: Hashable
    ids: list[int]
    start: int
    sampling: Sampling
    generator: torch.Generator
    read: int = 0
    draws: list[Tensor] = field(default_factory=list)
    """The random numbers of the next tokens, as many as were needed so far: a token's does not depend on what is guessed."""

    def draw(self, number: int) -> Tensor:
        """Give the random number (a scalar) of the token that comes after `number` others."""
        while len(self.draws) <= number:
            self.draws.append(torch.rand((), generator=self.generator))
        return self.draws[number]

    def grow(self, tokens: Sequence[int]) -> None:
        """Add tokens."""
        self.ids += tokens
        del self.draws[:len(tokens)]


_Rows = list[tuple[_Text, list[int]]]
"""For each text whose next token is chosen the tokens that are taken to come before it."""


class ContinuousBatch:
    """Texts that grow in each step; what a text becomes depends on its seed, and not on those beside it.

    When a text is longer than the context, the model goes on with its last `context_len` // 2 tokens.

    With a `draft`, a faster model of nearly the same logits, several tokens are written in a step: the draft guesses some, the model reads them all at once,
    and what it would have written itself is kept, with one token more (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding"). So
    the texts are those of the model alone, but for the rounding of products of more rows.
    """

    def __init__(self, model: nn.Module, end_ids: Collection[int], context_len: int, use_cache: bool = True, draft: nn.Module | None = None):
        """
        :param model: see :mod:`lmplay.exp`; it is put into evaluation mode.
        :param end_ids: the tokens that end a text.
        :param context_len: the most tokens that the model can read.
        :param use_cache: False = read the whole text again for each token, as with models whose ``forward`` has no `cache`.
        :param draft: with the blocks of the model, whose cache it uses, see :func:`lmplay.writing.drafts.make_draft`.
        """
        self._model, self._ends, self._context_len = model.eval(), set(end_ids), context_len
        self._device = next(model.parameters()).device
        self._has_cache = use_cache and "cache" in inspect.signature(model.forward).parameters
        self._draft = draft.eval() if draft is not None and self._has_cache else None
        self._pace = Pace()
        self._texts: list[_Text] = []  # those in the cache, in its order
        self._fresh: list[_Text] = []  # those that the model has yet to read
        self._cache: KeyValueCache | None = None

    def __len__(self) -> int:
        return len(self._texts) + len(self._fresh)

    def add(self, name: Hashable, prompt: Sequence[int], sampling: Sampling, seed: int) -> None:
        """Begin a text.

        :param name: what :meth:`step` and :meth:`remove` call it.
        :param prompt: token ids, at least one; only the end of a long one is read.
        """
        self._fresh.append(_Text(name, [*prompt], max(0, len(prompt) - self._context_len), sampling, torch.Generator().manual_seed(seed)))

    def remove(self, *names: Hashable) -> None:
        """End texts; one that is not there is no fault."""
        self._fresh = [text for text in self._fresh if text.name not in names]
        self._keep([text for text in self._texts if text.name not in names])

    def step(self) -> dict[Hashable, list[int | None]]:
        """Write the next tokens of each text: one, with a draft also more; the last is None where its end token ends the text, which is then gone."""
        with torch.no_grad() if is_sharded(self._model) else torch.inference_mode():  # what FSDP2 gathers is used in training, too
            return self._step()

    def _step(self) -> dict[Hashable, list[int | None]]:
        """See :meth:`step`."""
        if not len(self):
            return {}
        guesses = self._guess()
        of_texts = [self._logits(self._texts, self._cache, guesses)] if self._texts else []
        of_fresh, fresh = self._read_fresh()
        logits_RV = torch.cat([*of_texts, *of_fresh]) if of_texts and of_fresh else (of_texts or of_fresh)[0]
        texts, guesses = [*self._texts, *self._fresh], [*guesses, *([] for _ in self._fresh)]
        chosen = iter(self._choose(logits_RV, [(text, guess[:number]) for text, guess in zip(texts, guesses, strict=True) for number in range(len(guess) + 1)]))
        new = [self._agreed(guess, [next(chosen) for _ in range(len(guess) + 1)]) for guess in guesses]
        self._settle(guesses[:len(self._texts)], new)
        if self._has_cache and self._fresh:
            self._cache = fresh if self._cache is None or fresh is None else self._cache.joined(fresh)
            self._texts, self._fresh = texts, []
        for text, tokens in zip(texts, new, strict=True):
            text.grow(tokens)
        self._fresh = [text for text in self._fresh if text.ids[-1] not in self._ends]
        self._keep([text for text in self._texts if text.ids[-1] not in self._ends])
        self._forget()
        return {text.name: [None if token in self._ends else token for token in tokens] for text, tokens in zip(texts, new, strict=True)}

    def _guess(self) -> list[list[int]]:
        """Let the draft guess the next tokens of the texts that the model has read, equally many of each.

        Only of greedy texts: a token that is drawn is another one when probabilities differ a little, and guesses were wrong too often to pay.
        """
        guesses: list[list[int]] = [[] for _ in self._texts]
        if self._draft is None or self._cache is None or not all(text.sampling.is_greedy for text in self._texts):
            return guesses
        room = min(self._context_len - len(text.ids) + text.start for text in self._texts)
        count = self._pace.guesses(len(self._texts), room)
        for _ in range(count):
            rows = [*zip(self._texts, guesses, strict=True)]
            tokens_B1 = to_device(torch.tensor([[(guess or text.ids)[-1]] for text, guess in rows]), self._device)
            hidden_B1D = self._draft(tokens_B1, cache=self._cache)
            self._cache.keep([1] * len(rows))
            for guess, token in zip(guesses, self._choose(self._draft.get_submodule("head")(hidden_B1D[:, 0]), rows), strict=True):
                guess.append(token)
        self._cache.drop([count] * len(self._texts))  # the model reads these tokens itself
        return guesses

    def _agreed(self, guess: list[int], chosen: list[int]) -> list[int]:
        """Give the tokens that the model has chosen up to the first that was not guessed, or that ends the text."""
        count = 1
        while count <= len(guess) and chosen[count - 1] == guess[count - 1] and chosen[count - 1] not in self._ends:
            count += 1
        return chosen[:count]

    def _settle(self, guesses: list[list[int]], new: list[list[int]]) -> None:
        """Forget what was read of guesses that were wrong."""
        wrong = [len(guess) - len(tokens) + 1 for guess, tokens in zip(guesses, new, strict=False)]
        if self._cache is None or not any(guesses):
            return
        self._cache.drop(wrong)
        for text, count in zip(self._texts, wrong, strict=True):
            text.read -= count
        self._pace.learn(sum(map(len, guesses)) - sum(wrong), sum(count > 0 for count in wrong))

    def _read_fresh(self) -> tuple[list[Tensor], KeyValueCache | None]:
        """Read the texts that the model has yet to read, equal ones once: gives their logits, if there are any, and their cache."""
        if not self._fresh:
            return [], None
        distinct: dict[tuple[int, ...], int] = {}
        rows = [distinct.setdefault(tuple(text.ids[text.start:]), len(distinct)) for text in self._fresh]
        texts = [self._fresh[rows.index(row)] for row in range(len(distinct))]
        cache = KeyValueCache(len(texts), self._context_len, self._device) if self._has_cache else None
        logits_BV = self._logits(texts, cache, [[] for _ in texts])
        if len(texts) == len(rows):
            return [logits_BV], cache
        for text, row in zip(self._fresh, rows, strict=True):
            text.read = texts[row].read
        return [logits_BV.index_select(0, to_device(torch.tensor(rows), self._device))], cache.selected(rows) if cache is not None else None

    def _logits(self, texts: list[_Text], cache: KeyValueCache | None, guesses: list[list[int]]) -> Tensor:
        """Read what is new of each text, and what is guessed; gives the logits of its next token, and of the one after each guess (R, V)."""
        new = [text.ids[text.start + text.read:] + guess for text, guess in zip(texts, guesses, strict=True)]
        width = max(map(len, new))
        tokens_BT = to_device(torch.tensor([part + [0] * (width - len(part)) for part in new]), self._device)
        if cache is None:
            hidden_BTD = self._model(tokens_BT)
        else:
            hidden_BTD = self._model(tokens_BT, cache=cache)
            cache.keep([len(part) for part in new])
            for text, part in zip(texts, new, strict=True):
                text.read += len(part)
        last_R = [row * width + place for row, (part, guess) in enumerate(zip(new, guesses, strict=True))
                  for place in range(len(part) - len(guess) - 1, len(part))]
        hidden_RD = hidden_BTD.flatten(0, 1)
        if len(last_R) < len(hidden_RD):
            hidden_RD = hidden_RD.index_select(0, to_device(torch.tensor(last_R), self._device))
        logits_RV: Tensor = self._model.get_submodule("head")(hidden_RD)
        return logits_RV

    @staticmethod
    def _choose(logits_RV: Tensor, rows: _Rows) -> list[int]:
        """Choose a token for each row, those with the same sampling together."""
        tokens = [0] * len(rows)
        draws_R = torch.stack([text.draw(len(guess)) for text, guess in rows])
        for sampling in dict.fromkeys(text.sampling for text, _ in rows):
            alike = [number for number, (text, _) in enumerate(rows) if text.sampling == sampling]
            # the copy takes as long as a layer where there are many tokens
            theirs_RV = logits_RV if len(alike) == len(rows) else logits_RV.index_select(0, to_device(torch.tensor(alike), logits_RV.device))
            written = [rows[number][0].ids + rows[number][1] for number in alike] if sampling.reads_texts else []
            for number, token in zip(alike, choose(theirs_RV, written, sampling, draws_R[alike]).tolist(), strict=True):
                tokens[number] = token
        return tokens

    def _forget(self) -> None:
        """Let the model read texts that are longer than its context anew, from their last `context_len` // 2 tokens."""
        late = [text for text in [*self._texts, *self._fresh] if len(text.ids) - text.start > self._context_len]
        for text in late:
            text.start, text.read = len(text.ids) - self._context_len // 2, 0
        if self._has_cache:
            self._keep([text for text in self._texts if text not in late])
            self._fresh += late

    def _keep(self, texts: list[_Text]) -> None:
        """Keep these of the texts in the cache."""
        if len(texts) < len(self._texts):
            assert self._cache is not None
            self._cache = self._cache.selected([self._texts.index(text) for text in texts]) if texts else None
            self._texts = texts
