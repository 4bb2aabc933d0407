"""Mixing and shuffling against plain references: exact shares, epochs over the mix, orders that are new each epoch and for each source."""
import json
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from helpers import write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import Flow, Rows, rows

from lmplay.data.mixing import Mix
from lmplay.data.permutation import Permutation
from lmplay.data.reader import Order, open_reader
from lmplay.data.samples import choose_reading
from lmplay.data.sources import IndexedSource
from lmplay.data.stage import StageData
from lmplay.data.stream import Length, SampleStream
from lmplay.errors import UserError
from lmplay.plan.schema import Stage

SIZES = st.lists(st.integers(1, 25), min_size=1, max_size=5)
WEIGHTS = st.lists(st.sampled_from([0.001, 0.1, 1 / 3, 1.0, 2.5, 7.0, 1000.0]), min_size=5, max_size=5)


class Endless(IndexedSource):
    n_rows, name, columns = None, "endless", ("text",)

    def __init__(self):
        self.fingerprint = {}

    def __getitem__(self, index):
        return {"text": str(index)}


def mix_of(sources, weights=None, stopping="all_exhausted", shuffle=False):
    readers = [open_reader(source, Order(number, shuffle, 7)) for number, source in enumerate(sources)]
    return Mix(readers, weights, stopping)


def turns(sizes, first):
    """The reference: sources take turns; whose rows are used up sits out, or ends the epoch."""
    given = []
    for turn in range(max(sizes) + 1):
        for source, size in enumerate(sizes):
            if turn < size:
                given.append((source, turn))
            elif first:
                return given
    return given


@given(SIZES, st.booleans(), st.sampled_from([Rows, Flow]), st.integers(1, 3))
@settings(max_examples=60)
def test_without_weights_sources_take_turns(sizes, first, make, epochs):
    mix = mix_of([make(rows(size)) for size in sizes], None, "first_exhausted" if first else "all_exhausted")
    for epoch in range(epochs):
        assert mix.epoch == epoch
        assert [(source, index) for source, index, _ in iter(mix.next, None)] == turns(sizes, first)


