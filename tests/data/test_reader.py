"""Reading one source: epochs, shuffling, held-out rows, and positions."""
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import Flow, Rows, rows

from lmplay.data.reader import Order, open_reader


def read_epoch(reader):
    return list(iter(reader.next, None))


@pytest.mark.parametrize("make", [Rows, Flow])
@given(n=st.integers(12, 120), buffer=st.integers(1, 40), seed=st.integers(0, 5), epochs=st.integers(1, 3))
@settings(max_examples=30)
def test_training_and_validation_share_the_rows(make, n, buffer, seed, epochs):
    source = make(rows(n))
    train = open_reader(source, Order(seed, True, buffer, 0.1))
    validation = open_reader(source, Order(seed, True, buffer, 0.1, validation=True))
    held = [index for index, _ in read_epoch(validation)]
    assert held == sorted(held)
    assert held
    orders = []
    for _ in range(epochs):
        seen = read_epoch(train)
        assert all(row == {"text": str(index)} for index, row in seen)
        orders.append([index for index, _ in seen])
        assert sorted(orders[-1] + held) == list(range(n))
    if buffer > 1 and n > 60 and epochs > 1:
        assert orders[0] != orders[1] or buffer < 4


@pytest.mark.parametrize("make", [Rows, Flow])
@given(n=st.integers(1, 60), buffer=st.integers(1, 20), stop=st.integers(0, 150), shuffle=st.booleans())
@settings(max_examples=40)
def test_a_reader_goes_on_from_any_position(make, n, buffer, stop, shuffle):
    order = Order(3, shuffle, buffer, 0.1)
    untouched, stopped, resumed = (open_reader(make(rows(n)), order) for _ in range(3))
    for _ in range(stop):
        untouched.next()
        stopped.next()
    resumed.restore(stopped.state())
    assert [resumed.next() for _ in range(100)] == [untouched.next() for _ in range(100)]


def test_a_streams_blocks_are_of_the_buffers_size(tmp_path):
    reader = open_reader(Flow(rows(40)), Order(1, True, 8))
    seen = [index for index, _ in iter(reader.next, None)]
    for begin in range(0, 40, 8):
        assert sorted(seen[begin:begin + 8]) == list(range(begin, begin + 8))
        assert seen[begin:begin + 8] != list(range(begin, begin + 8))
