"""How durations and bytes are written."""
import pytest

from lmplay.words import bytes_in_words, clock, compact, duration


@pytest.mark.parametrize(("seconds", "short", "left"), [(0, "0.0s", "0:00:00"), (33.14, "33.1s", "0:00:33"), (725, "12m 05s", "0:12:05"),
                                                        (12_000, "3h 20m", "3:20:00"), (400_000, "111h 06m", "111:06:40")])
def test_durations(seconds, short, left):
    assert (duration(seconds), clock(seconds)) == (short, left)


def test_a_time_limit_that_has_passed_leaves_nothing():
    assert clock(-5) == "0:00:00"


@pytest.mark.parametrize(("count", "text"), [(0, "0.0 MiB"), (3_670_016, "3.5 MiB"), (2**30, "1.00 GiB"), (5 * 2**28, "1.25 GiB")])
def test_bytes(count, text):
    assert bytes_in_words(count) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (950, "950"), (2000, "2k"), (1_500_000, "1.5M"), (3e9, "3B"), (2.5e12, "2.5T"), (-4000, "-4k")])
def test_counts_are_written_shortly(value, text):
    assert compact(value) == text
