"""Thoughts that the model writes before a prediction, and what they add to it.  Engine floor."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from ..data.continuation import Piece
from ..data.judged import Judged
from ..data.permutation import hash64
from ..device.model import DeviceModel
from ..tokenizer import Tokenizer
from .accord import Accord
from .answers import AnswerWriter, Attempts, behind
from .batches import Grouping
from .run import OpenStage

# Tokens before a thought that are shown with it.
_SHOWN = 64


class ThoughtWriter(AnswerWriter):
    """Lets the model of a stage write thoughts, and judges them by the tokens behind: with the thought by the model, without it by its teacher."""

    _kind, _ways_out = "thoughts", "a larger group, more thought_tokens, or a higher temperature"

    def __init__(self, *arguments: Any, taught: Callable[[], AbstractContextManager[None]]):
        """
        :param arguments: see :class:`.answers.AnswerWriter`.
        :param taught: gives the model the weights of its teacher in a block.
        """
        super().__init__(*arguments)
        assert self.writing.thoughts is not None
        self._taught = taught
        self._start, self._end = (self._tokenizer.encode_markup(mark).ids.tolist() for mark in (self.writing.thoughts.start, self.writing.thoughts.end))

    def row(self, answer: Piece) -> dict[str, Any]:
        """See :class:`.answers.AnswerWriter`."""
        assert answer.judged is not None
        assert answer.judged.between is not None
        before, after = answer.judged.between
        return {"prompt": before, "text": answer.truth, "truth": after, "reward": answer.judged.reward}

    def _find_ends(self) -> tuple[set[int], tuple[str, ...]]:
        """See :class:`.answers.AnswerWriter`."""
        assert self.writing.thoughts is not None
        end, end_id = self._tokenizer.encode_markup(self.writing.thoughts.end).ids.tolist(), self._tokenizer.end_id
        return ({end_id, *end}, ()) if len(end) == 1 else ({end_id}, (self.writing.thoughts.end,))

    def _seeds(self, pieces: Sequence[Piece], first: int) -> list[int]:
        """See :class:`.answers.AnswerWriter`; a sample may have several pieces, in several batches."""
        return [hash64(self._seed, first, piece.sample.source, piece.sample.row, piece.number) for piece in pieces]

    def _judge(self, prompts: Sequence[Piece], written: Sequence[list[int]], interrupted: Callable[[], bool]) -> list[Piece] | None:
        """See :class:`.answers.AnswerWriter`."""
        places = {id(piece): piece for piece in prompts}
        with self._taught():
            plain = [behind(piece, piece.n_prompt - len(self._start), _ahead(piece)) for piece in places.values()]
            alone = self._log_probs(plain, self._model, self._model.head)
        by_teacher = {key: float(one.mean()) for key, one in zip(places, alone, strict=True)}
        if interrupted():
            return None
        thoughts = [behind(piece, piece.n_prompt, ids, self._decode(ids)) for piece, ids in zip(prompts, written, strict=True)]
        after = [np.concatenate([self._end if self._lacks_end(ids) else [], _ahead(piece)]).astype(piece.tokens.dtype)
                 for piece, ids in zip(prompts, written, strict=True)]
        whole = [behind(thought, len(thought.tokens), tokens) for thought, tokens in zip(thoughts, after, strict=True)]
        found = []
        for piece, thought, tokens, ids, one in zip(prompts, thoughts, after, written, self._log_probs(whole, self._model, self._model.head), strict=True):
            n_ahead = len(_ahead(piece))
            rewards = float(one[-n_ahead:].mean()), -by_teacher[id(piece)]
            before = self._tokenizer.decode(piece.tokens[:piece.n_prompt - len(self._start)][-_SHOWN:])
            judged = Judged(rewards, sum(rewards), self._limit, not self._is_over(ids), between=(before, piece.truth), behind=tokens, n_ahead=n_ahead)
            found.append(replace(thought, judged=judged))
        return found

    def _to_learn(self, answer: Piece) -> Piece:
        """See :class:`.answers.AnswerWriter`: the thought, and where the objective says so the tokens that it was judged by."""
        thoughts, judged = self.writing.thoughts, answer.judged
        assert thoughts is not None
        assert judged is not None
        assert judged.behind is not None
        if not thoughts.learns_text:
            return answer
        tokens = np.concatenate([answer.tokens, judged.behind])
        learned = np.ones(len(tokens) - answer.n_prompt, dtype=bool)
        learned[answer.n_truth:len(learned) - judged.n_ahead] = False  # the mark
        return replace(answer, tokens=tokens, learned=learned)

    def _lacks_end(self, ids: list[int]) -> bool:
        """Tell whether a thought is still to be given its mark."""
        return not self._is_over(ids) or (ids[-1] == self._tokenizer.end_id and self._end != ids[-1:])


def _ahead(piece: Piece) -> np.ndarray:
    """Give the tokens that a thought is judged by."""
    return piece.tokens[piece.n_prompt:]


def open_writer(stage: OpenStage, model: DeviceModel, tokenizer: Tokenizer, seed: int, grouping: Grouping, attempts: Attempts, say: Callable[[str], None],
                taught: Callable[[], AbstractContextManager[None]], accord: Accord | None = None) -> AnswerWriter | None:
    """Make what writes answers or thoughts in a stage; None where the model learns from what it reads. Arguments: see :class:`.answers.AnswerWriter`, and
    :class:`ThoughtWriter`."""
    writing = stage.objective.writing
    if writing is None:
        return None
    given = stage, model, tokenizer, seed, grouping, attempts, say, accord
    return AnswerWriter(*given) if writing.thoughts is None else ThoughtWriter(*given, taught=taught)
