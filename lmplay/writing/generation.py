"""Generating texts with a model, token by token.  Writing floor: imports torch, modules and the ground.

Shapes: B texts, T positions, V vocabulary.
"""
from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn

from ..modules.cache import KeyValueCache
from .sampling import Sampling, choose


@torch.inference_mode()
def generate(model: nn.Module, prompts: Sequence[Sequence[int]], end_ids: int | Collection[int], context_len: int, sampling: Sampling, seeds: Sequence[int],
             most_tokens: int, use_cache: bool = True) -> Iterator[list[int | None]]:
    """Continue prompts, all at once; puts the model into evaluation mode.

    When a text is longer than the context, the model goes on with its last `context_len` // 2 tokens.  A completion depends on its prompt's seed, not on the
    other prompts.

    :param model: see :mod:`lmplay.exp`; if its ``forward`` has a `cache`, each token is read once.
    :param prompts: token ids, at least one each; only the end of a long one is read.
    :param end_ids: the token, or the tokens, that end a text.
    :param context_len: the most tokens that the model can read.
    :param seeds: one for each prompt.
    :param most_tokens: the most new tokens of each text.
    :param use_cache: False = read the whole text again for each token (for models without a cache, and to compare).
    :return: for each step the new token of each text; None once it has ended (the end token itself is left out).
    """
    model.eval()
    ends = {end_ids} if isinstance(end_ids, int) else set(end_ids)
    device = next(model.parameters()).device
    writer = _Writer(model, prompts, context_len, use_cache and "cache" in inspect.signature(model.forward).parameters, device)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    ended = [False] * len(prompts)
    for _ in range(most_tokens):
        draws = torch.stack([torch.rand((), generator=generator) for generator in generators])
        tokens: list[int] = choose(writer.logits(), writer.texts, sampling, draws).tolist()
        ended = [done or token in ends for done, token in zip(ended, tokens, strict=True)]
        if all(ended):
            return
        yield [None if done else token for done, token in zip(ended, tokens, strict=True)]
        writer.add(tokens)


class _Writer:
    """Texts that grow by one token at a time, and the logits of the next token."""

    def __init__(self, model: nn.Module, prompts: Sequence[Sequence[int]], context_len: int, use_cache: bool, device: torch.device):
        self.texts = [list(prompt) for prompt in prompts]
        self._model, self._context_len, self._use_cache, self._device = model, context_len, use_cache, device
        self._starts = [max(0, len(text) - context_len) for text in self.texts]  # where the model begins to read each text
        self._cache: KeyValueCache | None = None
        self._read = [0] * len(prompts)  # tokens of each text in the cache, counted from its start

    def add(self, tokens: Sequence[int]) -> None:
        """Append a token to each text."""
        for text, token in zip(self.texts, tokens, strict=True):
            text.append(token)
        for number, text in enumerate(self.texts):
            if len(text) - self._starts[number] > self._context_len:
                self._starts[number] = len(text) - self._context_len // 2
                self._cache = None

    def logits(self) -> Tensor:
        """Return the logits of the next token (B, V)."""
        if self._use_cache and self._cache is None:
            self._cache = KeyValueCache(len(self.texts), self._context_len, self._device)
            self._read = [0] * len(self.texts)
        new = [text[start + read:] for text, start, read in zip(self.texts, self._starts, self._read, strict=True)]
        counts = [len(part) for part in new]
        width = max(counts)
        tokens_BT = torch.tensor([part + [0] * (width - len(part)) for part in new], device=self._device)
        if self._cache is None:
            hidden_BTD = self._model(tokens_BT)
        else:
            hidden_BTD = self._model(tokens_BT, cache=self._cache)
            self._cache.keep(counts)
            self._read = [read + len(part) for read, part in zip(self._read, new, strict=True)]
        last_BD = hidden_BTD[range(len(new)), [count - 1 for count in counts]] if width > 1 else hidden_BTD[:, 0]
        return self._model.get_submodule("head")(last_BD)
