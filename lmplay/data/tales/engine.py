"""The storyteller: writes a text from a grammar, one choice at a time, and knows how many options each choice had.
Owns the template language; data floor; imports nothing of lmplay.

A grammar is a dict of rules.  A rule is a list of options of which one is drawn, all equally likely.  An option is a template,
followed, after bars, by the values of the columns which the rule's key names ("place where kind": "mill | at the mill | town").

    {home=place}              draw an option of the rule `place`, write it, remember it as the fact `home`
    {home=place.where}        draw, but write the column `where` instead
    {=weather}                draw and write, remember nothing
    {=spot@town}              a rule's name may hold an @
    {=spot@home.kind}         draw from the rule `spot@town`, where "town" is what the column `kind` of the fact `home` says
    {home} {home.kind}        write a fact, or a column of it
    {home<place3}             let the fact `home` be what `place3` is; writes nothing
    {^...} {a ...} {A ...}    write with a capital; after "a" or "an"; after "A" or "An"
    //                        an empty line

A remembered draw leaves out what other facts hold from the same rule, so two people never share a name.  Everything a story does not yet
know is drawn at the moment it is written: when no option's words begin another's, a text gives away every choice that made it.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_SLOT = re.compile(r"\{([^{}]*)\}")
_DRAW = re.compile(r"(?P<fact>\w*)=(?P<rule>\w+(?:@\w+$)?)(?:@(?P<by>\w+)\.(?P<by_column>\w+))?(?:\.(?P<column>\w+))?")
_FACT = re.compile(r"(?P<fact>\w+)(?:\.(?P<column>\w+))?")
_FORM = re.compile(r"(\^|[aA] )?(.*)")


class _Form(NamedTuple):
    """The next words get a capital (^) or an article (a, A)."""

    kind: str


class _Fact(NamedTuple):
    """Write a column of a fact ("" is the option's own words)."""

    fact: str
    column: str


class _Keep(NamedTuple):
    """Let one fact be what another is."""

    fact: str
    source: str


class _Draw(NamedTuple):
    """Draw from a rule, or from `rule@` and what the column `by_column` of the fact `by` says; write a column, remember as `fact`."""

    fact: str
    rule: str
    by: str
    by_column: str
    column: str


_Part = str | _Form | _Fact | _Keep | _Draw


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a rule: its columns as parts, last part first (a stack's order); "" is its own words."""

    rule: str
    index: int
    columns: dict[str, tuple[_Part, ...]]


Grammar = dict[str, tuple[Option, ...]]


class Teller:
    """One story being told: `start`, then `take` a choice as long as `advance` finds one."""

    __slots__ = ("_draw", "_facts", "_form", "_grammar", "_open", "_out", "_stack")

    def __init__(self, grammar: Grammar):
        """Begin with no facts.

        :param grammar: what :func:`compile_grammar` made.
        """
        self._grammar = grammar
        self._facts: dict[str, Option] = {}
        self._out: list[str] = []
        self._stack: list[_Part] = []
        self._form = ""
        self._draw = _Draw("", "", "", "", "")
        self._open: Sequence[Option] = ()

    def start(self, rule: str) -> None:
        """Begin a new text with what is known so far.

        :param rule: the rule to tell; it must have one option.
        """
        self._out = []
        self._stack = list(self._grammar[rule][0].columns[""])

    def advance(self) -> int:
        """Write up to the next choice; what has one option is no choice.

        :return: how many options it has, at least 2 and all equally likely; 0 when the text is complete.
        :raises LookupError: when other facts hold all options of a rule; it names the rule, which needs more of them.
        """
        stack, facts = self._stack, self._facts
        while stack:
            part = stack.pop()
            if isinstance(part, str):
                self._write(part)
            elif isinstance(part, _Draw):
                if (options := self._offer(part)) > 1:
                    return options
                self.take(0)
            elif isinstance(part, _Fact):
                stack.extend(facts[part.fact].columns[part.column])
            elif isinstance(part, _Form):
                self._form = part.kind
            else:
                facts[part.fact] = facts[part.source]
        return 0

    def take(self, choice: int) -> None:
        """Make the choice at hand.

        :param choice: 0 to what `advance` returned, less 1.
        """
        option = self._open[choice]
        if self._draw.fact:
            self._facts[self._draw.fact] = option
        self._stack.extend(option.columns[self._draw.column])

    def text(self) -> str:
        """Give what is written so far."""
        return "".join(self._out)

    def copy(self) -> Teller:
        """Give a teller that knows the same and will tell the same, but has written nothing yet: to try another choice with."""
        other = Teller(self._grammar)
        other._facts, other._stack = dict(self._facts), list(self._stack)
        other._form, other._draw, other._open = self._form, self._draw, self._open
        return other

    def _write(self, words: str) -> None:
        """Write words, in the form that is asked for."""
        if self._form == "^":
            words = words[0].upper() + words[1:]
        elif self._form:
            words = f"{self._form}{'n' if words[0] in 'aeiouAEIOU' else ''} {words}"
        self._form = ""
        self._out.append(words)

    def _offer(self, draw: _Draw) -> int:
        """Find the options of a draw and count them; a rule with none left is a fault of the grammar."""
        name = draw.rule
        if draw.by:
            name = f"{name}@{self._facts[draw.by].columns[draw.by_column][0]}"
        options: Sequence[Option] = self._grammar[name]
        if draw.fact:
            held = {option.index for option in self._facts.values() if option.rule == name}
            if held:
                options = [option for option in options if option.index not in held]
        if not options:
            raise LookupError(name)
        self._draw, self._open = draw, options
        return len(options)


def compile_grammar(source: Mapping[str, Sequence[str]]) -> Grammar:
    """Turn rules as written into rules as told.

    :param source: the options of each rule, by its name and the names of its columns.
    :return: the grammar.
    :raises ValueError: when an option lacks a column, or a slot cannot be read.
    """
    grammar = {}
    for key, lines in source.items():
        rule, *columns = key.split()
        options = []
        for index, line in enumerate(lines):
            values = [" ".join(value.split()) for value in line.split("|")]
            if len(values) != len(columns) + 1:
                raise ValueError(f"rule {rule}: '{line}' has {len(values) - 1} columns, not {len(columns)}")
            options.append(Option(rule, index, {column: _parts(value) for column, value in zip(["", *columns], values, strict=True)}))
        grammar[rule] = tuple(options)
    return grammar


def _parts(template: str) -> tuple[_Part, ...]:
    """Cut a template into its parts, last first."""
    parts: list[_Part] = []
    for position, piece in enumerate(_SLOT.split(template.replace(" // ", "\n\n"))):
        if position % 2:
            parts.extend(_slot(piece))
        elif piece:
            parts.append(piece)
    return tuple(reversed(parts))


def _slot(slot: str) -> list[_Part]:
    """Read what stands between two braces."""
    fact, kept, source = slot.partition("<")
    if kept:
        return [_Keep(fact, source)]
    form, name = _FORM.fullmatch(slot).groups()  # type: ignore[union-attr]  # it matches any text
    parts: list[_Part] = [_Form(form.strip())] if form else []
    if draw := _DRAW.fullmatch(name):
        groups = draw.groupdict("")
        return [*parts, _Draw(groups["fact"], groups["rule"], groups["by"], groups["by_column"], groups["column"])]
    if known := _FACT.fullmatch(name):
        return [*parts, _Fact(known["fact"], known["column"] or "")]
    raise ValueError(f"the slot {{{slot}}} cannot be read")
