"""Generating many texts side by side, each of which begins and ends at any step.  Writing floor: imports torch, modules and the ground.

Shapes: B texts, V vocabulary, H heads, L positions of the cache, K width of a head.
"""
from __future__ import annotations

import inspect
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..modules.cache import KeyValueCache
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


class ContinuousBatch:
    """Texts that grow by a token in each step; a text has the tokens that :func:`lmplay.writing.generation.generate` writes, whoever is beside it."""

    def __init__(self, model: nn.Module, end_ids: Collection[int], context_len: int):
        """
        :param model: see :mod:`lmplay.exp`; it is put into evaluation mode.
        :param end_ids: the tokens that end a text.
        :param context_len: the most tokens that the model can read.
        """
        self._model, self._ends, self._context_len = model.eval(), set(end_ids), context_len
        self._device = next(model.parameters()).device
        self._has_cache = "cache" in inspect.signature(model.forward).parameters
        self._texts: list[_Text] = []  # those in the cache, in its order
        self._fresh: list[_Text] = []  # those that the model has yet to read
        self._cache: _Cache | None = None

    def __len__(self) -> int:
        return len(self._texts) + len(self._fresh)

    def add(self, name: Hashable, prompt: Sequence[int], sampling: Sampling, seed: int) -> None:
        """Begin a text.

        :param name: what :meth:`step` and :meth:`remove` call it.
        :param prompt: token ids, at least one; only the end of a long one is read.
        """
        self._fresh.append(_Text(name, [*prompt], max(0, len(prompt) - self._context_len), sampling, torch.Generator().manual_seed(seed)))

    def remove(self, name: Hashable) -> None:
        """End a text; one that is not there is no fault."""
        self._fresh = [text for text in self._fresh if text.name != name]
        self._keep([text for text in self._texts if text.name != name])

    @torch.inference_mode()
    def step(self) -> dict[Hashable, int | None]:
        """Write the next token of each text; None for a text that its end token ends, which is no longer there then."""
        read = [(texts, cache) for texts, cache in ((self._texts, self._cache), (self._fresh, self._new_cache())) if texts]
        if not read:
            return {}
        logits_BV = torch.cat([self._logits(texts, cache) for texts, cache in read])
        if self._has_cache and self._fresh:
            self._cache = read[-1][1] if self._cache is None else self._cache.joined(read[-1][1])
            self._texts, self._fresh = [*self._texts, *self._fresh], []
        texts = [*self._texts, *self._fresh]
        tokens = dict(zip([text.name for text in texts], self._choose(logits_BV, texts), strict=True))
        for text in texts:
            text.ids.append(tokens[text.name])
        self._fresh = [text for text in self._fresh if tokens[text.name] not in self._ends]
        self._keep([text for text in self._texts if tokens[text.name] not in self._ends])
        self._forget()
        return {name: None if token in self._ends else token for name, token in tokens.items()}

    def _new_cache(self) -> _Cache | None:
        """Make the cache of the texts that are read for the first time."""
        return _Cache(len(self._fresh), self._context_len, self._device) if self._has_cache else None

    def _logits(self, texts: list[_Text], cache: _Cache | None) -> Tensor:
        """Read what is new of each text; gives the logits of its next token (B, V)."""
        new = [text.ids[text.start + text.read:] for text in texts]
        width = max(map(len, new))
        tokens_BT = torch.tensor([part + [0] * (width - len(part)) for part in new], device=self._device)
        if cache is None:
            hidden_BTD = self._model(tokens_BT)
        else:
            hidden_BTD = self._model(tokens_BT, cache=cache)
            cache.keep([len(part) for part in new])
            for text, part in zip(texts, new, strict=True):
                text.read += len(part)
        return self._model.get_submodule("head")(hidden_BTD[range(len(new)), [len(part) - 1 for part in new]])

    @staticmethod
    def _choose(logits_BV: Tensor, texts: list[_Text]) -> list[int]:
        """Choose a token for each text, those with the same sampling together."""
        tokens = [0] * len(texts)
        draws_B = torch.stack([torch.rand((), generator=text.generator) for text in texts])
        for sampling in dict.fromkeys(text.sampling for text in texts):
            rows = [row for row, text in enumerate(texts) if text.sampling == sampling]
            theirs_BV = logits_BV if len(rows) == len(texts) else logits_BV[rows]  # the copy takes as long as a layer where there are many tokens
            for row, token in zip(rows, choose(theirs_BV, [texts[row].ids for row in rows], sampling, draws_B[rows]).tolist(), strict=True):
                tokens[row] = token
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


class _Cache(KeyValueCache):
    """A cache that texts join and leave."""

    def joined(self, other: _Cache | None) -> _Cache:
        """Make a cache of the texts of this and of another."""
        assert other is not None
        both = _Cache(0, self._most, self._device)
        both._lengths = [*self._lengths, *other._lengths]
        for one, two in zip(self._blocks, other._blocks, strict=True):
            both._blocks.append((_below(one[0], two[0]), _below(one[1], two[1])))
        return both

    def selected(self, rows: list[int]) -> _Cache:
        """Make a cache of some of the texts."""
        some = _Cache(0, self._most, self._device)
        some._lengths = [self._lengths[row] for row in rows]
        most = max(some._lengths)
        some._blocks = [(keys_BHLK[rows, :, :most], values_BHLK[rows, :, :most]) for keys_BHLK, values_BHLK in self._blocks]
        return some


def _below(one_BHLK: Tensor, two_BHLK: Tensor) -> Tensor:
    """Put the texts of the second tensor below those of the first; the shorter tensor is filled up with zeros, which nothing attends to."""
    batch, heads, _, width = one_BHLK.shape
    both = one_BHLK.new_zeros((batch + len(two_BHLK), heads, max(one_BHLK.shape[2], two_BHLK.shape[2]), width))
    both[:batch, :, :one_BHLK.shape[2]] = one_BHLK
    both[batch:, :, :two_BHLK.shape[2]] = two_BHLK
    return both
