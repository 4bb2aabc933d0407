"""A conversation with a model: what has been said, and what of it the model reads.  Writing floor, no torch."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..data.turns import Turn
from .prompting import Prompting


def for_conversation(prompting: Prompting, forms: Mapping[str, list[dict[str, Any]]]) -> tuple[Prompting, str]:
    """Choose how a conversation is written out: as a chat, unless the model has learned instructions and no chats.

    :param prompting: how the prompts of the model are read by default.
    :param forms: the form of each source by stage, as a checkpoint records it.
    :return: how; and a remark for the user where the model has learned no chats, else the empty string.
    """
    learned = {source["form"] for stage in forms.values() for source in stage}
    if "chat" in learned:
        return replace(prompting, form="chat"), ""
    if "instruction" in learned:
        return replace(prompting, form="instruction"), "the model has learned instructions, not chats: it reads each question without what was said before"
    return replace(prompting, form="chat"), "the model has learned no chats: its answers are how it would continue one"


def read_turns(prompting: Prompting, turns: Sequence[Turn]) -> list[int]:
    """Turn a conversation into the token ids that its next answer follows; of instructions the model reads the last one, with what it is told before.

    :param turns: the last one is what a user says.
    :raises UserError: when the tokenizer's chat template does not write these turns.
    """
    if prompting.form == "instruction":
        return prompting.ids("\n".join(turn.content for turn in turns if turn.role == "system" or turn is turns[-1]))
    return prompting.turn_ids(turns)


@dataclass
class Conversation:
    """What has been said so far.

    :param context_len: the most tokens that the model reads.
    :param most_tokens: the most tokens of an answer; they are kept free, but at most a quarter of the context.
    :param system: what the model is told before the conversation; may be empty.
    """

    prompting: Prompting
    context_len: int
    most_tokens: int
    system: str = ""
    said: list[Turn] = field(default_factory=list)
    """Questions and answers in turns."""

    def ask(self, question: str) -> tuple[list[int], int]:
        """Say what a user says.

        The oldest questions are left out, with their answers, as long as the rest does not fit in the context; the last question always stays.

        :return: the token ids that the answer follows; and how many of the turns of the conversation are not among them.
        """
        said = [*self.said, Turn("user", question, False)]
        system = [Turn("system", self.system, False)] if self.system else []
        if self.prompting.form == "instruction":
            self.said = said
            return read_turns(self.prompting, [*system, *said]), 0
        fits = self.context_len - min(self.most_tokens, self.context_len // 4)
        first = 0
        while True:
            ids = read_turns(self.prompting, [*system, *said[first:]])
            if len(ids) <= fits or first + 2 >= len(said):
                self.said = said
                return ids, first
            first += 2

    def answer(self, text: str) -> None:
        """Keep the model's answer."""
        self.said.append(Turn("assistant", text, True))

    def messages(self) -> list[dict[str, str]]:
        """List what has been said as the rows of chat data have it: objects with `role` and `content`."""
        system = [Turn("system", self.system, False)] if self.system else []
        return [{"role": turn.role, "content": turn.content} for turn in (*system, *self.said)]
