"""Prompts as the training data had them.  Writing floor, no torch.

A model has learned texts that begin in one way: after an end token (text), after their title, after an instruction, or as the answer of a chat.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..data.chat import Part, choose_template, write_out
from ..data.encoding import PartEncoder
from ..data.samples import BREAK
from ..data.turns import Turn
from ..tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompting:
    """How prompts become tokens.

    :param form: one of :data:`lmplay.data.samples.FORMS`.
    :param chat: how chats are written out: "plain", "tokenizer", or None for the tokenizer's template where it has one.
    :param markup: special tokens in a prompt are special tokens; else they are text.
    :param after_end: a plain text begins after an end token, as in training; False where the training data had no plain texts.
    :param begin_id: the token that everything begins with, in a model that others have trained; None = the end token before plain texts, as in our training.
        A chat begins as its template has it.
    """

    tokenizer: Tokenizer
    form: str = "text"
    chat: str | None = None
    markup: bool = False
    after_end: bool = True
    begin_id: int | None = None

    def ids(self, prompt: str, title: str | None = None) -> list[int]:
        """Turn a prompt into token ids, at least one.

        :param prompt: how a text begins, its title, an instruction, or what a user says, as `form` has it; may be empty.
        :param title: of the text that begins with the prompt; it comes first, whatever the form.
        """
        start = self._start
        if title:
            return self.begun(self._encode(title + BREAK) + self._encode(prompt))
        if not prompt and self.form != "chat":
            return start
        if self.form == "chat":
            return self.turn_ids([Turn("user", prompt, False)])
        if self.form == "text":
            return self.begun((start if self.after_end and self.begin_id is None else []) + self._encode(prompt) or start)
        return self.begun(self._encode(prompt + BREAK) or start)

    def turn_ids(self, turns: Sequence[Turn]) -> list[int]:
        """Turn a chat into the token ids that its next answer follows.

        :param turns: the last one is what a user says; answers among them are `learned`.
        :raises UserError: when the tokenizer's template does not write these turns.
        """
        given, answer = self._chat(turns)
        given = [replace(part, markup=not part.end) for part in given] if self.markup else given
        encoded, firsts = PartEncoder(self.tokenizer).encode((*given, *answer))
        ids: list[int] = encoded.ids[:firsts[len(given)]].tolist() or self._start
        return self.begun(ids) if choose_template(self.chat, self.tokenizer.chat_template) is None else ids

    def begun(self, ids: list[int]) -> list[int]:
        """Put the token for the beginning before a text, where the model has one and the text does not begin with it."""
        return ids if self.begin_id is None or ids[:1] == [self.begin_id] else [self.begin_id, *ids]

    def after(self, prompt: str) -> str:
        """Say what lies between a prompt and the text that follows, to be shown."""
        return BREAK if prompt and self.form != "text" else ""

    def continued(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens of a prompt that the new text is a part of the same text with: those of a plain text; other forms encode what follows by itself."""
        return ids if self.form == "text" else ()

    @property
    def _start(self) -> list[int]:
        """What a text of which nothing is given follows."""
        return [self.tokenizer.end_id if self.begin_id is None else self.begin_id]

    @property
    def ends(self) -> set[int]:
        """The tokens that end a text: the end token, and in a chat the mark after an answer, where that is one token."""
        return {self.tokenizer.end_id, *self._mark_ids()[:1]} if len(self._mark_ids()) == 1 else {self.tokenizer.end_id}

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts that end a text: in a chat the mark after an answer, where that is several tokens."""
        return (self._mark,) if len(self._mark_ids()) > 1 else ()

    @property
    def _mark(self) -> str:
        """What the template of a chat writes after an answer, without white space; the empty string where that is nothing, or the end token only."""
        if self.form != "chat":
            return ""
        _, answer = self._chat([Turn("user", "a", False)])
        return "".join(part.text.strip() for part in answer[1:2] if part.markup)

    def _mark_ids(self) -> list[int]:
        """Turn the mark into token ids; that of its special token alone where it has one."""
        ids = self._encode(self._mark, markup=True) if self._mark else []
        special = [token for token in ids if token in self.tokenizer.special_ids]
        return special[:1] or ids

    def _chat(self, turns: Sequence[Turn]) -> tuple[list[Part], list[Part]]:
        """Write out a chat and an answer to it: the parts before that answer, and the answer with what follows."""
        template = choose_template(self.chat, self.tokenizer.chat_template)
        given, learned = write_out([*turns, Turn("assistant", "a", True)], template, self.tokenizer.end_text, self.tokenizer.begin_text)
        parts = [*given, *learned]
        answer = max(number for number, part in enumerate(parts) if part.learned and not part.markup and not part.end)
        return parts[:answer], parts[answer:]

    def _encode(self, text: str, markup: bool = False) -> list[int]:
        """Turn a text into token ids."""
        encode = self.tokenizer.encode_markup if markup or self.markup else self.tokenizer.encode
        ids: list[int] = encode(text).ids.tolist()
        return ids


def recorded(tokenizer: Tokenizer, forms: Mapping[str, list[dict[str, Any]]], form: str | None = None, markup: bool = False) -> Prompting:
    """Choose how prompts are read by what a checkpoint says of its training data.

    :param forms: the form of each source by stage, in the order in which the stages began; empty where it was not recorded.
    :param form: what the user chose; None = that of the first source of the newest stage.
    """
    sources = [source for stage in forms.values() for source in stage]
    newest = next((stage[0] for stage in reversed([*forms.values()]) if stage), {"form": "text"})
    chats = [source.get("chat") for source in sources if source["form"] == "chat"]
    after_end = not sources or any(source["form"] == "text" for source in sources)
    return Prompting(tokenizer, form or newest["form"], chats[-1] if chats else None, markup, after_end)
