"""Sources in memory, for tests of what reads them."""
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