@given(SIZES, WEIGHTS, st.integers(0, 300), st.integers(1, 200))
@settings(max_examples=60)
def test_every_block_of_rows_has_the_exact_shares(sizes, weights, start, length):
    """Within an epoch no stretch of rows, wherever it begins, is two rows off; from its start not one."""
    weights = weights[:len(sizes)]
    mix = mix_of([Rows(rows(size)) for size in sizes], weights)
    shares = [Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    found = []
    while len(found) < start + length and (row := mix.next()) is not None:
        found.append(row[0])
    for begin in {0, min(start, len(found))}:
        counts = Counter(found[begin:])
        for source, share in enumerate(shares):
            assert abs(counts[source] - share * len(found[begin:])) < (2 if begin else 1) + Fraction(1, 10**6)


@given(SIZES, WEIGHTS, st.sampled_from(["first_exhausted", "all_exhausted"]))
@settings(max_examples=60, deadline=None)
def test_weighted_epochs_end_when_they_should_and_no_row_comes_twice_too_early(sizes, weights, stopping):
    weights = [min(max(weight, 0.1), 7.0) for weight in weights[:len(sizes)]]
    mix = mix_of([Rows(rows(size)) for size in sizes], weights, stopping, shuffle=True)
    found = [(source, index) for source, index, _ in iter(mix.next, None)]
    counts = Counter(source for source, _ in found)
    full = [counts[source] // size for source, size in enumerate(sizes)]
    if stopping == "first_exhausted":
        assert max(counts[source] / size for source, size in enumerate(sizes)) == 1
    else:
        assert min(full) >= 1
    for source, size in enumerate(sizes):  # each pass over a source is a whole one
        seen = [index for found_in, index in found if found_in == source]
        for begin in range(0, len(seen), size):
            assert len(set(seen[begin:begin + size])) == len(seen[begin:begin + size])
    assert abs(len(found) - mix.rows_per_epoch) <= sum(weights) / min(weights) + 1  # to within a row of the source that ends it
    assert mix.epochs == [counts[source] / size for source, size in enumerate(sizes)]


def test_an_endless_source_beside_one_that_ends():
    mix = mix_of([Endless(), Rows(rows(10))], [3.0, 1.0], "first_exhausted")
    assert mix.rows_per_epoch == 40
    counts = Counter(source for source, _, _ in iter(mix.next, None))
    assert counts[1] == 10
    assert abs(counts[0] - 30) <= 3
    assert [source for source, _, _ in iter(mix.next, None)].count(1) == 10
    assert mix.epochs == [None, 2.0]
    assert mix_of([Endless(), Rows(rows(10))], [3.0, 1.0]).rows_per_epoch is None


def test_an_endless_source_goes_on_in_the_next_epoch():
    def make():
        return mix_of([Endless(), Rows(rows(5))], None, "first_exhausted")

    mix, found, states = make(), [], []
    while mix.epoch < 3:
        states.append(mix.state())
        found.append(mix.next())
    of_endless = [row[1] for row in found if row is not None and row[0] == 0]
    assert len(of_endless) >= 15
    assert len(set(of_endless)) == len(of_endless)  # no row comes again: there are always others
    for place, state in enumerate(states):
        again = make()
        again.restore(state)
        assert [again.next() for _ in found[place:]] == found[place:]


def test_weights_may_be_as_unequal_as_they_like():
    mix = mix_of([Rows(rows(3)), Rows(rows(1000))], [1e-9, 1.0], "first_exhausted")
    assert Counter(source for source, _, _ in iter(mix.next, None)) in ({1: 1000}, {0: 1, 1: 1000})
    mix = mix_of([Rows(rows(5)), Rows(rows(5))], [1e9, 1e-9], "first_exhausted")
    assert {source for source, _, _ in iter(mix.next, None)} == {0}
    assert mix_of([Rows(rows(7))], [0.3]).rows_per_epoch == 7
    assert len(list(iter(mix_of([Rows(rows(7))], [0.3]).next, None))) == 7


def test_an_empty_stream_in_a_mix():
    assert len(list(iter(mix_of([Flow([]), Flow(rows(4))]).next, None))) == 4
    with pytest.raises(UserError, match="source number 1 of the mix gives no row at all"):
        list(iter(mix_of([Flow([]), Flow(rows(4))], [1.0, 1.0]).next, None))


@given(SIZES, WEIGHTS, st.booleans(), st.sampled_from(["first_exhausted", "all_exhausted"]), st.sampled_from([0.3, 1.0, 1.7, 2.5]), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_fractional_epochs_are_counted_over_the_mix_and_go_on_from_any_row(sizes, weights, weighted, stopping, epochs, stop):
    weights = [min(max(weight, 0.1), 7.0) for weight in weights[:len(sizes)]] if weighted else None

    def make():
        sources = [Rows(rows(size)) for size in sizes]
        return SampleStream(mix_of(sources, weights, stopping, True), [choose_reading("x", ["text"], None)] * len(sizes), Length(epochs=epochs))

    stream, stopped, resumed = make(), make(), make()
    whole = mix_of([Rows(rows(size)) for size in sizes], weights, stopping, True)
    per_epoch = [len(list(iter(whole.next, None))) for _ in range(3)]
    samples = list(iter(stream.next, None))
    expected = sum(per_epoch[:int(epochs)]) + (round(epochs % 1 * stream.rows_per_epoch) or int(epochs < 1) if epochs % 1 else 0)
    assert len(samples) == min(expected, sum(per_epoch[:int(epochs) + 1]))
    for _ in range(stop):
        stopped.next()
    resumed.restore(json.loads(json.dumps(stopped.state())))
    assert list(iter(resumed.next, None)) == samples[stop:]


# --- shuffling

def test_orders_are_new_each_epoch_and_for_each_source_and_spread_evenly():
    n = 400
    orders = {(source, epoch): tuple(Permutation(n, source, epoch)[i] for i in range(n)) for source in range(4) for epoch in range(4)}
    assert len(set(orders.values())) == 16
    one = orders[0, 0]
    for key, other in orders.items():
        if key != (0, 0):  # two random orders agree in one place on average
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 10
    for order in orders.values():
        assert 120 < sum(a < b for a, b in pairwise(order)) < 280  # half of the steps go up: 200, standard deviation 6
        half = sum(index < n // 2 for index in order[:n // 2])
        assert 60 < half < 140  # half of the first half comes from it: 100, standard deviation 5
    cells = Counter((place // 50, index // 50) for order in orders.values() for place, index in enumerate(order))
    chi_square = sum((cells[a, b] - 100) ** 2 / 100 for a in range(8) for b in range(8))
    assert chi_square < 100  # 49 degrees of freedom: above 100 once in 25,000 draws


def order_of(data, epochs=2):
    stream = data.open_samples()
    found = [sample.truth for sample in iter(stream.next, None)]
    return [found[i * len(found) // epochs:(i + 1) * len(found) // epochs] for i in range(epochs)]


@pytest.mark.parametrize("shuffle", [True, {"seed": 5}, {"buffer": 3}, False])
def test_what_a_plan_says_of_shuffling(tmp_path, shuffle):
    write_rows(tmp_path / "a.jsonl", [{"text": f"{i}"} for i in range(50)])

    def open_stage(shuffle, seed=0, path="a.jsonl"):
        stage = {"name": "one", "dataset": str(tmp_path / path), "epochs": 2, "validation": 0, "shuffle": shuffle}
        return StageData(Stage.model_validate(stage), tmp_path / "datasets", seed)

    first, second = order_of(open_stage(shuffle))
    assert sorted(first) == sorted(second) == sorted(str(i) for i in range(50))
    assert order_of(open_stage(shuffle)) == [first, second]
    assert (first == [str(i) for i in range(50)]) == (shuffle is False)
    assert (first != second) == (shuffle is not False)
    assert (order_of(open_stage(shuffle, seed=1))[0] != first) == (shuffle in (True, {"buffer": 3}))


def test_a_streams_blocks_are_of_the_buffers_size(tmp_path):
    reader = open_reader(Flow(rows(40)), Order(1, True, 8))
    seen = [index for index, _ in iter(reader.next, None)]
    for begin in range(0, 40, 8):
        assert sorted(seen[begin:begin + 8]) == list(range(begin, begin + 8))
        assert seen[begin:begin + 8] != list(range(begin, begin + 8))
