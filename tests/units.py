"""Samples that become known numbers of pieces, to make batches of."""
from hypothesis import strategies as st
from texts import BYTES

from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample


class Given:
    """Samples of N sentences each, which a context of 30 bytes cuts into N pieces."""

    progress = None

    def __init__(self, sizes):
        self.sizes, self.place = sizes, 0

    def next(self):
        if self.place == len(self.sizes):
            return None
        self.place += 1
        return Sample("", "abc def ghi. " * self.sizes[self.place - 1], row=self.place - 1)

    def state(self):
        return {"place": self.place}

    def restore(self, state):
        self.place = state["place"]


CUT = Cutter(BYTES, 30).cut
SIZES = st.lists(st.integers(1, 9), max_size=60)
