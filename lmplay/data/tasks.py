"""Tasks: a prompt, and the answer that what a model writes is judged by.  Data floor, no torch."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

from .turns import Skipped, Turn, need_text, read_turns


def read_task(values: list[Any]) -> tuple[list[Turn], list[Any]]:
    """Read a row of tasks.

    :param values: the prompt, a text or a list of messages; the answer, a text or a number; and perhaps what the prompt is about.
    :return: where the prompt is a list of messages, the chat with the answer at its end, of which nothing else is learned, else no turns; and the values as
        texts.
    :raises Skipped: when it cannot be one.
    """
    prompt, answer, *about = values
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        answer = str(answer)
    if not isinstance(prompt, list):
        return [], [prompt, answer, *about]
    turns = [replace(turn, learned=False) for turn in read_turns(prompt)]
    if not turns or turns[-1].role == "assistant":
        raise Skipped("no question")
    return [*turns, Turn("assistant", need_text(answer), learned=True)], values
