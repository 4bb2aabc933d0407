"""The rows of sets with right answers: which fields have what, by their usual names.  No torch."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..data.pairs import EQUAL, ChatPair, TextPair, read_pair
from ..data.roles import SYSTEMS
from ..data.turns import Skipped, Turn
from ..errors import UserError
from .sets import DataSet

T = TypeVar("T")
# The usual names of fields, in order of preference; case does not matter.
_QUESTION = ("question", "query", "prompt", "ctx", "goal", "sentence", "stem", "problem", "instruction", "input", "text", "context")
_CHOICES = ("choices", "options", "endings", "candidates", "alternatives")
_ANSWER = ("answer", "answerkey", "answer_key", "label", "gold", "answer_index", "answer_idx", "correct", "correct_answer", "target")
_PROMPT = ("prompt", "question", "problem", "instruction", "query", "input")
_TRUTH = ("answer", "final_answer", "solution", "truth", "completion", "output", "response", "target")


@dataclass(frozen=True)
class Question:
    """A question with its choices, and the number of the right one."""

    text: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class Pair:
    """A prompt, or the turns of a chat, and the better and the worse answer; `goes_on` where these are texts that begin with the prompt."""

    prompt: str | tuple[Turn, ...]
    chosen: str
    rejected: str
    goes_on: bool = False


@dataclass(frozen=True)
class Problem:
    """A prompt, and the right answer."""

    prompt: str
    answer: str


def read_questions(data: DataSet) -> list[Question]:
    """Read multiple choice questions; raises UserError naming the first row that is none."""
    found = []
    for where, row in data.rows():
        place = f"{data.label}: {where}"
        labels: Any
        text, labels = _text(place, row, _QUESTION, "the question"), ()
        choices: Any = _field(place, row, _CHOICES, "the choices")
        if isinstance(choices, dict):  # {"text": [...], "label": [...]}
            choices, labels = choices.get("text"), choices.get("label") or ()
        if isinstance(choices, list) and choices and all(isinstance(one, dict) for one in choices):
            choices, labels = [[one.get(name) for one in choices] for name in ("text", "label")]
        if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(one, str) and one for one in choices):
            raise UserError(f"{place}: its choices must be a list of at least two texts.")
        found.append(Question(text, tuple(choices), _number_of(place, _field(place, row, _ANSWER, "the right answer"), choices, labels)))
    return _some(data, found)


def read_pairs(data: DataSet) -> list[Pair]:
    """Read preferences as training reads them; raises UserError naming the first row that is none."""
    found = []
    for where, row in data.rows():
        place, fields = f"{data.label}: {where}", {name.lower(): value for name, value in row.items() if value is not None}
        chosen, rejected = (_field(place, row, (name,), f"the {name} answer") for name in ("chosen", "rejected"))
        prompt, system = (next((fields[name] for name in names if name in fields), None) for names in (_PROMPT, SYSTEMS))
        try:
            pair = read_pair(chosen, rejected, prompt or None, system)
        except Skipped as reason:
            if str(reason) != EQUAL:
                raise UserError(f"{place}: prompt, chosen and rejected must be texts, or lists of messages with role and content ({reason}).") from None
            pair = TextPair("", "=", "=", is_question=True)  # whatever is equal counts as half
        found.append(_pair_of(place, pair))
    return _some(data, found)


def _pair_of(place: str, pair: TextPair | ChatPair) -> Pair:
    """Give the prompt of a pair, and its two answers."""
    if isinstance(pair, TextPair):
        return Pair(pair.prompt, pair.chosen, pair.rejected, goes_on=not pair.is_question)
    if pair.chosen[:-1] != pair.rejected[:-1]:
        raise UserError(f"{place}: chosen and rejected must be texts, or chats that differ in their last message alone, an answer.")
    return Pair(pair.chosen[:-1], pair.chosen[-1].content, pair.rejected[-1].content)


def read_problems(data: DataSet) -> list[Problem]:
    """Read prompts with one right answer each; raises UserError naming the first row that has none."""
    found = []
    for where, row in data.rows():
        place = f"{data.label}: {where}"
        prompt, answer = _text(place, row, _PROMPT, "the prompt"), _field(place, row, _TRUTH, "the answer")
        if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not str(answer).strip():
            raise UserError(f"{place}: the answer must be a text or a number.")
        found.append(Problem(prompt, str(answer)))
    return _some(data, found)


def _some(data: DataSet, found: list[T]) -> list[T]:
    """Refuse a set without rows."""
    if not found:
        raise UserError(f"{data.label}: holds no rows.")
    return found


def _field(place: str, row: dict[str, Any], usual: Iterable[str], what: str) -> Any:
    """Find a field by its usual names."""
    fields = {name.lower(): value for name, value in row.items() if value is not None}
    found = next((fields[name] for name in usual if name in fields), None)
    if found is None:
        raise UserError(f"{place}: has no field for {what} ({', '.join(usual)}); its fields are {', '.join(row) or 'none'}.")
    return found


def _text(place: str, row: dict[str, Any], usual: Iterable[str], what: str) -> str:
    """Find a field that is a text."""
    found = _field(place, row, usual, what)
    if not isinstance(found, str):
        raise UserError(f"{place}: {what} must be a text.")
    return found


def _number_of(place: str, answer: Any, choices: Sequence[str], labels: Sequence[Any]) -> int:
    """Find which of the choices is right: by its label, its text, its letter, or its number from 0."""
    text = answer.strip() if isinstance(answer, str) else str(answer)
    if text in [str(label) for label in labels]:
        return [str(label) for label in labels].index(text)
    if isinstance(answer, str) and answer in choices:
        return list(choices).index(answer)
    letters = [chr(ord("A") + number) for number in range(len(choices))]
    if text.upper() in letters:
        return letters.index(text.upper())
    if not isinstance(answer, bool) and text.isascii() and text.isdecimal() and int(text) < len(choices):
        return int(text)
    raise UserError(f"{place}: the answer {text[:40]!r} is none of its {len(choices)} choices; allowed is a number from 0 to {len(choices) - 1}, a letter from "
                    f"A to {letters[-1]}, {'one of its labels, ' if labels else ''}or the text of a choice.")
