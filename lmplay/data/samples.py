"""Rows to samples: which fields are prompt and truth, and which rows are skipped.  Data floor, no torch."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import UserError

# The usual names of fields, in order of preference.
_TEXT = ("text", "content", "article", "document", "story", "body", "passage")
_TITLE = ("title", "headline")
_PAIRS = (("prompt", "truth"), ("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("instruction", "output"),
          ("instruction", "response"), ("input", "output"), ("input", "target"), ("source", "target"))
_MESSAGES = ("messages", "conversations", "conversation")
# Half a character: JSON can hold one, UTF-8 and so tokenizers can't.
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
# What lies between a title or a question and the text it belongs to.
BREAK = "\n\n"


@dataclass(frozen=True)
class Turn:
    """One message of a chat; `learned` where it is an answer."""

    role: str
    content: str
    learned: bool


@dataclass(frozen=True)
class Sample:
    """What the model is given and what it has to learn; the unit of all statistics.

    `source` is the number of the source in its stage's mix, `row` the row's ordinal number in that source; `nats` is -ln p(truth | prompt)
    where the source knows it (the floor of any model's loss), else None. `turns` are there where the row is a chat: they, not prompt and truth,
    are what is trained on then, written out as the tokenizer's chat template or our plain one says.
    """

    prompt: str
    truth: str
    source: int = 0
    row: int = 0
    nats: float | None = None
    turns: tuple[Turn, ...] = ()
    chat: str | None = None


class Skipped(Exception):
    """A row that cannot be a sample; the message is the reason it is counted under."""


# A reading of rows: gives prompt and truth, or raises Skipped.
Reading = Callable[[dict[str, Any]], tuple[str, str]]


def choose_reading(name: str, columns: Iterable[str], roles: dict[str, str] | None) -> Reading:
    """Decide how the rows of a source become samples.

    :param name: the source's name, for messages.
    :param columns: the fields its rows have.
    :param roles: the plan's `columns` (role to field), or None to go by the usual names.
    :return: a function from a row to (prompt, truth).
    :raises UserError: when a field is not there, or no usual name is.
    """
    fields = list(columns)
    there = f"its columns: {', '.join(fields) or 'none'}"
    if roles is None:
        roles = _find_roles(fields)
        if roles is None:
            raise UserError(f"source {name}: no text column found ({there}). Say which one with \"columns\": {{\"text\": \"…\"}} in the plan.")
    for role, field in roles.items():
        if field not in fields:
            raise UserError(f"source {name}: \"columns\" maps {role} to '{field}', which is not there ({there}).")
    if "messages" in roles:
        return lambda row: _read_messages(row.get(roles["messages"]))
    if "truth" in roles:
        extra = "input" if roles["prompt"] == "instruction" and "input" in fields else None
        return lambda row: _read_pair(row.get(roles["prompt"]), row.get(roles["truth"]), row.get(extra) if extra else None)
    return lambda row: _read_text(row.get(roles["text"]), row.get(roles["title"]) if "title" in roles else None)


def _find_roles(fields: list[str]) -> dict[str, str] | None:
    """Find the roles by the usual names; case does not matter."""
    by_name = {field.lower(): field for field in reversed(fields)}
    text = next((by_name[name] for name in _TEXT if name in by_name), None)
    if text is not None:
        title = next((by_name[name] for name in _TITLE if name in by_name), None)
        return {"text": text} if title is None else {"text": text, "title": title}
    for prompt, truth in _PAIRS:
        if prompt in by_name and truth in by_name:
            return {"prompt": by_name[prompt], "truth": by_name[truth]}
    messages = next((by_name[name] for name in _MESSAGES if name in by_name), None)
    return None if messages is None else {"messages": messages}


def _read_text(text: Any, title: Any) -> tuple[str, str]:
    """Read a text with its title; a title that is missing or no text is left out."""
    prompt = _need_text(title) + BREAK if isinstance(title, str) and title.strip() else ""
    return prompt, _need_text(text)


def _read_pair(prompt: Any, truth: Any, extra: Any) -> tuple[str, str]:
    """Read a question and its answer, and what the question is about."""
    given = _need_text(prompt)
    if isinstance(extra, str) and extra.strip():
        given += BREAK + _need_text(extra)
    return given + BREAK, _need_text(truth)


def _read_messages(messages: Any) -> tuple[str, str]:
    """Read a chat: all up to its last answer is the prompt, that answer the truth.

    Messages are {"role", "content"} or {"from", "value"}; each turn is written as "role: content".
    """
    if messages is None:
        raise Skipped("null")
    turns = []
    for message in messages if isinstance(messages, list) else []:
        role = message.get("role", message.get("from")) if isinstance(message, dict) else None
        content = message.get("content", message.get("value")) if isinstance(message, dict) else None
        if not isinstance(role, str) or not isinstance(content, str):
            raise Skipped("not text")
        turns.append((role, content))
    while turns and turns[-1][0] not in ("assistant", "gpt", "model", "bot"):
        turns.pop()
    if not turns:
        raise Skipped("no answer")
    *given, (role, answer) = turns
    return "".join(f"{r}: {_need_text(c)}{BREAK}" for r, c in given if c.strip()) + f"{role}: ", _need_text(answer)


def _need_text(value: Any) -> str:
    """Insist on text with something in it."""
    if value is None:
        raise Skipped("null")
    if not isinstance(value, str):
        raise Skipped("not text")
    if not value.strip():
        raise Skipped("empty")
    try:
        value.encode()
    except UnicodeEncodeError:  # ten times quicker than looking for what is hardly ever there
        return _LONE_SURROGATES.sub("\ufffd", value)
    return value
