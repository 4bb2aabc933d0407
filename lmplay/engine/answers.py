"""Answers that the model writes while it is trained, and what they are worth.  Engine floor.

What an answer becomes is decided by the weights, the prompt, and a seed of (the run's seed, the number of the sample, the number in the group), so that a run
that was stopped writes the same ones again. Of several ranks each writes its share; where each has a part of the weights only, all write all of them in unison.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

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
from ..plan.options import SMALLEST_CONTEXT
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

    _kind, _ways_out = "answers", "easier prompts, a reward with more than two values, a larger group, or a higher temperature"

    def __init__(self, stage: OpenStage, model: DeviceModel, tokenizer: Tokenizer, seed: int, grouping: Grouping, attempts: Attempts,
                 say: Callable[[str], None], accord: Accord | None = None):
        """
        :param seed: the run's.
        :param grouping: makes the mini-batches in which log-probabilities are computed, and `attempts` says how large they are, see
            :meth:`.budget.TokenBudget.attempts`.
        :param say: is told when memory runs out.
        :param accord: of the ranks; None = a single process.
        """
        self._accord = accord or Accord()
        assert stage.objective.writing is not None
        self._stage, self._model, self._tokenizer, self._seed, self._grouping, self._attempts = stage, model, tokenizer, seed, grouping, attempts
        self.writing, self._context_len, self._say = stage.objective.writing, stage.settings.context_len, say
        self._limit, self._rows = self.writing.limit(self._context_len), _ROWS
        self._rewards = Rewards(self.writing.rewards)
        self.close = self._rewards.close
        self._ends, self._stops = self._find_ends()
        self.reference: DeviceModel | None = None
        """The model as it was at the start of the stage, where the objective compares with it; with its adapter off, where the stage has one."""
        self._warned = False

    def write_groups(self, pieces: Sequence[Piece], first: int, interrupted: Callable[[], bool]) -> list[Piece] | None:
        """Write a group of answers to each prompt, and judge them.

        :param pieces: of the prompts.
        :param first: the number of the first of these samples in the run.
        :param interrupted: asked before each token, and before each text is judged.
        :return: a piece for each answer, those of a group in a row; None when interrupted.
        :raises UserError: when a reward fails.
        """
        group = self.writing.group
        prompts = [piece for piece in pieces for _ in range(group)]
        seeds = [hash64(member, state=named) >> 1 for named in self._seeds(pieces, first) for member in range(group)]
        found = self._answer(prompts, seeds, Sampling(temperature=self.writing.temperature), interrupted)
        if found is None:
            return None
        deviations = []
        for begin in range(0, len(found), group):
            judged = [one for piece in found[begin:begin + group] if (one := piece.judged)]
            advantages, deviation = self._stage.objective.advantages([one.reward for one in judged])
            deviations.append(deviation)
            found[begin:begin + group] = [
                replace(self._to_learn(piece), last=piece.last and number == group - 1, judged=replace(one, advantage=advantage, deviation=deviation))
                for number, (piece, one, advantage) in enumerate(zip(found[begin:begin + group], judged, advantages, strict=True))]
        self._warn(deviations)
        if self.reference is not None:
            with without_adapter(self.reference.raw):  # which is the model itself, where the stage trains an adapter
                found = self._with_log_probs(found, self.reference, "reference")
        return found if self.writing.updates == 1 else self._with_log_probs(found, self._model, "before")

    def write_best(self, units: Iterable[list[Piece]], interrupted: Callable[[], bool]) -> list[list[Piece]] | None:
        """Write an answer to each prompt, always the most probable token, and judge them; None when interrupted."""
        asked = self._accord.alike(lambda: list(units))
        prompts = [piece for unit in asked for piece in unit]
        found = self._answer(prompts, [0] * len(prompts), Sampling(temperature=0), interrupted)
        if found is None:
            return None
        answers = iter(found)
        return [list(islice(answers, len(unit))) for unit in asked]

    def _to_learn(self, answer: Piece) -> Piece:
        """Give the piece that is learned of an answer."""
        return answer

    def row(self, answer: Piece) -> dict[str, Any]:
        """Say what was written in a validation, for the file of samples."""
        assert answer.judged is not None
        return {"prompt": answer.sample.prompt.strip(), "text": answer.truth, "truth": answer.sample.truth, "reward": answer.judged.reward}

    def _find_ends(self) -> tuple[set[int], tuple[str, ...]]:
        """Give the tokens and the texts that end an answer."""
        chats = [form["chat"] for form in self._stage.data.forms() if form["form"] == "chat"]
        prompting = Prompting(self._tokenizer, "chat" if chats else "instruction", chats[-1] if chats else None)
        return prompting.ends, prompting.stop_texts

    def _seeds(self, pieces: Sequence[Piece], first: int) -> list[int]:
        """Give a seed for each prompt of a batch; `first` is the number of the first sample in the run."""
        return [hash64(self._seed, first + number) for number in range(len(pieces))]

    def _warn(self, deviations: Sequence[float]) -> None:
        """Warn once where nothing can be learned from a batch."""
        if self._warned or any(deviations):
            return
        self._warned = True
        self._say(f"WARNING: stage '{self._stage.stage.name}': in each group of this step all {self._kind} have the same reward, so nothing is learned from "
                  f"them. Where that stays so (reward_deviation): {self._ways_out}.")

    def _answer(self, prompts: Sequence[Piece], seeds: Sequence[int], sampling: Sampling, interrupted: Callable[[], bool]) -> list[Piece] | None:
        """Write a text behind each prompt, and judge it; None when interrupted."""
        def write(some: Sequence[tuple[Piece, int]], halted: Callable[[], bool]) -> list[list[int]] | None:
            return self._write([prompt for prompt, _ in some], [seed for _, seed in some], sampling, halted)

        written = self._by_all([*zip(prompts, seeds, strict=True)], write, interrupted)
        return None if written is None else self._judge(prompts, written, interrupted)

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
        def judge(some: Sequence[tuple[Piece, list[int]]]) -> list[Piece] | None:
            return self._judge_share([prompt for prompt, _ in some], [ids for _, ids in some], interrupted)

        return self._accord.in_shares([*zip(prompts, written, strict=True)], judge)

    def _judge_share(self, prompts: Sequence[Piece], written: Sequence[list[int]], interrupted: Callable[[], bool]) -> list[Piece] | None:
        """See :meth:`_judge`, of this rank's share."""
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
        found = []
        for prompt, ids, text, each in zip(prompts, written, said, rewards, strict=True):
            reward = sum(weight * one for weight, one in zip(weights, each, strict=True))
            if not abs(reward) <= MOST:  # nor a number at all
                raise UserError(f"stage '{self._stage.stage.name}': the weighted sum of the rewards is {reward:g}, allowed: from {-MOST:g} to {MOST:g}. "
                                "Smaller weights may help.")
            judged = Judged(tuple(each), reward, self._limit, not self._is_over(ids))
            found.append(behind(prompt, prompt.n_prompt, ids, text, judged))
        return found

    def _decode(self, ids: list[int]) -> str:
        """Give the text of an answer, without what ends it."""
        text = self._tokenizer.decode(ids[:-1] if ids[-1] in self._ends else ids)
        for stop in self._stops:
            text = text.partition(stop)[0]
        return text

    def _with_log_probs(self, pieces: list[Piece], model: DeviceModel, name: str) -> list[Piece]:
        """Add the log-probabilities that a model gives to answers, under `name` of :class:`Judged`."""
        known: list[dict[str, Any]] = [{name: one} for one in self._log_probs(pieces, model, cooled(model.head, self.writing.temperature))]
        return [replace(piece, judged=replace(piece.judged, **one)) for piece, one in zip(pieces, known, strict=True) if piece.judged]

    def _log_probs(self, pieces: list[Piece], model: DeviceModel, head: nn.Module) -> list[np.ndarray]:
        """Compute the log-probabilities that a model gives to the tokens behind the prompts of pieces."""
        def share(some: Sequence[Piece], halted: Callable[[], bool]) -> list[np.ndarray]:
            found: list[Tensor] = []
            for attempt in self._attempts(max((len(piece.tokens) for piece in some), default=1) - 1):
                with attempt as tokens:
                    found = token_log_probs(model, some, self._grouping.mini_batches(some, tokens), head)
            return [one.numpy() for one in found]

        found = self._by_all(pieces, share, lambda: False)
        assert found is not None
        return found


