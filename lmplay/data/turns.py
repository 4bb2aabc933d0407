"""Texts and messages of a row, checked.  Data floor, no torch."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

# Who speaks, by the names that data sets have for them.
_SPEAKERS = {
    "user": "user", "human": "user", "prompter": "user", "system": "system", "developer": "system",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant", "function_call": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "function_response": "tool", "ipython": "tool"}
# JSON can hold these, UTF-8 and so tokenizers can't.
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Turn:
    """One message of a chat: `role` is system, user, assistant or tool; `learned` where it is an answer that is learned."""

    role: str
    content: str
    learned: bool


class Skipped(Exception):
    """A row that cannot be a sample; the message is the reason it is counted under."""


def read_turns(messages: Any) -> list[Turn]:
    """Read the messages of a chat; those of others than the assistant that say nothing are left out."""
    if messages is None:
        raise Skipped("null")
    if not isinstance(messages, list):
        raise Skipped("not a list of messages")
    return [turn for turn in map(_read_turn, messages) if turn.learned or turn.content.strip()]


def up_to_answer(turns: list[Turn]) -> list[Turn]:
    """Leave out what follows the last answer; raises Skipped where there is none."""
    while turns and not turns[-1].learned:
        turns = turns[:-1]
    if not turns:
        raise Skipped("no answer")
    return turns


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
    if message.get("tool_calls") or message.get("function_call"):
        raise Skipped("tool calls")
    if role == "assistant":
        return Turn(role, need_text(content), learned=True)
    return Turn(role, need_text(content) if content else "", learned=False)


def need_text(value: Any) -> str:
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
