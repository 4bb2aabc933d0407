"""`builtin:tales`: little English stories without end, which know their own probability.  Data floor, no torch.

Every choice of a story is an equal draw among n options, told in the text at the moment it is made, so ln n summed over the choices that
the title does not show is -ln p(text | title), exactly: the least loss that any model can reach.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from ..permutation import GOLDEN, hash64, splitmix64
from .engine import Grammar, Teller, compile_grammar
from .level1 import LEVEL_1
from .level2 import LEVEL_2
from .level3 import LEVEL_3
from .level4 import LEVEL_4
from .words import WORDS

VERSION = 1  # raise it when any story changes: it is part of a source's fingerprint
LEVELS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Tale:
    """A story: its title, its text, and -ln p(text | title) in nats."""

    title: str
    text: str
    nats: float


class Tales:
    """The stories of one level, by index, without end; a pure function of (VERSION, level, seed, index) on every machine."""

    def __init__(self, level: int, seed: int = 0):
        """Choose the stories.

        :param level: 1 (a few sentences) to 4 (longer than any context).
        :param seed: any integer; other seeds give other stories.
        :raises ValueError: when there is no such level.
        """
        if level not in LEVELS:
            raise ValueError(f"tales have the levels {LEVELS}, not {level!r}")
        self.level = level
        self.seed = seed

    def __getitem__(self, index: int) -> Tale:
        """Tell a story.

        :param index: any number from 0.
        :return: the story; the same index gives the same story, in whatever order they are asked for.
        :raises IndexError: when the index is negative.
        """
        if index < 0:
            raise IndexError(f"tales are numbered from 0, there is none at {index}")
        dice = _Dice(self.seed, self.level, index)
        teller = Teller(grammar())
        title, _ = _tell(teller, f"title{self.level}", dice)
        text, nats = _tell(teller, f"tale{self.level}", dice)
        return Tale(title, text, nats)


@cache
def grammar() -> Grammar:
    """Give the grammar of all levels; the rules `title1` and `tale1` begin a story of level 1, and so on."""
    return compile_grammar({**WORDS, **LEVEL_1, **LEVEL_2, **LEVEL_3, **LEVEL_4})


class _Dice:
    """Equal draws from splitmix64, started from a key of integers."""

    def __init__(self, *key: int):
        self._state = hash64(*key)

    def roll(self, sides: int) -> int:
        """Draw from 0 to sides - 1; no side is off its share by more than 2^-64."""
        self._state += GOLDEN
        return splitmix64(self._state) * sides >> 64


def _tell(teller: Teller, rule: str, dice: _Dice) -> tuple[str, float]:
    """Tell one text.

    :return: the text and the nats of its choices.
    """
    nats = 0.0
    teller.start(rule)
    while options := teller.advance():
        nats += math.log(options)
        teller.take(dice.roll(options))
    return teller.text(), nats
