"""The samples of a stage: its length, its progress, and the rows that are skipped."""
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import SIZES, WEIGHTS, Flow, Rows, mix_of, rows

from lmplay.data.mixing import Mix
from lmplay.data.reader import Order, open_reader
from lmplay.data.samples import Skipped, choose_reading
from lmplay.data.stream import Length, SampleStream
from lmplay.errors import UserError


@pytest.mark.parametrize(("value", "reason"), [(None, "null"), (5, "not text"), (["a"], "not text"), ("", "empty"), (" \n", "empty")])
def test_rows_that_are_no_text_are_skipped_and_counted(value, reason):
    with pytest.raises(Skipped, match=reason):
        choose_reading("x", ["text"], None)({"text": value})
    stream = make_stream([{"text": "a"}, {"text": value}, {"text": "b"}], Length(epochs=1), shuffle=False)
    assert [sample.truth for sample in iter(stream.next, None)] == ["a", "b"]
    assert stream.skipped == {reason: 1}


def make_stream(all_rows, length, shuffle=True, make=Rows):
    source = make(all_rows)
    return SampleStream(Mix([open_reader(source, Order(1, shuffle, 10, 0.0))]), [choose_reading("x", ["text"], None)], length)


@pytest.mark.parametrize(("length", "expected"), [(Length(epochs=1), 20), (Length(epochs=2.5), 50), (Length(epochs=0.25), 5), (Length(samples=33), 33)])
def test_lengths(length, expected):
    stream = make_stream(rows(20), length)
    assert stream.total == expected
    progress = []
    count = 0
    while stream.next() is not None:
        count += 1
        progress.append(stream.progress)
    assert count == expected
    assert progress == sorted(progress)
    assert progress[-1] == pytest.approx(1.0)


def test_part_of_an_unknown_number_of_rows_is_refused():
    assert make_stream(rows(20), Length(epochs=2), make=Flow).total is None
    with pytest.raises(UserError, match="give samples, tokens or steps"):
        make_stream(rows(20), Length(epochs=0.5), make=Flow)


def test_nothing_but_rows_without_text_is_said():
    stream = make_stream([{"text": None}] * 5, Length(samples=3))
    with pytest.raises(UserError, match="10 null"):
        stream.next()


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
