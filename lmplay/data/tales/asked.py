"""Rows about the tales, and sums: questions with answers, pairs of answers, and tasks, without end.  Data floor, no torch.

The answers to questions are of two styles, as a whole sentence or as a word or two. Questions have either, equally often; of a pair the sentence is chosen.
"""
from __future__ import annotations

from ..permutation import hash64
from . import Tales

VERSION = 1  # raise it when any row changes: it is part of a source's fingerprint
_ABOUT = {"Lost": "What was lost?", "Torn": "What was torn?", "Broken": "What was broken?", "Cracked": "What was cracked?", "New": "What was bought?",
          "Hungry": "Which animal was hungry?", "Cold": "Which animal was cold?", "Birthday": "What was made for the birthday?"}
# Sums are of numbers below this.
_MOST = 10
COLUMNS = {"questions": ("prompt", "answer"), "preferences": ("prompt", "chosen", "rejected"), "sums": ("prompt", "answer")}
"""The kinds of rows, and what they have."""


class Asked:
    """The rows of a kind, by index; a pure function of (VERSION, kind, seed, index) on every machine."""

    def __init__(self, kind: str, seed: int = 0):
        """
        :param kind: questions, preferences or sums.
        :param seed: any integer; other seeds give other rows.
        """
        self._kind, self._seed, self._tales = kind, seed, Tales(1, seed=hash64(seed, [*COLUMNS].index(kind)))

    def __getitem__(self, index: int) -> dict[str, str]:
        """Give a row, by any number from 0."""
        drawn = hash64(self._seed, [*COLUMNS].index(self._kind), index)
        if self._kind == "sums":
            one, other = drawn % _MOST, drawn // _MOST % _MOST
            return {"prompt": f"What is {one} plus {other}?", "answer": str(one + other)}
        tale = self._tales[index]
        hero, _, plot = tale.title.partition(" and the ")
        kind, _, thing = plot.partition(" ")
        of_hero = drawn % 2 == 0
        question = "Who is the story about?" if of_hero else _ABOUT[kind]
        short, whole = (f"{hero}.", f"The story is about {hero}.") if of_hero else (f"The {thing.lower()}.", f"It was the {thing.lower()}.")
        prompt = f"{tale.text}\n\n{question}"
        if self._kind == "preferences":
            return {"prompt": prompt, "chosen": whole, "rejected": short}
        return {"prompt": prompt, "answer": short if drawn // 2 % 2 else whole}
