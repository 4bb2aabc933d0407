"""Batches made in line, in a thread, or in a thread with processes."""
import threading

from helpers import sentences

from lmplay.data.batcher import Batcher
from lmplay.data.continuation import Cutter
from lmplay.data.mixing import Mix
from lmplay.data.prefetch import Prefetch
from lmplay.data.reader import Order, open_reader
from lmplay.data.samples import choose_reading
from lmplay.data.sources import IndexedSource
from lmplay.data.stream import Length, SampleStream
from lmplay.tokenizer import load_tokenizer

BYTES = load_tokenizer("bytes")
CUT = Cutter(BYTES, 64).cut


class Texts(IndexedSource):
    """Rows of N sentences each; where N is below 1, the row is null."""

    def __init__(self, sizes):
        self.sizes, self.n_rows, self.name, self.columns, self.fingerprint = sizes, len(sizes), "texts", ("text",), {}

    def __getitem__(self, index):
        return {"text": sentences(self.sizes[index], f"cat {index}") if self.sizes[index] > 0 else None}


def make_stream(corpora, weights, make=Texts, length=None):
    readings = [choose_reading("x", ["text"], None)] * len(corpora)
    return SampleStream(Mix([open_reader(make(sizes), Order(number, True, 10, 0.0)) for number, sizes in enumerate(corpora)], weights), readings,
                        length or Length(epochs=1.5))


def batches_of(stream, batch_size, most_tokens, position=None, ahead=0, cutting=None, prepare=CUT):
    """Make batches in line, in a thread, or in a thread with processes, as a stage does."""
    def make(halted):
        batcher = Batcher(stream, prepare, batch_size, most_tokens, cutting=cutting, halted=halted)
        if position is not None:
            batcher.restore(position)
        for batch in iter(batcher.next, None):
            yield [[(piece.sample, piece.tokens.tolist(), piece.truth, piece.cut, piece.number) for piece in batch.pieces], batch.position,
                   batch.broken, batch.progress, batcher.reached]

    prefetch = Prefetch(make, ahead)
    try:
        yield from iter(prefetch.next, None)
    finally:
        prefetch.close()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]
