"""Batches: nothing lost, units whole, progress, and positions.  Invariants 1 and 3, and the position of 5."""
import json
from collections import Counter
from functools import partial
from itertools import accumulate

import pytest
from cutters import Pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import BYTES
from units import CUT, SIZES, Given

from lmplay.data.batcher import Batcher, ShuffledBatcher
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


WAYS = [partial(Batcher, spread=True), ShuffledBatcher]


class Growing:
    """Batches of 2 to 8 pieces, of 24 to 48 tokens, by the share of the samples that are in batches."""

    def batch_size(self, progress):
        return 2 + round(6 * progress)

    def prepare(self, sample, progress):
        return Cutter(BYTES, 24 + round(24 * progress)).cut(sample)


class Shares(Given):
    @property
    def progress(self):
        return self.place / len(self.sizes)


@pytest.mark.parametrize("way", [Batcher, *WAYS], ids=["together", "spread", "shuffled"])
@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(0, 30), st.sampled_from([None, 900]))
@settings(max_examples=60)
def test_sizes_that_change_lose_nothing_and_go_on_from_any_position(way, sizes, stop, most_tokens):
    def follow(batcher, progress=0.0):
        found = []
        while (batch := batcher.next(progress)) is not None:
            found.append((progress, batch))
            progress = batch.progress
        return found

    def make():
        return way(Shares(sizes), None, 1, most_tokens, sizes=Growing())

    found = follow(make())
    for progress, batch in found:
        assert len(batch.pieces) <= (8 if way is ShuffledBatcher else Growing().batch_size(progress))
    texts = {}
    for piece in (piece for _, batch in found for piece in batch.pieces):
        texts.setdefault(piece.sample.row, []).append(piece)
    for pieces in texts.values():
        pieces.sort(key=lambda piece: piece.number)
        assert "".join(piece.truth for piece in pieces) == pieces[0].sample.truth
    assert len(texts) == len(sizes) or most_tokens is not None
    if stop < len(found):
        resumed = make()
        resumed.restore(json.loads(json.dumps(found[stop][1].position)))
        rest = follow(resumed, found[stop][1].progress)
        expected = found[stop + 1:]
        assert [[piece.tokens.tolist() for piece in batch.pieces] for _, batch in rest] == \
            [[piece.tokens.tolist() for piece in batch.pieces] for _, batch in expected]
        assert [(batch.position, batch.progress) for _, batch in rest] == [(batch.position, batch.progress) for _, batch in expected]


@pytest.mark.parametrize("way", WAYS, ids=["spread", "shuffled"])
@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 20), st.integers(0, 40), st.sampled_from([None, 100, 900]))
@settings(max_examples=150)
def test_long_samples_are_divided_in_order_and_go_on_from_any_position(way, sizes, batch_size, stop, most_tokens):
    batcher = way(Given(sizes), CUT, batch_size, most_tokens)
    positions, found = [batcher.state()], []
    while (batch := batcher.next()) is not None:
        found.append((signature(batch), batch.progress, batch.position))
        positions.append(batch.position)
    placed = [piece for pieces, *_ in found for piece in pieces]
    read = len({row for row, _ in placed})
    assert sorted(placed) == [(row, number) for row in range(read) for number in range(len(CUT(Sample("", "abc def ghi. " * sizes[row]))))]
    for row in range(read):
        numbers = [number for of, number in placed if of == row]
        assert numbers == sorted(numbers)
    assert read == len(sizes) or most_tokens is not None
    assert all(1 <= len(pieces) <= batch_size for pieces, *_ in found)
    stop = min(stop, len(found))
    position = json.loads(json.dumps(positions[stop]))
    resumed = way(Given(sizes), CUT, batch_size, most_tokens)
    resumed.restore(position)
    assert [(signature(batch), batch.progress, batch.position) for batch in iter(resumed.next, None)] == found[stop:]


def test_a_long_sample_takes_a_quarter_of_a_batch_while_there_are_others():
    sizes = [40, 3, 40, 2, 40, 2, 2, 40, 40, *[1] * 30]
    batches = list(iter(Batcher(Given(sizes), CUT, 16, spread=True).next, None))
    shares = [Counter(row for row, _ in signature(batch)) for batch in batches]
    assert all(max(share.values()) <= 4 for share in shares[:8])
    assert all(len(batch.pieces) == 16 for batch in batches[:-1])  # the last ones are filled with what is left of the long ones
    assert all(sum(row in share for share in shares) == 1 for row in range(len(sizes)) if sizes[row] < 4)  # short ones stay together
    assert sum(batch.broken for batch in batches) == 0
    together = list(iter(Batcher(Given(sizes), CUT, 16).next, None))
    assert max(max(Counter(row for row, _ in signature(batch)).values()) for batch in together) == 16


def test_shuffled_pieces_are_of_many_samples():
    batches = list(iter(ShuffledBatcher(Given([40] * 20), CUT, 16).next, None))
    assert all(len({row for row, _ in signature(batch)}) >= 4 for batch in batches)
    assert {len(batch.pieces) for batch in batches} <= {15, 16}


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
