"""Chats written out: turns to parts of text, by a tokenizer's chat template or a plain one of ours.  Data floor, no torch.

A template of a tokenizer is a program that somebody else wrote: it runs in the sandbox of `transformers`, in a process of its own with limits (`template`), and
it never sees what people said. It is given placeholders, and the contents are put where these come out. So it is known where each content stands, what looks
like a special token in it stays text, and a template runs once for each sequence of roles.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..errors import UserError
from .samples import BREAK
from .template import NotRendered, render
from .turns import Turn

# A placeholder: the number of its turn between two private-use characters. The blanks around it show whether a template strips contents.
_PLACE = re.compile("(\u2003?)\ue000(\\d+)\ue001(\u2003?)")
_PRIVATE = re.compile("[\u2003\ue000\ue001]")
# A special token, as templates write them.
_TOKEN = re.compile(r"<[^<>\s]+>")
# The date that templates are given: always the same, or no batch could be repeated. It is the default of Llama 3's template.
_TODAY = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro +%}"

# Longer chats are laid out anew each time: their layouts are large, and hardly ever come again.
_LONGEST_KEPT = 64  # turns


@dataclass(frozen=True)
class Part:
    """A stretch of a chat.

    `learned` parts are trained on, the others given. In `markup`, which is a template's own text, special tokens are read as such; everywhere else
    they are text. An `end` part has no text: it stands for the tokenizer's end token.
    """

    text: str
    learned: bool = True
    markup: bool = False
    end: bool = False


def write_out(turns: Sequence[Turn], template: str | None, end_text: str, begin_text: str = "") -> tuple[list[Part], list[Part]]:
    """Write a chat out; every answer and the mark at its end are learned.

    The end token after the last answer is not among the parts: it is added to every sample, and a template's own is left out.

    :param turns: the last one is an answer.
    :param template: a chat template in Jinja, as tokenizers have it; None for the plain one.
    :param end_text: the text of the tokenizer's end token.
    :param begin_text: the text of its token for the beginning, where it has one.
    :return: the parts before the first answer, and those from there on.
    :raises UserError: when the template does not write these turns, or not as they are.
    """
    if template is None:
        parts = _write_plain(turns)
    else:
        parts = []
        lay_out = _lay_out if len(turns) <= _LONGEST_KEPT else _lay_out.__wrapped__
        for slot in lay_out(template, tuple((turn.role, turn.learned) for turn in turns), end_text, begin_text):
            parts.append(slot.fill(turns[slot.number]) if isinstance(slot, _Slot) else slot)
        parts = _join_spaces(parts)
    first = next(number for number, part in enumerate(parts) if part.learned)
    return parts[:first], parts[first:]


def write_text_of(messages: Sequence[Mapping[str, str]], template: str, end_text: str, begin_text: str, asks: bool) -> str:
    """Write a chat out as one text, as transformers does: special tokens in what is said look like those of the template.

    :param messages: each with `role` and `content`.
    :param asks: the text ends where an answer begins; else the last message is the beginning of the answer.
    :raises NotRendered: when the template does not write these messages.
    """
    return render(_TODAY + template, messages, eos_token=end_text, bos_token=begin_text, add_generation_prompt=asks, continue_final_message=not asks)


def _join_spaces(parts: list[Part]) -> list[Part]:
    """Move the space that a template writes before a content to that content: tokenizers join it to the word behind it."""
    joined: list[Part] = []
    for part in parts:
        before = joined[-1] if joined else None
        if before is not None and before.markup and not before.learned and not part.markup and before.text.endswith(" "):
            joined[-1:] = [replace(before, text=before.text[:-1])] if before.text[:-1] else []
            part = replace(part, text=" " + part.text)
        joined.append(part)
    return joined


# The plain way to write chats, as a template for other programs: "role: content", a blank line between turns, the end token after each answer.
PLAIN_TEMPLATE = ("{%- for message in messages %}{{ ('' if loop.first else '\\n\\n') + message['role'] + ': ' + message['content'] }}"
                  "{%- if message['role'] == 'assistant' %}{{ eos_token }}{%- endif %}{%- endfor %}"
                  "{%- if add_generation_prompt %}{{ '\\n\\nassistant: ' }}{%- endif %}")


def choose_template(chat: str | None, template: str | None) -> str | None:
    """Choose how the chats of a source are written out.

    :param chat: the plan's `chat`: "plain", "tokenizer", or None for the tokenizer's template where it has one.
    :param template: the tokenizer's.
    :return: the template; None for the plain one.
    :raises UserError: when there is no template and the plan insists on it.
    """
    if chat == "tokenizer" and template is None:
        raise UserError('"chat": "tokenizer": the tokenizer has no chat template; leave it out, or choose a tokenizer that has one.')
    is_plain = template is not None and template.strip() == PLAIN_TEMPLATE.strip()  # of an export of a model that has learned plain chats
    return None if chat == "plain" or is_plain else template


def _write_plain(turns: Sequence[Turn]) -> list[Part]:
    """Write "role: content", a blank line between turns, an end token after each answer."""
    parts: list[Part] = []
    given = ""
    for number, turn in enumerate(turns):
        given += f"{BREAK if number else ''}{turn.role}: "
        if not turn.learned and turn.role != "assistant":
            given += turn.content
            continue
        parts += [Part(given, learned=False), Part(turn.content, turn.learned)]  # an answer that is given is written as those are that are learned
        given = ""
        if number < len(turns) - 1:
            parts.append(Part("", turn.learned, end=True))
    return parts


@dataclass(frozen=True)
class _Slot:
    """Where the content of a turn goes, and which ends of it the template does not strip."""

    number: int
    keeps_left: bool
    keeps_right: bool

    def fill(self, turn: Turn) -> Part:
        """Put the content in."""
        text = turn.content if self.keeps_left else turn.content.lstrip()
        return Part(text if self.keeps_right else text.rstrip(), turn.learned)


@lru_cache(maxsize=1024)
def _lay_out(template: str, kinds: tuple[tuple[str, bool], ...], end_text: str, begin_text: str) -> tuple[Part | _Slot, ...]:
    """Find out what a template writes around turns of these roles; where it does not take them, they are folded into users and assistants."""
    as_is = [(role, [number]) for number, (role, _) in enumerate(kinds)]
    try:
        slots = _render(template, as_is, end_text, begin_text)
    except _NotWritten as reason:
        try:
            slots = _render(template, _fold(as_is), end_text, begin_text)
        except _NotWritten:
            raise UserError(f"the tokenizer's chat template does not write a chat of {', '.join(role for role, _ in kinds)} ({reason}); "
                            'with "chat": "plain" on its source it is written in a plain form.') from None
    return tuple(_mark_ends(slots, [learned for _, learned in kinds], end_text))


class _NotWritten(Exception):
    """A template refuses some turns, or doesn't show them; the message is the reason."""


