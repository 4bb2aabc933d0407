"""When to save and to validate."""
from hypothesis import given
from hypothesis import strategies as st

from lmplay.cadence import Every


@given(st.integers(1, 20), st.lists(st.integers(0, 50), max_size=30))
def test_it_is_time_once_for_each_crossing(interval, jumps):
    before, times = 0, 0
    for jump in jumps:
        times += Every(interval).due(before, before + jump)
        before += jump
    assert times <= before // interval
    assert sum(Every(interval).due(i, i + 1) for i in range(before)) == before // interval
    assert not Every(0).due(0, before)
