"""Answers that the model writes while it is trained, and what they are worth.  Engine floor.

What an answer becomes is decided by the weights, the prompt, and a seed of (the run's seed, the number of the sample, the number in the group), so that a run
that was stopped writes the same ones again. Of several ranks each writes its share; where each has a part of the weights only, all write all of them in unison.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from ..data.continuation import Piece
from ..data.judged import Judged
from ..data.permutation import hash64
from ..data.samples import BREAK
from ..data.sentences import Cut
from ..device.memory import free_memory, is_out_of_memory, memory_left
from ..device.model import DeviceModel
from ..errors import TrainingError, UserError
from ..modules.adapters import without_adapter
from ..modules.sharded import is_sharded
from ..objectives.grpo import cooled
from ..rewards.process import MOST, Rewards
from ..tokenizer import Tokenizer
from ..writing.continuous import ContinuousBatch
from ..writing.packed import pack
from ..writing.prompting import Prompting
from ..writing.sampling import Sampling
from ..writing.stops import has_stopped
from .accord import Accord
from .batches import Grouping
from .evaluate import token_log_probs
from .run import OpenStage

# Texts that are written at once; when memory runs out, half as many.
_ROWS = 64
# Memory for weights in another order, if nobody knows how much there is.
_UNKNOWN_BYTES = 1 << 30

_S = TypeVar("_S")
_T = TypeVar("_T")
Attempts = Callable[[int], Iterator[AbstractContextManager[int]]]


class AnswerWriter:
    """Lets the model of a stage write answers."""

    def __init__(self, stage: OpenStage, model: DeviceModel, tokenizer: Tokenizer, seed: int, grouping: Grouping, say: Callable[[str], None],
                 accord: Accord | None = None):
        """
        :param seed: the run's.
        :param grouping: makes the mini-batches in which log-probabilities are computed.
        :param say: is told when memory runs out.
        :param accord: of the ranks; None = a single process.
        """
        self._accord = accord or Accord()
        assert stage.objective.writing is not None
        self._stage, self._model, self._tokenizer, self._seed, self._grouping, self._say = stage, model, tokenizer, seed, grouping, say
        self.writing, self._context_len = stage.objective.writing, stage.settings.context_len
        self._limit, self._rows = self.writing.limit(self._context_len), _ROWS
        self._rewards = Rewards(self.writing.rewards)
        self.close = self._rewards.close
        forms = stage.data.forms()
        chats = [form["chat"] for form in forms if form["form"] == "chat"]
        prompting = Prompting(tokenizer, "chat" if chats else "instruction", chats[-1] if chats else None)
        self._ends, self._stops = prompting.ends, prompting.stop_texts
        self.reference: DeviceModel | None = None
        """The model as it was at the start of the stage, where the objective compares with it; with its adapter off, where the stage has one."""
        self._warned = False

    def write_groups(self, pieces: Sequence[Piece], first: int, attempts: Attempts, interrupted: Callable[[], bool]) -> list[Piece] | None:
        """Write a group of answers to each prompt, and judge them.

        :param pieces: of the prompts.
        :param first: the number of the first of these samples in the run.
        :param attempts: to compute log-probabilities in mini-batches, see :meth:`.budget.TokenBudget.attempts`.
        :param interrupted: asked before each token, and before each text is judged.
        :return: a piece for each answer, those of a group in a row; None when interrupted.
        :raises UserError: when a reward fails.
        """
        group, seed = self.writing.group, self._seed
        prompts = [piece for piece in pieces for _ in range(group)]
        seeds = [hash64(seed, first + number, member) >> 1 for number in range(len(pieces)) for member in range(group)]
        found = self._answer(prompts, seeds, Sampling(temperature=self.writing.temperature), interrupted)
        if found is None:
            return None
        deviations = []
        for begin in range(0, len(found), group):
            judged = [one for piece in found[begin:begin + group] if (one := piece.judged)]
            advantages, deviation = self._stage.objective.advantages([one.reward for one in judged])
            deviations.append(deviation)
            found[begin:begin + group] = [
                replace(piece, last=number == group - 1, judged=replace(one, advantage=advantage, deviation=deviation))
                for number, (piece, one, advantage) in enumerate(zip(found[begin:begin + group], judged, advantages, strict=True))]
        self._warn(deviations)
        if self.reference is not None:
            with without_adapter(self.reference.raw):  # which is the model itself, where the stage trains an adapter
                found = self._with_log_probs(found, self.reference, "reference", attempts)
        return found if self.writing.updates == 1 else self._with_log_probs(found, self._model, "before", attempts)

    def write_best(self, units: Iterable[list[Piece]], interrupted: Callable[[], bool]) -> list[list[Piece]] | None:
        """Write an answer to each prompt, always the most probable token, and judge them; None when interrupted."""
        prompts = self._accord.alike(lambda: [unit[0] for unit in units])
        found = self._answer(prompts, [0] * len(prompts), Sampling(temperature=0), interrupted)
        return None if found is None else [[piece] for piece in found]

    def _warn(self, deviations: Sequence[float]) -> None:
        """Warn once where nothing can be learned from a batch."""
        if self._warned or any(deviations):
            return
        self._warned = True
        self._say(f"WARNING: stage '{self._stage.stage.name}': in each group of this step all answers have the same reward, so nothing is learned from them. "
                  "Where that stays so (reward_deviation): easier prompts, a reward with more than two values, a larger group, or a higher temperature.")

    def _answer(self, prompts: Sequence[Piece], seeds: Sequence[int], sampling: Sampling, interrupted: Callable[[], bool]) -> list[Piece] | None:
        """Write a text behind each prompt, and judge it; None when interrupted."""
        def write(some: Sequence[tuple[Piece, int]], halted: Callable[[], bool]) -> list[list[int]] | None:
            return self._write([prompt for prompt, _ in some], [seed for _, seed in some], sampling, halted)

        def judge(some: Sequence[tuple[Piece, list[int]]]) -> list[Piece] | None:
            return self._judge([prompt for prompt, _ in some], [ids for _, ids in some], interrupted)

        written = self._by_all([*zip(prompts, seeds, strict=True)], write, interrupted)
        return None if written is None else self._accord.in_shares([*zip(prompts, written, strict=True)], judge)

    def _by_all(self, items: Sequence[_S], work: Callable[[Sequence[_S], Callable[[], bool]], list[_T] | None], interrupted: Callable[[], bool]) \
            -> list[_T] | None:
        """Let the model work on items, see :meth:`Accord.in_shares`; what it works with may tell it that it is interrupted."""
        accord = self._accord
        if not accord.ranks.shards:
            return accord.in_shares(items, lambda some: work(some, interrupted))

        def in_unison() -> list[_T] | None:
            with accord.in_unison(self._model.raw):
                found = work(items, lambda: False)
            return None if interrupted() else found

        return accord.alike(in_unison)

    def _write(self, prompts: Sequence[Piece], seeds: Sequence[int], sampling: Sampling, interrupted: Callable[[], bool]) -> list[list[int]] | None:
        """Write a text behind each prompt; gives the token ids, the one that ends a text too."""
        raw, device = self._model.raw, self._model.runtime.device
        was_training = raw.training
        try:
            while True:
                try:
                    return self._write_at_once(prompts, seeds, sampling, interrupted)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    if self._rows == 1 or is_sharded(raw):  # with weights in shares no rank can begin anew alone
                        raise TrainingError(f"out of memory with {self._rows} answer{'s' * (self._rows > 1)} written at once; the last checkpoint is intact. "
                                            "A smaller answer_tokens, --context-len or model may help.") from error
                self._rows //= 2
                free_memory(device)
                self._say(f"out of memory: from here on {self._rows} answers are written at once")
        finally:
            raw.train(was_training)

    def _write_at_once(self, prompts: Sequence[Piece], seeds: Sequence[int], sampling: Sampling, interrupted: Callable[[], bool]) -> list[list[int]] | None:
        """See :meth:`_write`: a text begins as soon as another ends."""
        runtime = self._model.runtime
        texts: list[list[int]] = [[] for _ in prompts]
        limits = [self._limit_of(piece) for piece in prompts]
        left, model = memory_left(runtime.device), self._model.raw
        if not is_sharded(model):
            model = pack(model, min(self._rows, len(prompts)), _UNKNOWN_BYTES if left is None else left // 2)
        batch, begun = ContinuousBatch(model, (), self._context_len), 0
        with nullcontext() if runtime.device.type == "cpu" else runtime.autocast():
            while True:
                for number in range(begun, min(len(prompts), begun + self._rows - len(batch))):
                    batch.add(number, prompts[number].tokens[:prompts[number].n_prompt].tolist(), sampling, seeds[number])
                    begun += 1
                if not len(batch):
                    return texts
                if interrupted():
                    return None
                over = []
                for name, [token] in batch.step().items():
                    number = int(str(name))
                    assert token is not None
                    texts[number].append(token)
                    if len(texts[number]) == limits[number] or self._is_over(texts[number]):
                        over.append(number)
                if over:
                    batch.remove(*over)

    def _is_over(self, ids: list[int]) -> bool:
        """Tell whether an answer is at its end: by its last token, or by a mark of several tokens."""
        return ids[-1] in self._ends or has_stopped(self._tokenizer.decode, ids, self._stops)

    def _limit_of(self, prompt: Piece) -> int:
        """Give the most tokens of an answer to a prompt."""
        return min(self._limit, self._context_len - prompt.n_prompt)

    def _judge(self, prompts: Sequence[Piece], written: Sequence[list[int]], interrupted: Callable[[], bool]) -> list[Piece] | None:
        """Make pieces of what was written, with its rewards; None when interrupted."""
        said = [self._decode(ids) for ids in written]
        asked = [{"text": text, "answer": piece.sample.truth, "prompt": piece.sample.prompt.removesuffix(BREAK)}
                 for text, piece in zip(said, prompts, strict=True)]
        try:
            rewards = self._rewards.judge(asked, interrupted)
        except UserError as error:
            raise UserError(*(f"stage '{self._stage.stage.name}': {fault}" for fault in error.faults)) from None
        if rewards is None:
            return None
        weights = [float(reward.get("weight", 1.0)) for reward in self.writing.rewards]
        empty = np.zeros(0, dtype=np.int64)
        found = []
        for prompt, ids, text, each in zip(prompts, written, said, rewards, strict=True):
            reward = sum(weight * one for weight, one in zip(weights, each, strict=True))
            if not abs(reward) <= MOST:  # nor a number at all
                raise UserError(f"stage '{self._stage.stage.name}': the weighted sum of the rewards is {reward:g}, allowed: from {-MOST:g} to {MOST:g}. "
                                "Smaller weights may help.")
            judged = Judged(tuple(each), reward, self._limit, not self._is_over(ids))
            tokens = np.concatenate([prompt.tokens[:prompt.n_prompt], np.array(ids, dtype=prompt.tokens.dtype)])
            found.append(Piece(prompt.sample, tokens, prompt.n_prompt, text, Cut.END, 0, True, judged=judged, prompt_lost=prompt.prompt_lost, starts=empty,
                               cuttable=empty.astype(bool)))
        return found

    def _decode(self, ids: list[int]) -> str:
        """Give the text of an answer, without what ends it."""
        text = self._tokenizer.decode(ids[:-1] if ids[-1] in self._ends else ids)
        for stop in self._stops:
            text = text.partition(stop)[0]
        return text

    def _with_log_probs(self, pieces: list[Piece], model: DeviceModel, name: str, attempts: Attempts) -> list[Piece]:
        """Add the log-probabilities that a model gives to answers, under `name` of :class:`Judged`."""
        def share(some: Sequence[Piece], halted: Callable[[], bool]) -> list[dict[str, Any]]:
            found: list[Tensor] = []
            for attempt in attempts(max((len(piece.tokens) for piece in some), default=1) - 1):
                with attempt as tokens:
                    found = token_log_probs(model, some, self._grouping.mini_batches(some, tokens), cooled(model.head, self.writing.temperature))
            return [{name: one.numpy()} for one in found]

        added = self._by_all(pieces, share, lambda: False)
        assert added is not None
        return [replace(piece, judged=replace(piece.judged, **one)) for piece, one in zip(pieces, added, strict=True) if piece.judged]


def check_writing(stage: OpenStage) -> list[str]:
    """List what keeps the model from writing answers in a stage."""
    writing, name, context_len = stage.objective.writing, stage.stage.name, stage.settings.context_len
    if writing is None:
        return []
    faults = []
    if writing.limit(context_len) > context_len // 2:
        faults.append(f"stage '{name}': answer_tokens {writing.limit(context_len)}, and its context_len is {context_len}: at most half of it, "
                      f"{context_len // 2}, so that prompts fit before them.")
    if stage.settings.context_len_schedule is not None:
        faults.append(f"stage '{name}': its context_len changes, and with {stage.settings.objective} it is one for all prompts and answers; give a number.")
    if stage.stage.tokens is not None:
        faults.append(f"stage '{name}': its length is in tokens, and how many the model will write is not known; give epochs, samples or steps.")
    rewards = Rewards(writing.rewards)
    try:
        rewards.open()
    except UserError as error:
        faults += [f"stage '{name}': {fault}" for fault in error.faults]
    finally:
        rewards.close()
    return faults
