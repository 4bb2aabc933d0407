"""Generating texts with a model, token by token.  Writing floor: imports torch, modules and the ground."""
from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torch import nn

from .continuous import ContinuousBatch
from .sampling import Sampling


def generate(model: nn.Module, prompts: Sequence[Sequence[int]], end_ids: int | Collection[int], context_len: int, sampling: Sampling, seeds: Sequence[int],
             most_tokens: int, use_cache: bool = True, draft: nn.Module | None = None) -> Iterator[list[int | None]]:
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
    :param draft: see :class:`ContinuousBatch`.
    :return: for each step the new token of each text; None once it has ended (the end token itself is left out).
    """
    batch = ContinuousBatch(model, {end_ids} if isinstance(end_ids, int) else end_ids, context_len, use_cache, draft)
    for number, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        batch.add(number, prompt, sampling, seed)
    texts: list[list[int | None]] = [[] for _ in prompts]
    for position in range(most_tokens):
        while any(len(text) <= position and None not in text[-1:] for text in texts):
            for name, tokens in batch.step().items():
                text = texts[int(str(name))]
                text += tokens
                if len(text) >= most_tokens:
                    batch.remove(name)
        step = [text[position] if position < len(text) else None for text in texts]
        if not any(token is not None for token in step):
            return
        yield step
