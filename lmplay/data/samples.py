"""Rows to samples: which fields are prompt and truth, and which rows are skipped.  Data floor, no torch."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..errors import UserError, nearest
from .pairs import TextPair, read_pair
from .roles import Form, form_of, is_task, pair_form, rank, usual_forms
from .tasks import read_task
from .turns import Skipped, Turn, need_text, read_turns, up_to_answer

_WANTS_TASKS = "the objective of the stage learns from tasks"
# The order in which the functions below take the fields of texts and pairs.
_ORDER = ("text", "title", "prompt", "instruction", "truth", "output", "input")
# Sets of fields of which it is remembered how they are read: rows of a file have few, but any number of them is possible.
_MOST_KNOWN = 1000
# What lies between a title or a question and the text it belongs to.
BREAK = "\n\n"
# How the text that is learned begins: by itself, after its title, after a question or an instruction, as the answer of a chat.
FORMS = ("text", "title", "instruction", "chat")


@dataclass(frozen=True)
class Sample:
    """What the model is given and what it has to learn; the unit of all statistics.

    `source` is the number of the source in its stage's mix, `row` the row's ordinal number in that source; `nats` is -ln p(truth | prompt)
    where the source knows it (the floor of any model's loss), else None. `turns` are there where the row is a chat: they, not prompt and truth,
    are what is trained on then, written out as the tokenizer's chat template or our plain one says; `chat` is the plan's choice between the two.
    Prompt and truth are the plain form of a chat, up to its first answer that is learned and from there on. Of a preference pair this is the answer that is
    chosen, and `rejected` the other one, as a sample of the same prompt.
    """

    prompt: str
    truth: str
    source: int = 0
    row: int = 0
    nats: float | None = None
    turns: tuple[Turn, ...] = ()
    chat: str | None = None
    rejected: Sample | None = None


class _Recipe(NamedTuple):
    """A form, what makes prompt and truth of its values (None: it is a chat, or a pair), and the fields of these values."""

    form: Form
    read: Callable[..., tuple[str, str]] | None
    wanted: list[str]


class Reading:
    """How the rows of a source become samples; see :func:`choose_reading`. `summary` says it in words, after a look at some rows."""

    summary = ""

    def __init__(self, ranking: Sequence[tuple[str, ...]], given: Form | None, chat: str | None, has_nats: bool, pairs: bool = False, tasks: bool = False):
        """
        :param ranking: the usual forms, the most common first.
        :param given: the form that the plan names, None to go by the usual ones.
        :param chat: how chats are written out.
        :param has_nats: whether the field `nats` says how likely the truth is.
        :param pairs: rows are read as preference pairs.
        :param tasks: rows are read as tasks: a prompt, and the answer that texts are judged by.
        """
        self._ranking, self._given, self._chat, self._has_nats, self._pairs, self._tasks = ranking, given, chat, has_nats, pairs, tasks
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
        form, read, wanted = self._recipe(row)
        values = [row.get(field) for field in wanted]
        if "chosen" in form.roles:
            return _read_preference(form.roles, row, source, index, self._chat)
        if read is None:
            return _read_messages(values[0], source, index, self._chat)
        if self._tasks:
            turns, values = read_task(values)
            if turns:
                return _sample_of(turns, source, index, self._chat)
        prompt, truth = read(*values)
        return Sample(prompt, truth, source, index, row["nats"] if self._has_nats else None)

    def begin_with(self, fields: Iterable[str], rows: Sequence[dict[str, Any]] = ()) -> None:
        """Note how most texts begin, for rows with these fields: `begins` is one of FORMS.

        :param rows: some of them, which tell chats from texts in the fields of pairs.
        """
        found = self._forms(tuple(fields))
        roles = found[0].roles if found else {}
        if "chosen" in roles:
            is_chat = any(isinstance(row.get(roles[role]), list) for row in rows for role in ("prompt", "chosen") if role in roles)
            self.begins = "chat" if is_chat else "instruction" if "prompt" in roles else "text"
            return
        if self._tasks and any(isinstance(row.get(roles.get("prompt", "")), list) for row in rows):
            self.begins = "chat"
            return
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
            needed = self._given.needed if self._given is not None else ("chosen", "rejected") if self._pairs else self._ranking[0]
            raise Skipped(f"without '{next(name for name in needed if name not in fields)}'")
        return next((recipe for recipe in recipes if recipe.form.fits(row)), recipes[0])

    def _forms(self, fields: tuple[str, ...]) -> list[Form]:
        """List the forms that a row with these fields may be read in, the best first."""
        if self._given is not None:
            return [self._given] if all(field in fields for field in self._given.needed) else []
        if self._pairs:
            return [form for form in (pair_form(fields),) if form is not None]
        found = usual_forms(fields)
        forms = [found[names] for names in self._ranking if names in found]
        # A form that reads all fields of another one and more comes before it: an instruction beside input and output would be lost.
        reads = [{*form.roles.values()} for form in forms]
        order = sorted(range(len(forms)), key=lambda i: (next(j for j, other in enumerate(reads) if reads[i] >= other), -len(reads[i])))
        return [forms[i] for i in order]


def choose_reading(name: str, columns: Iterable[str], roles: dict[str, str] | None, chat: str | None = None, has_nats: bool = False,
                   rows: Sequence[dict[str, Any]] = (), certain: bool = True, pairs: bool = False, tasks: bool = False) -> Reading:
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
    :param pairs: rows are preference pairs, else texts.
    :param tasks: rows are tasks: a prompt, and the answer that texts are judged by.
    :return: a function from a row to a sample.
    :raises UserError: when a field is not there, or no usual name is, or chats are to be written out where there are none.
    """
    fields = list(columns)
    there = f"its columns: {', '.join(fields) or 'none'}"
    if roles is not None:
        for role, field in roles.items():
            if certain and field not in fields:
                raise UserError(f"source {name}: \"columns\" maps {role} to '{field}', which is not there ({there}).{nearest(field, fields)}")
        if pairs != ("chosen" in roles):
            raise UserError(f"source {name}: \"columns\" names {' and '.join(roles)}, and " + (
                'the objective of the stage learns from preference pairs: name chosen and rejected, too, or choose another objective.' if pairs else
                'pairs are for objectives such as dpo: choose one, or name prompt and truth.'))
        if tasks and not is_task(roles):
            raise UserError(f"source {name}: \"columns\" names {' and '.join(roles)}, and {_WANTS_TASKS}: name prompt and truth, or choose another objective.")
        first, reading = form_of(roles), Reading([], form_of(roles), chat, has_nats, pairs, tasks)
    elif pairs:
        found = pair_form(fields)
        if found is None:
            raise UserError(f"source {name}: the objective of the stage learns from preference pairs, and there is no column "
                            f"{' and no column '.join(repr(one) for one in ('chosen', 'rejected') if one not in fields)} ({there}). Name them with "
                            '"columns": {"prompt": "…", "chosen": "…", "rejected": "…"}, or choose another objective.')
        first, reading = found, Reading([], None, chat, has_nats, pairs)
    else:
        ranking = [names for names in rank(rows, fields) if not tasks or is_task(names)]
        forms = usual_forms(fields)
        found = next((forms[names] for names in ranking if names in forms), None)
        if found is None and tasks:
            raise UserError(f"source {name}: {_WANTS_TASKS}, and there is no column with a prompt beside one with its answer ({there}). Name them with "
                            '"columns": {"prompt": "…", "truth": "…"}, or choose another objective.')
        if found is None:
            raise UserError(f"source {name}: no text column found ({there}). {_proposed(fields)}")
        first, reading = found, Reading(ranking, None, chat, has_nats, tasks=tasks)
    if chat is not None and not tasks and not {"messages", "chosen"} & first.roles.keys():
        raise UserError(f"source {name}: \"chat\" is for chats, and its rows are read as {' and '.join(first.roles)} ({there}). Leave it out, "
                        "or name the chat's column with \"columns\": {\"messages\": \"…\"}.")
    reading.begin_with(fields, rows)
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
    return ("Its rows look like preference pairs; to learn from both answers, say \"objective\": \"dpo\" in the plan, and to learn the chosen ones only, say "
            f"\"columns\": {json.dumps(columns, ensure_ascii=False)}.")


def _recipe_of(form: Form) -> _Recipe:
    """Say how a form is read."""
    if "messages" in form.roles or "chosen" in form.roles:
        return _Recipe(form, None, [*form.roles.values()])
    return _Recipe(form, _read_text if "text" in form.roles else _read_pair, [form.roles[role] for role in _ORDER if role in form.roles])


def _read_text(text: Any, title: Any = None) -> tuple[str, str]:
    """Read a text with its title; a title that is missing or no text is left out."""
    prompt = need_text(title) + BREAK if isinstance(title, str) and title.strip() else ""
    return prompt, need_text(text)


def _read_pair(prompt: Any, truth: Any, about: Any = None) -> tuple[str, str]:
    """Read a question and its answer, and what the question is about."""
    given = need_text(prompt)
    if isinstance(about, str) and about.strip():
        given += BREAK + need_text(about)
    return given + BREAK, need_text(truth)


def _read_messages(messages: Any, source: int, index: int, chat: str | None) -> Sample:
    """Read a chat; what follows its last answer is left out, and so are the messages of others that say nothing."""
    return _sample_of(up_to_answer(read_turns(messages)), source, index, chat)


def _read_preference(roles: dict[str, str], row: dict[str, Any], source: int, index: int, chat: str | None) -> Sample:
    """Read a preference pair: a sample of the chosen answer, which has that of the rejected one."""
    pair = read_pair(**{role: row.get(field) for role, field in roles.items()})
    if isinstance(pair, TextPair):
        prompt = pair.prompt + BREAK if pair.is_question else pair.prompt
        rejected = Sample(prompt, pair.rejected, source, index)
        return Sample(prompt, pair.chosen, source, index, rejected=rejected)
    rejected = _sample_of(pair.rejected, source, index, chat)
    return replace(_sample_of(pair.chosen, source, index, chat), rejected=rejected)


def _sample_of(turns: Sequence[Turn], source: int, index: int, chat: str | None) -> Sample:
    """Make a sample of a chat, with at least one answer that is learned."""
    first = next(number for number, turn in enumerate(turns) if turn.learned)
    heads = [f"{BREAK if number else ''}{turn.role}: " for number, turn in enumerate(turns)]
    plain = [head + turn.content for head, turn in zip(heads, turns, strict=True)]
    truth = need_text(turns[first].content) + "".join(plain[first + 1:])
    return Sample("".join(plain[:first]) + heads[first], truth, source, index, turns=tuple(turns), chat=chat)
