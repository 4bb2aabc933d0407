"""Rows to samples: which fields are prompt and truth, and which rows are skipped.  Data floor, no torch."""
from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import UserError, nearest
from .roles import Form, form_of, rank, usual_forms

# The order in which the functions below take the fields of texts and pairs.
_ORDER = ("text", "title", "prompt", "instruction", "truth", "output", "input")
# Who speaks, by the names that data sets have for them.
_SPEAKERS = {
    "user": "user", "human": "user", "prompter": "user", "system": "system", "developer": "system",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant", "function_call": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "function_response": "tool", "ipython": "tool"}
# Sets of fields of which it is remembered how they are read: rows of a file have few, but any number of them is possible.
_MOST_KNOWN = 1000
# JSON can hold these, UTF-8 and so tokenizers can't.
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
# What lies between a title or a question and the text it belongs to.
BREAK = "\n\n"
# How the text that is learned begins: by itself, after its title, after a question or an instruction, as the answer of a chat.
FORMS = ("text", "title", "instruction", "chat")


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


class _Recipe(NamedTuple):
    """A form, what makes prompt and truth of its values (None: it is a chat), and the fields of these values."""

    form: Form
    read: Callable[..., tuple[str, str]] | None
    wanted: list[str]


class Skipped(Exception):
    """A row that cannot be a sample; the message is the reason it is counted under."""


class Reading:
    """How the rows of a source become samples; see :func:`choose_reading`. `summary` says it in words, after a look at some rows."""

    summary = ""

    def __init__(self, ranking: Sequence[tuple[str, ...]], given: Form | None, chat: str | None, has_nats: bool):
        """
        :param ranking: the usual forms, the most common first.
        :param given: the form that the plan names, None to go by the usual ones.
        :param chat: how chats are written out.
        :param has_nats: whether the field `nats` says how likely the truth is.
        """
        self._ranking, self._given, self._chat, self._has_nats = ranking, given, chat, has_nats
        self._by_fields: dict[tuple[str, ...], list[_Recipe]] = {}
        self.begins = "text"

    def __call__(self, row: dict[str, Any], source: int = 0, index: int = 0) -> Sample:
        """Read a row.

        :param row: its fields.
        :param source: number of the source in its stage's mix.
        :param index: the row's number in the source.
        :return: the sample.
        :raises Skipped: when it cannot be one.
        """
        _, read, wanted = self._recipe(row)
        values = [row.get(field) for field in wanted]
        if read is None:
            return _read_messages(values[0], source, index, self._chat)
        prompt, truth = read(*values)
        return Sample(prompt, truth, source, index, row["nats"] if self._has_nats else None)

    def begin_with(self, fields: Iterable[str]) -> None:
        """Note how most texts begin, for rows with these fields: `begins` is one of FORMS."""
        found = self._forms(tuple(fields))
        roles = found[0].roles if found else {}
        self.begins = "chat" if "messages" in roles else "title" if "title" in roles else "text" if "text" in roles else "instruction"

    def form(self, row: dict[str, Any]) -> Form:
        """Choose the form in which a row is read; raises Skipped when it lacks a field that is needed."""
        return self._recipe(row).form

    def describe(self, fields: Iterable[str]) -> str:
        """Say how rows with these fields are read."""
        forms = self._forms(tuple(fields))
        return str(forms[0]) if forms else "no usual columns"

    def _recipe(self, row: dict[str, Any]) -> _Recipe:
        """Choose how to read a row."""
        fields = tuple(row)
        recipes = self._by_fields.get(fields)
        if recipes is None:
            if len(self._by_fields) == _MOST_KNOWN:
                self._by_fields.clear()
            recipes = self._by_fields[fields] = [*map(_recipe_of, self._forms(fields))]
        if len(recipes) == 1:
            return recipes[0]
        if not recipes:
            needed = self._given.needed if self._given is not None else self._ranking[0]
            raise Skipped(f"without '{next(name for name in needed if name not in fields)}'")
        return next((recipe for recipe in recipes if recipe.form.fits(row)), recipes[0])

    def _forms(self, fields: tuple[str, ...]) -> list[Form]:
        """List the forms that a row with these fields may be read in, the best first."""
        if self._given is not None:
            return [self._given] if all(field in fields for field in self._given.needed) else []
        found = usual_forms(fields)
        forms = [found[names] for names in self._ranking if names in found]
        # A form that reads all fields of another one and more comes before it: an instruction beside input and output would be lost.
        reads = [{*form.roles.values()} for form in forms]
        order = sorted(range(len(forms)), key=lambda i: (next(j for j, other in enumerate(reads) if reads[i] >= other), -len(reads[i])))
        return [forms[i] for i in order]


def choose_reading(name: str, columns: Iterable[str], roles: dict[str, str] | None, chat: str | None = None, has_nats: bool = False,
                   rows: Sequence[dict[str, Any]] = (), certain: bool = True) -> Reading:
    """Decide how the rows of a source become samples.

    With `roles` all rows are read alike. Without, each row is read by the usual names of its fields; where it has those of several forms (a text, a prompt
    and its completion, ...), in the form that most of the rows looked at have.

    :param name: the source's name, for messages.
    :param columns: the fields its rows have.
    :param roles: the plan's `columns` (role to field), or None to go by the usual names.
    :param chat: the plan's `chat`: how chats are written out.
    :param has_nats: whether the field `nats` says how likely the truth is.
    :param rows: some rows of the source.
    :param certain: no row has a field that is not among `columns`.
    :return: a function from a row to a sample.
    :raises UserError: when a field is not there, or no usual name is, or chats are to be written out where there are none.
    """
    fields = list(columns)
    there = f"its columns: {', '.join(fields) or 'none'}"
    if roles is not None:
        for role, field in roles.items():
            if certain and field not in fields:
                raise UserError(f"source {name}: \"columns\" maps {role} to '{field}', which is not there ({there}).{nearest(field, fields)}")
        first, reading = form_of(roles), Reading([], form_of(roles), chat, has_nats)
    else:
        ranking = rank(rows, fields)
        forms = usual_forms(fields)
        found = next((forms[names] for names in ranking if names in forms), None)
        if found is None:
            raise UserError(f"source {name}: no text column found ({there}). {_proposed(fields)}")
        first, reading = found, Reading(ranking, None, chat, has_nats)
    if chat is not None and "messages" not in first.roles:
        raise UserError(f"source {name}: \"chat\" is for chats, and its rows are read as {' and '.join(first.roles)} ({there}). Leave it out, "
                        "or name the chat's column with \"columns\": {\"messages\": \"…\"}.")
    reading.begin_with(fields)
    return reading


def text_field(name: str, columns: Iterable[str], roles: dict[str, str] | None) -> str:
    """Find the field that holds the text of a row; raises UserError where there is none."""
    fields = list(columns)
    forms = [form_of(roles)] if roles is not None else list(usual_forms(fields).values())
    found = next((form.roles["text"] for form in forms if "text" in form.roles), None)
    if found is None:
        raise UserError(f"source {name}: \"rows\": \"articles\" joins texts, and no text column was found (its columns: {', '.join(fields) or 'none'}). Leave "
                        "'rows' out, or say which column has the text with \"columns\": {\"text\": \"…\"}.")
    return found


def _proposed(fields: list[str]) -> str:
    """Say how to name the columns, for fields with none of the usual names."""
    by_name = {field.lower(): field for field in fields}
    if "chosen" not in by_name:
        return 'Say which one with "columns": {"text": "…"} in the plan.'
    prompt = next((by_name[name] for name in ("prompt", "question", "instruction", "input") if name in by_name), None)
    columns = {"messages": by_name["chosen"]} if prompt is None else {"prompt": prompt, "truth": by_name["chosen"]}
    return f"Its rows look like preference pairs; to learn the chosen answers, say \"columns\": {json.dumps(columns, ensure_ascii=False)} in the plan."


def _recipe_of(form: Form) -> _Recipe:
    """Say how a form is read."""
    if "messages" in form.roles:
        return _Recipe(form, None, [form.roles["messages"]])
    return _Recipe(form, _read_text if "text" in form.roles else _read_pair, [form.roles[role] for role in _ORDER if role in form.roles])


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