def _render(template: str, messages: Sequence[tuple[str, list[int]]], end_text: str, begin_text: str) -> list[str | _Slot]:
    """Render a template with placeholders for contents.

    :param messages: roles, each with the numbers of the turns that are its content.
    :return: text and slots in turns: text first and last.
    :raises _NotWritten: when one of the turns does not come out.
    """
    rows = [{"role": role, "content": BREAK.join(f"\u2003\ue000{number}\ue001\u2003" for number in numbers)} for role, numbers in messages]
    try:
        written = render(_TODAY + template, rows, eos_token=end_text, bos_token=begin_text)
    except NotRendered as error:
        raise _NotWritten(str(error)) from None
    texts = _PLACE.split(written)
    found: list[str | _Slot] = [texts[0]]
    for left, number, right, text in zip(*(texts[i::4] for i in range(1, 5)), strict=True):
        found += [_Slot(int(number), bool(left), bool(right)), text]
    numbers, roles = [slot.number for slot in found if isinstance(slot, _Slot)], {number: role for role, group in messages for number in group}
    times = Counter(numbers)
    for role, group in messages:
        if any(times[number] != 1 for number in group):
            raise _NotWritten(f"it does not show what {role} says once")
    in_order = [number for number in numbers if roles[number] != "system"]  # which some templates write before the last question, or all of them first
    if in_order != sorted(in_order) or any(_PRIVATE.search(text) for text in found if isinstance(text, str)):
        raise _NotWritten("it changes what is said")
    return found


def _fold(messages: list[tuple[str, list[int]]]) -> list[tuple[str, list[int]]]:
    """Make a chat in which users and assistants alternate: other roles become users, and neighbours of one role become one message."""
    folded: list[tuple[str, list[int]]] = []
    for role, numbers in messages:
        role = role if role == "assistant" else "user"
        if folded and folded[-1][0] == role:
            folded[-1][1].extend(numbers)
        else:
            folded.append((role, list(numbers)))
    return folded


def _mark_ends(slots: list[str | _Slot], learned: list[bool], end_text: str) -> list[Part | _Slot]:
    """Make parts of the text between the slots: the mark right after an answer is learned, the rest given.

    The mark is what the template writes after the last answer. Where it ends only that one in the end token, the others end in the token behind them.
    """
    tail = slots[-1]
    assert isinstance(tail, str)
    before_end, end, _ = tail.partition(end_text) if end_text else (tail, "", "")
    last = before_end if end else before_end.rstrip()
    mark = last.rstrip() or before_end + end
    parts: list[Part | _Slot] = []
    for number, slot in enumerate(slots):
        if isinstance(slot, _Slot):
            parts.append(slot)
            continue
        previous = slots[number - 1] if number else None
        is_after_answer = isinstance(previous, _Slot) and learned[previous.number]
        if number == len(slots) - 1:
            ending, rest = last, ""
        else:
            token = _TOKEN.match(slot) if mark == end_text else None
            ending = "" if not is_after_answer or not mark.strip() else mark if slot.startswith(mark) else token[0] if token else ""
            rest = slot[len(ending):]
        parts += [Part(text, is_learned, markup=True) for text, is_learned in ((ending, True), (rest, False)) if text]
    return parts
