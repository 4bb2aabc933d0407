"""Rows to samples: which fields are prompt and truth, and which rows are skipped.  Data floor, no torch."""
from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import UserError

# The usual names of fields, in order of preference.
_TEXT = ("text", "content", "article", "document", "story", "body", "passage")
_TITLE = ("title", "headline")
_PAIRS = (("prompt", "truth"), ("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("instruction", "output"),
          ("instruction", "response"), ("input", "output"), ("input", "target"), ("source", "target"))
_INPUTS = ("input", "context")
_MESSAGES = ("messages", "conversations", "conversation")
# The order in which the functions below take the fields of texts and pairs.
_ORDER = ("text", "title", "prompt", "instruction", "truth", "output", "input")
# Who speaks, by the names that data sets have for them.
_SPEAKERS = {
    "user": "user", "human": "user", "prompter": "user", "system": "system", "developer": "system",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant", "function_call": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "function_response": "tool", "ipython": "tool"}
# JSON can hold these, UTF-8 and so tokenizers can't.
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
# What lies between a title or a question and the text it belongs to.
BREAK = "\n\n"


@dataclass(frozen=True)
class Turn:
    """One message of a chat: `role` is system, user, assistant or tool; `learned` where it is an answer."""

    role: str
    content: str
    learned: bool


@dataclass(frozen=True)
class Sample:
    """What the model is given and what it has to learn; the unit of all statistics.

    `source` is the number of the source in its stage's mix, `row` the row's ordinal number in that source; `nats` is -ln p(truth | prompt)
    where the source knows it (the floor of any model's loss), else None. `turns` are there where the row is a chat: they, not prompt and truth,
    are what is trained on then, written out as the tokenizer's chat template or our plain one says; `chat` is the plan's choice between the two.
    Prompt and truth are the plain form of a chat, up to its first answer and from there on.
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


class Reading(Protocol):
    """How the rows of a source become samples."""

    def __call__(self, row: dict[str, Any], source: int = 0, index: int = 0) -> Sample:
        """Read a row; raises Skipped where it cannot be a sample.

        :param row: its fields.
        :param source: number of the source in its stage's mix.
        :param index: the row's number in the source.
        """


def choose_reading(name: str, columns: Iterable[str], roles: dict[str, str] | None, chat: str | None = None, has_nats: bool = False) -> Reading:
    """Decide how the rows of a source become samples.

    :param name: the source's name, for messages.
    :param columns: the fields its rows have.
    :param roles: the plan's `columns` (role to field), or None to go by the usual names.
    :param chat: the plan's `chat`: how chats are written out.
    :param has_nats: whether the field `nats` says how likely the truth is.
    :return: a function from a row to a sample.
    :raises UserError: when a field is not there, or no usual name is, or chats are to be written out where there are none.
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
        return lambda row, source=0, index=0: _read_messages(row.get(roles["messages"]), source, index, chat)
    if chat is not None:
        raise UserError(f"source {name}: \"chat\" is for chats, and its rows are read as {' and '.join(roles)} ({there}). Leave it out, "
                        "or name the chat's column with \"columns\": {\"messages\": \"…\"}.")

    read_texts = _read_text if "text" in roles else _read_pair
    wanted = [roles[role] for role in _ORDER if role in roles]

    def read(row: dict[str, Any], source: int = 0, index: int = 0) -> Sample:
        prompt, truth = read_texts(*(row.get(field) for field in wanted))
        return Sample(prompt, truth, source, index, row["nats"] if has_nats else None)

    return read


def text_field(name: str, columns: Iterable[str], roles: dict[str, str] | None) -> str:
    """Find the field that holds the text of a row, as :func:`choose_reading` does; raises UserError when rows are read as something else."""
    fields = list(columns)
    choose_reading(name, fields, roles)
    found = roles or _find_roles(fields) or {}
    if "text" not in found:
        raise UserError(f"source {name}: \"rows\": \"articles\" joins texts, and its rows are read as {' and '.join(found)}. Leave 'rows' out, or say which "
                        "column has the text with \"columns\": {\"text\": \"…\"}.")
    return found["text"]


def _find_roles(fields: list[str]) -> dict[str, str] | None:
    """Find the roles by the usual names; case does not matter."""
    by_name = {field.lower(): field for field in reversed(fields)}

    def find(names: tuple[str, ...]) -> str | None:
        return next((by_name[name] for name in names if name in by_name), None)

    text, title, about = find(_TEXT), find(_TITLE), find(_INPUTS)
    if text is not None:
        return {"text": text} if title is None else {"text": text, "title": title}
    for prompt, truth in _PAIRS:
        if prompt in by_name and truth in by_name:
            if prompt == "instruction":
                return {"instruction": by_name[prompt], **({"input": about} if about is not None else {}), "output": by_name[truth]}
            return {"prompt": by_name[prompt], "truth": by_name[truth]}
    messages = find(_MESSAGES)
    return None if messages is None else {"messages": messages}


def _read_text(text: Any, title: Any = None) -> tuple[str, str]:
    """Read a text with its title; a title that is missing or no text is left out."""
    prompt = _need_text(title) + BREAK if isinstance(title, str) and title.strip() else ""
    return prompt, _need_text(text)


def _read_pair(prompt: Any, truth: Any, about: Any = None) -> tuple[str, str]:
    """Read a question and its answer, and what the question is about."""
    given = _need_text(prompt)
    if isinstance(about, str) and about.strip():
        given += BREAK + _need_text(about)
    return given + BREAK, _need_text(truth)


def _read_messages(messages: Any, source: int, index: int, chat: str | None) -> Sample:
    """Read a chat; what follows its last answer is left out, and so are the messages of others that say nothing."""
    if messages is None:
        raise Skipped("null")
    if not isinstance(messages, list):
        raise Skipped("not a list of messages")
    turns = [turn for turn in map(_read_turn, messages) if turn.learned or turn.content.strip()]
    while turns and not turns[-1].learned:
        turns.pop()
    if not turns:
        raise Skipped("no answer")
    first = next(number for number, turn in enumerate(turns) if turn.learned)
    heads = [f"{BREAK if number else ''}{turn.role}: " for number, turn in enumerate(turns)]
    plain = [head + turn.content for head, turn in zip(heads, turns, strict=True)]
    truth = _need_text(turns[first].content) + "".join(plain[first + 1:])
    return Sample("".join(plain[:first]) + heads[first], truth, source, index, turns=tuple(turns), chat=chat)


def _read_turn(message: Any) -> Turn:
    """Read a message: {"role", "content"} or {"from", "value"}; a content in parts is their text, put together."""
    if not isinstance(message, dict):
        raise Skipped("not a list of messages")
    speaker, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    role = _SPEAKERS.get(speaker.strip().lower()) if isinstance(speaker, str) else None
    if role is None:
        raise Skipped("unknown role")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
        content = "".join(text for text in texts if isinstance(text, str))
        if not all(isinstance(text, str) for text in texts):
            raise Skipped("not only text")
    if role == "assistant":
        return Turn(role, _need_text(content), learned=True)
    return Turn(role, _need_text(content) if content else "", learned=False)


def _need_text(value: Any) -> str:
    """Check that a value is text and not blank; lone surrogates in it are replaced."""
    if value is None:
        raise Skipped("null")
    if not isinstance(value, str):
        raise Skipped("not text")
    if not value.strip():
        raise Skipped("empty")
    try:
        value.encode()
    except UnicodeEncodeError:  # ten times faster than searching each text for what is very rare
        return _LONE_SURROGATES.sub("\ufffd", value)
    return value
