"""Mixing against plain references: exact shares, epochs over the mix, and positions."""
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import SIZES, WEIGHTS, Flow, Rows, mix_of, rows

from lmplay.data.mixing import Mix
from lmplay.data.reader import Order, open_reader
from lmplay.data.sources import IndexedSource
from lmplay.errors import UserError


@given(st.lists(st.floats(0.05, 10), min_size=1, max_size=6), st.integers(1, 400))
def test_weighted_shares_are_exact_at_every_row(weights, n):
    mix = Mix([open_reader(Rows(rows(50)), Order(number, held_out=0)) for number in range(len(weights))], weights)
    counts = Counter()
    for total in range(1, n + 1):
        found = mix.next()
        if found is None:
            return
        counts[found[0]] += 1
        for source, weight in enumerate(weights):
            assert abs(counts[source] - total * weight / sum(weights)) < 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.sampled_from([Rows, Flow]))
def test_without_weights_every_row_comes_once_an_epoch(sizes, make):
    mix = Mix([open_reader(make(rows(size)), Order(1, held_out=0)) for size in sizes])
    for _ in range(2):
        seen = [(source, index) for source, index, _ in iter(mix.next, None)]
        assert sorted(seen) == [(source, index) for source, size in enumerate(sizes) for index in range(size)]
    if make is Rows:
        assert mix.rows_per_epoch == sum(sizes)


def test_stopping():
    def count(stopping, weights=None):
        mix = Mix([open_reader(Rows(rows(n)), Order(held_out=0)) for n in (10, 30)], weights, stopping)
        return Counter(source for source, _, _ in iter(mix.next, None)), mix.rows_per_epoch

    assert count("first_exhausted") == ({0: 10, 1: 10}, 20)
    assert count("all_exhausted") == ({0: 10, 1: 30}, 40)
    oversampled, expected = count("all_exhausted", [1, 1])  # the short source starts again, because half of the rows are owed to it
    assert abs(oversampled[0] - 30) <= 1
    assert oversampled[1] == 30
    assert expected == sum(oversampled.values())


@given(st.lists(st.tuples(st.integers(1, 300), st.sampled_from([1, 2, 3, 5, 0.5, 0.25, 0.7])), min_size=1, max_size=4),
       st.sampled_from(["first_exhausted", "all_exhausted"]))
def test_the_rows_of_an_epoch_are_known_exactly(sources, stopping):
    readers = [open_reader(Rows(rows(size)), Order(number, held_out=0)) for number, (size, _) in enumerate(sources)]
    mix = Mix(readers, [weight for _, weight in sources], stopping)
    assert mix.rows_per_epoch == sum(1 for _ in iter(mix.next, None))


@given(st.integers(0, 200), st.sampled_from([None, [1.0, 2.5, 0.3]]), st.sampled_from(["first_exhausted", "all_exhausted"]))
@settings(max_examples=40)
def test_a_mix_goes_on_from_any_position(stop, weights, stopping):
    def make():
        return Mix([open_reader(kind(rows(n)), Order(n, True, 7, 0.1)) for kind, n in ((Rows, 20), (Flow, 33), (Rows, 11))], weights, stopping)

    untouched, stopped, resumed = make(), make(), make()
    for _ in range(stop):
        untouched.next()
        stopped.next()
    resumed.restore(stopped.state())
    assert [resumed.next() for _ in range(60)] == [untouched.next() for _ in range(60)]


def test_an_epoch_of_unknown_length_is_not_guessed():
    flow, short = Flow(rows(10)), Rows(rows(100))
    assert Mix([open_reader(flow, Order()), open_reader(short, Order())], None, "first_exhausted").rows_per_epoch is None


class Endless(IndexedSource):
    n_rows, name, columns = None, "endless", ("text",)

    def __init__(self):
        self.fingerprint = {}

    def __getitem__(self, index):
        return {"text": str(index)}


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
    counts = Counter(source for source, _, _ in iter(mix.next, None))
    assert mix.rows_per_epoch == sum(counts.values())
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
