"""Batches made ahead: the same ones whoever makes them, faults in their place, and a clean end."""
import json
import threading
import time
from itertools import islice
from pathlib import Path

import pytest
from ahead import CUT, Texts, batches_of, make_stream, threads
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmplay.data.batcher import Batcher
from lmplay.data.mixing import Mix
from lmplay.data.prefetch import Prefetch
from lmplay.data.reader import Order, open_reader
from lmplay.data.samples import choose_reading
from lmplay.data.stream import Length, SampleStream
from lmplay.data.workers import Workers
from lmplay.errors import UserError


class Broken(Texts):
    """Has a row that cannot be read."""

    def __getitem__(self, index):
        if self.sizes[index] == 13:
            raise UserError(f"rows.jsonl, line {index}: not valid", "a second fault")
        return super().__getitem__(index)


CORPORA = st.lists(st.lists(st.integers(0, 12), min_size=4, max_size=40).filter(any), min_size=1, max_size=3)


@given(CORPORA, st.integers(1, 9), st.booleans(), st.sampled_from([None, 1000]), st.integers(0, 20), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2))
@example([[5, 0, 1, 0]], 4, False, None, 1, 1, 0, 0)  # rows without text at the end of the stage
@settings(max_examples=40, deadline=None)
def test_batches_and_positions_are_the_same_whoever_makes_them(workers, corpora, batch_size, weighted, most, stop, ahead, first, second):
    weights = [1.0 + number for number in range(len(corpora))] if weighted else None
    ways = [{"ahead": 0}, {"ahead": ahead}, {"ahead": ahead, "cutting": workers.cut}]
    expected = list(batches_of(make_stream(corpora, weights), batch_size, most))
    assert expected
    for way in ways[1:]:
        assert list(batches_of(make_stream(corpora, weights), batch_size, most, **way)) == expected
    # Stopped after some batch under one number of workers, gone on with under another.
    begun = list(islice(batches_of(make_stream(corpora, weights), batch_size, most, **ways[first]), stop))
    position = json.loads(json.dumps(begun[-1][1])) if begun else None
    assert begun + list(batches_of(make_stream(corpora, weights), batch_size, most, position, **ways[second])) == expected


@pytest.mark.parametrize("way", [0, 1, 2])
def test_a_row_that_cannot_be_read_comes_after_the_batches_before_it(workers, way):
    def stream(make, length):
        return SampleStream(Mix([open_reader(make(sizes), Order(0, False, 10, 0.0))]), [choose_reading("x", ["text"], None)], length)

    sizes = [1 + i % 3 for i in range(300)]
    sizes[200] = 13
    seen = []
    batches = batches_of(stream(Broken, Length(epochs=1)), 7, None, ahead=3 * (way > 0), cutting=workers.cut if way == 2 else None)
    with pytest.raises(UserError) as caught:
        seen.extend(batch[:2] for batch in batches)
    assert caught.value.faults == ("rows.jsonl, line 200: not valid", "a second fault")
    assert any(Path(str(entry.path)).name == "test_prefetch.py" and entry.name == "__getitem__" for entry in caught.traceback)  # its own trace
    good = [batch[:2] for batch in batches_of(stream(Texts, Length(samples=200)), 7, None)]
    assert seen == good[:len(seen)]
    assert 0 <= len(good) - len(seen) <= 2  # those it would have filled up are not trained on


def test_no_more_is_made_than_was_asked_for():
    made = []

    def count(halted):
        for i in range(100):
            made.append(i)
            yield i

    prefetch = Prefetch(count, 3)
    assert not made  # not before the first is wanted
    assert [prefetch.next() for _ in range(5)] == [0, 1, 2, 3, 4]
    deadline = time.monotonic() + 20
    while len(made) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == list(range(8))
    prefetch.close()
    assert not threads()
    assert prefetch.next() is None


@pytest.mark.parametrize("ahead", [0, 2])
def test_it_can_begin_before_the_first_item_is_asked_for(ahead):
    begun = threading.Event()

    def make(halted):
        begun.set()
        yield from range(3)

    prefetch = Prefetch(make, ahead)
    prefetch.start()
    assert begun.wait(5.0 if ahead else 0.0) is bool(ahead)
    prefetch.start()
    assert [prefetch.next() for _ in range(4)] == [0, 1, 2, None]
    prefetch.close()


def test_who_waits_can_be_told_to_stop_waiting():
    go_on = threading.Event()

    def slow(halted):
        go_on.wait(20)
        yield "late"

    prefetch = Prefetch(slow, 1)
    assert prefetch.next(lambda: True) is None
    go_on.set()
    assert prefetch.next() == "late"  # nothing lost
    assert prefetch.next() is None
    prefetch.close()
    assert not threads()


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_close_in_the_middle_ends_thread_and_processes(ahead, taken):
    ended = []

    def make(halted):
        try:
            with Workers(CUT, 1) as started:
                yield from iter(Batcher(make_stream([[3] * 500], None), CUT, 4, cutting=started.cut, halted=halted).next, None)
        finally:
            ended.append(started._processes)

    prefetch = Prefetch(make, ahead)
    for _ in range(taken):
        assert prefetch.next() is not None
    prefetch.close()
    prefetch.close()
    assert not threads()
    assert all(process._process.poll() is not None for processes in ended for process in processes)
    assert len(ended) == (1 if taken else 0)
