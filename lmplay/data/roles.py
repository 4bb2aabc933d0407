"""What the fields of a row are: the usual names, and which of several readings fits a row.  Data floor, no torch; imports nothing of lmplay."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

# The usual names of fields, in order of preference; case does not matter.
TEXT = ("text", "content", "article", "document", "story", "body", "passage")
TITLE = ("title", "headline")
PAIRS = (("prompt", "truth"), ("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("instruction", "output"),
         ("instruction", "response"), ("input", "output"), ("input", "target"), ("source", "target"), ("prompt", "answer"))
INPUTS = ("input", "context")
MESSAGES = ("messages", "conversations", "conversation")
# Those of preference pairs: both answers, and what comes before them, which a row may lack.
ANSWERS = ("chosen", "rejected")
QUESTIONS = ("prompt", "question", "instruction", "input")
SYSTEMS = ("system", "system_prompt")
USUAL = frozenset((*TEXT, *TITLE, *(name for pair in PAIRS for name in pair), *INPUTS, *MESSAGES, *ANSWERS, *QUESTIONS, *SYSTEMS, "nats"))
# The usual forms of a row by the names that each needs, in order of preference.
_FORMS = (*((name,) for name in TEXT), *PAIRS, *((name,) for name in MESSAGES))
# The roles that a row must have a field for; of the others it may lack the field.
_NEEDED = ("text", "prompt", "instruction", "truth", "output", "messages", *ANSWERS)


class Form(NamedTuple):
    """One way to read a row: `roles` maps a role to the row's field, in the order in which they are read; `needed` are the fields that must be there."""

    roles: dict[str, str]
    needed: tuple[str, ...]

    def fits(self, row: dict[str, Any]) -> bool:
        """Tell whether the row has something in each field that is needed."""
        values = map(row.get, self.needed)
        return all((isinstance(value, str) and value and not value.isspace()) or (isinstance(value, list) and bool(value)) for value in values)

    def __str__(self) -> str:
        """Say which fields are given and which are learned: ``'title' → 'text'``."""
        *given, learned = (f"'{self.roles[role]}'" for role in ("system", "title", "prompt", "instruction", "input", "text", "truth", "output", "messages",
                                                                "chosen") if role in self.roles)
        if "rejected" in self.roles:
            learned += f" over '{self.roles['rejected']}'"
        return f"{' + '.join(given)} → {learned}" if given else learned


def form_of(roles: dict[str, str]) -> Form:
    """Make the form that a plan's `columns` name (role to field)."""
    return Form(roles, tuple(field for role, field in roles.items() if role in _NEEDED))


def pair_form(fields: Iterable[str]) -> Form | None:
    """Find the form of preference pairs that the usual names among a row's fields allow; None where an answer is missing."""
    by_name = _by_name(fields)
    if not all(name in by_name for name in ANSWERS):
        return None
    first = [(role, next((by_name[name] for name in names if name in by_name), None)) for role, names in (("system", SYSTEMS), ("prompt", QUESTIONS))]
    answers = {name: by_name[name] for name in ANSWERS}
    return Form({role: field for role, field in first if field is not None} | answers, tuple(answers.values()))


def is_task(names: Iterable[str]) -> bool:
    """Tell whether a form has a prompt and an answer to it, by the names or the roles that it needs."""
    return not {*TEXT, *MESSAGES, *ANSWERS} & {*names}


def usual_forms(fields: Iterable[str]) -> dict[tuple[str, ...], Form]:
    """Find the forms that the usual names among a row's fields allow.

    :param fields: names of the row's fields; of two that differ in case only, the first counts.
    :return: the forms by the usual names that they need, in order of preference.
    """
    by_name = _by_name(fields)
    return {names: _usual_form(names, by_name) for names in _FORMS if all(name in by_name for name in names)}


def needed_columns(fields: list[str], roles: dict[str, str] | None) -> list[str]:
    """Choose the columns of a table that reading its rows needs; all where it lacks what is needed, so that a message can list them.

    :param fields: names of its columns.
    :param roles: the plan's `columns` (role to field), or None.
    :return: some of the names, in the same order.
    """
    if roles is not None:
        return [name for name in fields if name in roles.values()] if set(roles.values()) <= {*fields} else fields
    return [name for name in fields if name.lower() in USUAL] if usual_forms(fields) else fields


def rank(rows: Iterable[dict[str, Any]], fields: Iterable[str] = ()) -> list[tuple[str, ...]]:
    """Order the usual forms for the rows of a source.

    :param rows: some of its rows.
    :param fields: names that its rows are known to have, which decide where no row fits any form.
    :return: first the forms that fit more than half of the rows that fit any, in order of preference; then the others, the one that fits most rows first.
    """
    fitting: Counter[tuple[str, ...]] = Counter()
    total = 0
    for row in rows:
        found = [names for names, form in usual_forms(row).items() if form.fits(row)]
        fitting.update(found)
        total += bool(found)
    there = usual_forms(fields)
    return sorted(_FORMS, key=lambda names: (-total - 1 if 2 * fitting[names] > total else -fitting[names], names not in there, _FORMS.index(names)))


def _by_name(fields: Iterable[str]) -> dict[str, str]:
    """Find fields by their names in lower case; of two that differ in case only, the first counts."""
    by_name: dict[str, str] = {}
    for field in fields:
        by_name.setdefault(field.lower(), field)
    return by_name


def _usual_form(names: tuple[str, ...], by_name: dict[str, str]) -> Form:
    """Make a usual form, with the fields that a row may lack."""
    def find(role: str, usual: tuple[str, ...]) -> dict[str, str]:
        return next(({role: by_name[name]} for name in usual if name in by_name and name not in names), {})

    needed = tuple(by_name[name] for name in names)
    if len(names) == 2:
        if names[0] == "instruction":
            return Form({"instruction": needed[0], "output": needed[1], **find("input", INPUTS)}, needed)
        return Form({"prompt": needed[0], "truth": needed[1]}, needed)
    if names[0] in MESSAGES:
        return Form({"messages": needed[0]}, needed)
    return Form({"text": needed[0], **find("title", TITLE)}, needed)
