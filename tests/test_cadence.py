"""When to save and to validate."""
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmplay.cadence import AUTO_SAVES, AUTO_VALIDATIONS, Cadence, check_interval, intervals

JUMPS = st.lists(st.integers(0, 50), max_size=30)


def times_due(cadence, jumps, unit="samples"):
    """Do what is due after each jump, and give the counts at which it was."""
    last = now = 0
    done = []
    for jump in jumps:
        now += jump
        if cadence.due({unit: last}, {unit: now}):
            last = now
            done.append(now)
    return done


@given(st.integers(1, 20), JUMPS)
def test_it_is_time_once_for_each_jump_over_a_multiple(interval, jumps):
    ends = [sum(jumps[:number]) for number in range(len(jumps) + 1)]
    expected = [after for before, after in itertools.pairwise(ends) if any(count % interval == 0 for count in range(before + 1, after + 1))]
    assert times_due(Cadence({"samples": interval}), jumps) == expected
    assert Cadence({"samples": interval}).times({"samples": 0}, {"samples": ends[-1]}) == ends[-1] // interval
    assert times_due(Cadence({"samples": 0}), jumps) == []


@given(st.integers(1, 20), st.integers(0, 60), JUMPS)
def test_no_two_times_are_nearer_than_they_may_be_and_none_is_lost(interval, apart, jumps):
    done = times_due(Cadence({"samples": interval}, {"samples": apart}), jumps)
    assert all(after - before >= apart for before, after in zip([0, *done], done, strict=False))
    assert len(done) <= Cadence({"samples": interval}, {"samples": apart}).times({"samples": 0}, {"samples": sum(jumps)}) or not apart
    if times_due(Cadence({"samples": interval}), jumps):  # one that had to wait comes later
        assert done or sum(jumps) < apart


def test_the_first_unit_that_comes_decides():
    cadence, start = Cadence(AUTO_SAVES), {"samples": 0, "seconds": 0.0}
    assert cadence.due(start, {"samples": 10_000, "seconds": 1.0})
    assert cadence.due(start, {"samples": 7, "seconds": 300.0})
    assert not cadence.due(start, {"samples": 9_999, "seconds": 299.0})
    assert cadence.times(start, {"samples": 50_000, "seconds": None}) is None
    assert Cadence(AUTO_VALIDATIONS).times({"samples": 0, "tenths": 0}, {"samples": 60, "tenths": 10.0}) == 10


@pytest.mark.parametrize(("typed", "taken", "unit", "every", "words"), [
    ("10k", 10_000, "samples", 10_000, "every 10,000 samples"), ("250", 250, "samples", 250, "every 250 samples"), (0, 0, "samples", 0, "never"),
    ("1.5k samples", 1500, "samples", 1500, "every 1,500 samples"), ("500steps", "500steps", "steps", 500, "every 500 steps"),
    ("1step", "1step", "steps", 1, "every 1 step"), ("1Mtokens", "1Mtokens", "tokens", 10**6, "every 1,000,000 tokens"),
    ("10m", "10m", "seconds", 600, "every 10 minutes"),
    ("1.5h", "1.5h", "seconds", 5400, "every 90 minutes"), ("90s", "90s", "seconds", 90, "every 90 seconds")])
def test_intervals_are_written_with_their_units(typed, taken, unit, every, words):
    assert check_interval(typed) == check_interval(taken) == taken
    assert intervals(taken, AUTO_SAVES) == {unit: every}
    assert Cadence({unit: every}).in_words() == words


@pytest.mark.parametrize("wrong", ["-1", -1, "fast", "10 epochs", "1.5", 1.5, True, None, "10M minutes", "", "0.5steps", "9" * 400, "9" * 5000 + "m", 10**16])
def test_what_is_no_interval_is_refused(wrong):
    with pytest.raises(ValueError, match="500steps"):
        check_interval(wrong)


def test_auto_says_what_it_does():
    assert check_interval("auto") == "auto"
    assert Cadence(intervals("auto", AUTO_SAVES)).in_words() == "every 10,000 samples or 5 minutes"
    assert Cadence(intervals("auto", AUTO_VALIDATIONS)).in_words() == "every 100 samples or tenth of the stage"
