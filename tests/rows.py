"""Sources in memory, for tests of what reads them."""
from hypothesis import strategies as st

from lmplay.data.mixing import Mix
from lmplay.data.reader import Order, open_reader
from lmplay.data.sources import IndexedSource, Stream, StreamedSource


class Rows(IndexedSource):
    """Indexed rows in memory."""

    def __init__(self, rows, name="rows"):
        self.rows, self.n_rows, self.name, self.columns, self.fingerprint = rows, len(rows), name, ("text",), {}

    def __getitem__(self, index):
        return self.rows[index]


class Flow(StreamedSource):
    """The same rows, in order only."""

    def __init__(self, rows, known=False):
        self.all, self.n_rows, self.name, self.columns, self.fingerprint = rows, len(rows) if known else None, "flow", ("text",), {}

    def open(self, state=None):
        return FlowStream(self.all, state or 0)


class FlowStream(Stream):
    def __init__(self, rows, place):
        self.rows, self.place = rows, place

    def __next__(self):
        if self.place == len(self.rows):
            raise StopIteration
        self.place += 1
        return self.rows[self.place - 1]

    def state(self):
        return self.place


def rows(n, prefix=""):
    return [{"text": f"{prefix}{i}"} for i in range(n)]


SIZES = st.lists(st.integers(1, 25), min_size=1, max_size=5)
WEIGHTS = st.lists(st.sampled_from([0.001, 0.1, 1 / 3, 1.0, 2.5, 7.0, 1000.0]), min_size=5, max_size=5)


def mix_of(sources, weights=None, stopping="all_exhausted", shuffle=False):
    readers = [open_reader(source, Order(number, shuffle, 7)) for number, source in enumerate(sources)]
    return Mix(readers, weights, stopping)