def behind(prompt: Piece, n_prompt: int, ids: Sequence[int] | np.ndarray, text: str = "", judged: Judged | None = None) -> Piece:
    """Make a piece of other tokens behind the first of a prompt, of which no text is known by token."""
    empty = np.zeros(0, dtype=np.int64)
    tokens = np.concatenate([prompt.tokens[:n_prompt], np.asarray(ids, dtype=prompt.tokens.dtype)])
    return Piece(prompt.sample, tokens, n_prompt, text, Cut.END, prompt.number, prompt.last, judged=judged, prompt_lost=prompt.prompt_lost, starts=empty,
                 cuttable=empty.astype(bool))


def check_writing(stage: OpenStage) -> list[str]:
    """List what keeps the model from writing answers in a stage."""
    writing, name, context_len = stage.objective.writing, stage.stage.name, stage.settings.context_len
    if writing is None:
        return []
    faults = []
    what, key = ("answers", "answer_tokens") if writing.thoughts is None else ("thoughts", "thought_tokens")
    if writing.limit(context_len) > context_len // 2:
        faults.append(f"stage '{name}': {key} {writing.limit(context_len)}, and its context_len is {context_len}: at most half of it, "
                      f"{context_len // 2}, so that {'prompts fit' if writing.thoughts is None else 'text fits'} before them.")
    elif writing.thoughts is not None:
        marks = sum(len(mark.encode()) + 1 for mark in (writing.thoughts.start, writing.thoughts.end))  # a token has a byte at least, but for a space before
        if (least := SMALLEST_CONTEXT + marks + writing.limit(context_len)) > context_len:
            faults.append(f"stage '{name}': its context_len is {context_len}: at least {least}, so that {SMALLEST_CONTEXT} tokens of text fit beside "
                          "a thought and its marks; or lower thought_tokens.")
    if stage.settings.context_len_schedule is not None:
        faults.append(f"stage '{name}': its context_len changes, and with {stage.settings.objective} it is one for all prompts and {what}; give a number.")
    if stage.stage.tokens is not None:
        faults.append(f"stage '{name}': its length is in tokens, and how many the model will write is not known; give epochs, samples or steps.")
    return [*faults, *_check_rewards(name, writing.rewards)] if writing.rewards else faults


def _check_rewards(stage: str, specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """List what keeps the process of rewards from starting."""
    rewards = Rewards(specs)
    try:
        rewards.open()
    except UserError as error:
        return [f"stage '{stage}': {fault}" for fault in error.faults]
    finally:
        rewards.close()
    return []
