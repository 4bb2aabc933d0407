"""Batches: nothing lost, units whole, progress, and positions.  Invariants 1 and 3, and the position of 5."""
from collections import Counter
from itertools import accumulate

import pytest
from cutters import Pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import BYTES
from units import CUT, SIZES, Given

from lmplay.data.batcher import Batcher
from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample


def signature(batch):
    return [(piece.sample.row, piece.number) for piece in batch.pieces]


@pytest.mark.parametrize("prepare", [CUT, Pairs(Cutter(BYTES, 30))], ids=["texts", "pairs"])
@given(SIZES, st.integers(1, 8))
@settings(max_examples=150)
def test_batches_lose_nothing_and_keep_units_whole(prepare, sizes, batch_size):
    batcher = Batcher(Given(sizes), prepare, batch_size)
    batches = list(iter(batcher.next, None))
    placed = [piece for batch in batches for piece in batch.pieces]
    whole = [prepare(sample) for sample in iter(Given(sizes).next, None)]
    assert sorted(p for batch in batches for p in signature(batch)) == [(row, number) for row, pieces in enumerate(whole) for number in range(len(pieces))]
    home = {}
    for number, batch in enumerate(batches):
        assert 1 <= len(batch.pieces) <= batch_size
        for piece in batch.pieces:
            home.setdefault(piece.sample.row, set()).add(number)
    broken = {row for row, where in home.items() if len(where) > 1}
    assert all(len(whole[row]) > batch_size for row in broken)  # invariant 3
    assert sum(batch.broken for batch in batches) == sum(len(home[row]) - 1 for row in broken)
    for row in home:
        assert [p.number for p in placed if p.sample.row == row] == list(range(len(whole[row])))
    assert sorted(sample.row for batch in batches for sample in batch.samples) == list(range(len(sizes)))


@pytest.mark.parametrize("prepare", [CUT, Pairs(Cutter(BYTES, 30))], ids=["texts", "pairs"])
@given(SIZES, st.integers(1, 8), st.integers(0, 40), st.sampled_from([None, 100, 500]))
@settings(max_examples=100)
def test_batches_go_on_from_any_position(prepare, sizes, batch_size, stop, most_tokens):
    def make():
        return Batcher(Given(sizes), prepare, batch_size, most_tokens)

    untouched, resumed = make(), make()
    position = untouched.state()
    for _ in range(stop):
        batch = untouched.next()
        if batch is not None:
            position = batch.position
    resumed.restore(position)
    assert [(signature(b), b.position) for b in iter(resumed.next, None)] == [(signature(b), b.position) for b in iter(untouched.next, None)]


@given(SIZES.filter(bool), st.integers(1, 8), st.integers(0, 20), st.sampled_from([None, 100, 500]))
def test_progress_is_what_has_been_trained_on_not_what_waits(sizes, batch_size, stop, most_tokens):
    class Measured(Given):
        @property
        def progress(self):
            return self.place / len(self.sizes)

    def make():
        return Batcher(Measured(sizes), CUT, batch_size, most_tokens)

    batches = list(iter(make().next, None))
    pieces = [len(CUT(sample)) for sample in iter(Given(sizes).next, None)]
    tokens = [0, *accumulate(13 * size + 1 for size in sizes)]
    placed = [0] * len(sizes)
    for batch in batches:
        for piece in batch.pieces:
            placed[piece.sample.row] += 1
        oldest = next((row for row in range(len(sizes)) if placed[row] < pieces[row]), len(sizes))
        part = placed[oldest] / pieces[oldest] if oldest < len(sizes) else 0
        expected = (oldest + part) / len(sizes)
        if most_tokens is not None:
            shares = [min(1, tokens[row] / most_tokens) for row in (oldest, min(oldest + 1, len(sizes)))]
            expected = shares[0] + part * (shares[1] - shares[0])
        assert batch.progress == pytest.approx(expected)
    if stop < len(batches):
        resumed = make()
        resumed.restore(batches[stop].position)
        assert [batch.progress for batch in iter(resumed.next, None)] == [batch.progress for batch in batches[stop + 1:]]


@given(SIZES.filter(bool), st.integers(1, 300))
def test_no_sample_is_read_once_there_are_tokens_enough(sizes, most):
    batcher = Batcher(Given(sizes), CUT, 4, most)
    samples = [sample for batch in iter(batcher.next, None) for sample in batch.samples]
    tokens = [13 * size + 1 for size in sizes]
    expected = next((n for n in range(1, len(sizes) + 1) if sum(tokens[:n]) >= most), len(sizes))
    assert len(samples) == expected


class Texts:
    progress = None

    def __init__(self, texts):
        self.texts, self.place, self.skipped = texts, 0, Counter()

    def next(self):
        self.place += 1
        return Sample("", self.texts[self.place - 1]) if self.place <= len(self.texts) else None

    def state(self):
        return self.place


def test_a_text_without_tokens_is_counted(word_pieces):
    samples = Texts(["cats", "\u200b\u200e", "cat \x00 cats", "\u200b"])
    batcher = Batcher(samples, Cutter(word_pieces, 16).cut, 2)
    batches = list(iter(batcher.next, None))
    assert [sample.truth for batch in batches for sample in batch.samples] == ["cats", "cat \x00 cats"]
    assert sum(batch.empty for batch in batches) + batcher.empty == 2
