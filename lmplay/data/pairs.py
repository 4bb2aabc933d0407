"""Preference pairs: one prompt, an answer that is chosen and one that is rejected, as texts or as chats.  Data floor, no torch."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

from .turns import Skipped, Turn, need_text, read_turns, up_to_answer

EQUAL = "equal answers"
"""The reason that pairs without a difference are counted under."""
DIFFERENT = "different prompts"
"""The reason for pairs whose answers are not to the same question."""


class TextPair(NamedTuple):
    """A pair of texts. `is_question` says that the prompt is a field of its own, else it is what both texts begin with."""

    prompt: str
    chosen: str
    rejected: str
    is_question: bool


class ChatPair(NamedTuple):
    """A pair of chats, each from its first message to the last answer; of the messages that they share the answers are given, not learned."""

    chosen: tuple[Turn, ...]
    rejected: tuple[Turn, ...]


def read_pair(chosen: Any, rejected: Any, prompt: Any = None, system: Any = None) -> TextPair | ChatPair:
    """Read a row of preferences.

    The prompt is a text, or a list of messages. Without one it is what both answers begin with: whole messages, or whole words. A prompt in words beside
    chats that have the question themselves says nothing new, and is left out.

    :param chosen: a text, or a list of messages.
    :param rejected: the same.
    :param prompt: None where the row has none.
    :param system: what a system message says; None or blank where there is none.
    :return: the pair.
    :raises Skipped: when it cannot be one.
    """
    system = need_text(system) if isinstance(system, str) and system.strip() else ""
    if isinstance(chosen, list) or isinstance(rejected, list) or isinstance(prompt, list):
        return _read_chats(_turns_of(chosen), _turns_of(rejected), prompt, system)
    one, other = need_text(chosen), need_text(rejected)
    if one == other:
        raise Skipped(EQUAL)
    if prompt is None:
        n_shared = next((place for place, two in enumerate(zip(one, other, strict=False)) if two[0] != two[1]), min(len(one), len(other)))
        shared = one[:n_shared]
        begin = max((place for place, character in enumerate(shared) if character.isspace()), default=0)
        begin += shared[begin:begin + 1] not in ("", " ") and shared[begin].isspace()  # a space goes with the word behind it, as tokenizers have it
        return TextPair((f"{system}\n\n" if system else "") + one[:begin], need_text(one[begin:]), need_text(other[begin:]), is_question=False)
    question = need_text(prompt)
    return TextPair(f"{system}\n\n{question}" if system else question, one, other, is_question=True)


def _turns_of(answer: Any) -> list[Turn]:
    """Read an answer: messages, or the text of one."""
    return [Turn("assistant", need_text(answer), learned=True)] if not isinstance(answer, list) else read_turns(answer)


def _read_chats(chosen: list[Turn], rejected: list[Turn], prompt: Any, system: str) -> ChatPair:
    """Put prompt and answers together, and find what the two chats share."""
    if isinstance(prompt, str) and all(turns and turns[0].learned for turns in (chosen, rejected)):
        asked = [Turn("user", need_text(prompt), learned=False)]
    else:
        asked = read_turns(prompt) if isinstance(prompt, list) else []
    one, other = (up_to_answer(_joined(asked, turns, system)) for turns in (chosen, rejected))
    if one == other:
        raise Skipped(EQUAL)
    n_shared = sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(one[:-1], other[:-1], strict=False)))
    pair = ChatPair(_given(one, n_shared), _given(other, n_shared))
    if _asked(pair.chosen) != _asked(pair.rejected):
        raise Skipped(DIFFERENT)
    return pair


def _asked(turns: Sequence[Turn]) -> list[Turn]:
    """List the messages before the first answer that is learned."""
    return list(takewhile(lambda turn: not turn.learned, turns))


def _joined(asked: list[Turn], answer: list[Turn], system: str) -> list[Turn]:
    """Put a prompt before an answer, or leave it out where it is repeated there; the answer's system message comes first, else the prompt's, else `system`."""
    (own, turns), (before, prompt) = _apart(answer), _apart(asked)
    systems = own or before or ([Turn("system", system, learned=False)] if system else [])
    return [*systems, *(turns if turns[:len(prompt)] == prompt else prompt + turns)]


def _apart(turns: list[Turn]) -> tuple[list[Turn], list[Turn]]:
    """Divide a chat into the system messages that it begins with, and the rest."""
    count = sum(1 for _ in takewhile(lambda turn: turn.role == "system", turns))
    return turns[:count], turns[count:]


def _given(turns: Sequence[Turn], count: int) -> tuple[Turn, ...]:
    """Mark the first messages of a chat as given."""
    return (*(replace(turn, learned=False) for turn in turns[:count]), *turns[count:])
