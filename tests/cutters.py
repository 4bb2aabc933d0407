"""Cutters that fail in the ways a process can fail, and one that prepares pairs; apart, because a process imports this file and must not wait for torch."""
import os
from dataclasses import replace

from lmplay.data.continuation import Cutter
from lmplay.errors import UserError


class Stubborn(Exception):
    """Cannot be made from its own arguments, so it cannot go to another process."""

    def __init__(self, what, where):
        super().__init__(f"{what} in {where}")


class FailingCutter(Cutter):
    """Fails in a given way at the fifth cat."""

    def __init__(self, tokenizer, context_len, way):
        super().__init__(tokenizer, context_len)
        self.way = way

    def __reduce__(self):
        return FailingCutter, (self.tokenizer, self.context_len, self.way)

    def cut(self, sample):
        if "cat 5 " in sample.truth:
            if self.way == "die":
                os._exit(9)
            raise UserError("cannot be cut", f"in {os.getpid()}") if self.way == "user" else Stubborn("stuck", "the mud")
        return super().cut(sample)


class Pairs:
    """Prepares pairs, as an objective that compares answers does: the pieces of a sample and of its text reversed, which have to share a batch."""

    def __init__(self, cutter):
        self.cutter = cutter

    def __call__(self, sample):
        pieces = [*self.cutter.cut(sample), *self.cutter.cut(replace(sample, truth=sample.truth[::-1]))]
        return [replace(piece, number=number, last=number == len(pieces) - 1) for number, piece in enumerate(pieces)]
