"""Generating many texts side by side, each of which begins and ends at any step.  Writing floor: imports torch, modules and the ground.

Shapes: B texts, V vocabulary, H heads, L positions of the cache, K width of a head.
"""
from __future__ import annotations

import inspect
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.collate import to_device
from ..modules.cache import KeyValueCache
from ..modules.sharded import is_sharded
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
    """Texts that grow by a token in each step; what a text becomes depends on its seed, and not on those beside it.

    When a text is longer than the context, the model goes on with its last `context_len` // 2 tokens.
    """

    def __init__(self, model: nn.Module, end_ids: Collection[int], context_len: int, use_cache: bool = True):
        """
        :param model: see :mod:`lmplay.exp`; it is put into evaluation mode.
        :param end_ids: the tokens that end a text.
        :param context_len: the most tokens that the model can read.
        :param use_cache: False = read the whole text again for each token, as with models whose ``forward`` has no `cache`.
        """
        self._model, self._ends, self._context_len = model.eval(), set(end_ids), context_len
        self._device = next(model.parameters()).device
        self._has_cache = use_cache and "cache" in inspect.signature(model.forward).parameters
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

    def step(self) -> dict[Hashable, int | None]:
        """Write the next token of each text; None for a text that its end token ends, which is no longer there then."""
        with torch.no_grad() if is_sharded(self._model) else torch.inference_mode():  # what FSDP2 gathers is used in training, too
            return self._step()

    def _step(self) -> dict[Hashable, int | None]:
        """See :meth:`step`."""
        if not len(self):
            return {}
        of_texts = [self._logits(self._texts, self._cache)] if self._texts else []
        of_fresh, fresh = self._read_fresh()
        logits_BV = torch.cat([*of_texts, *of_fresh])
        if self._has_cache and self._fresh:
            self._cache = fresh if self._cache is None or fresh is None else self._cache.joined(fresh)
            self._texts, self._fresh = [*self._texts, *self._fresh], []
        texts = [*self._texts, *self._fresh]
        tokens = dict(zip([text.name for text in texts], self._choose(logits_BV, texts), strict=True))
        for text in texts:
            text.ids.append(tokens[text.name])
        self._fresh = [text for text in self._fresh if tokens[text.name] not in self._ends]
        self._keep([text for text in self._texts if tokens[text.name] not in self._ends])
        self._forget()
        return {name: None if token in self._ends else token for name, token in tokens.items()}

    def _read_fresh(self) -> tuple[list[Tensor], KeyValueCache | None]:
        """Read the texts that the model has yet to read, equal ones once: gives their logits, if there are any, and their cache."""
        if not self._fresh:
            return [], None
        distinct: dict[tuple[int, ...], int] = {}
        rows = [distinct.setdefault(tuple(text.ids[text.start:]), len(distinct)) for text in self._fresh]
        texts = [self._fresh[rows.index(row)] for row in range(len(distinct))]
        cache = KeyValueCache(len(texts), self._context_len, self._device) if self._has_cache else None
        logits_BV = self._logits(texts, cache)
        if len(texts) == len(rows):
            return [logits_BV], cache
        for text, row in zip(self._fresh, rows, strict=True):
            text.read = texts[row].read
        return [logits_BV.index_select(0, to_device(torch.tensor(rows), self._device))], cache.selected(rows) if cache is not None else None

    def _logits(self, texts: list[_Text], cache: KeyValueCache | None) -> Tensor:
        """Read what is new of each text; gives the logits of its next token (B, V)."""
        new = [text.ids[text.start + text.read:] for text in texts]
        width = max(map(len, new))
        tokens_BT = to_device(torch.tensor([part + [0] * (width - len(part)) for part in new]), self._device)
        if cache is None:
            hidden_BTD = self._model(tokens_BT)
        else:
            hidden_BTD = self._model(tokens_BT, cache=cache)
            cache.keep([len(part) for part in new])
            for text, part in zip(texts, new, strict=True):
                text.read += len(part)
        last_B = to_device(torch.tensor([row * width + len(part) - 1 for row, part in enumerate(new)]), self._device)
        return self._model.get_submodule("head")(hidden_BTD.flatten(0, 1).index_select(0, last_B))

    @staticmethod
    def _choose(logits_BV: Tensor, texts: list[_Text]) -> list[int]:
        """Choose a token for each text, those with the same sampling together."""
        tokens = [0] * len(texts)
        draws_B = torch.stack([torch.rand((), generator=text.generator) for text in texts])
        for sampling in dict.fromkeys(text.sampling for text in texts):
            rows = [row for row, text in enumerate(texts) if text.sampling == sampling]
            # the copy takes as long as a layer where there are many tokens
            theirs_BV = logits_BV if len(rows) == len(texts) else logits_BV.index_select(0, to_device(torch.tensor(rows), logits_BV.device))
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
