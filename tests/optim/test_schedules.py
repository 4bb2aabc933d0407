"""The warm-up of the learning rate."""
from __future__ import annotations

import inspect
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmplay.optim.schedules import warmup_factor


def test_warm_up_at_chosen_steps() -> None:
    assert [warmup_factor(step) for step in (0, 20, 39, 40, 41)] == pytest.approx([0.1, 0.55, 0.9775, 1, 1])
    assert [warmup_factor(step, warmup_steps=4, warmup_fraction=0.5) for step in range(6)] == pytest.approx([0.5, 0.625, 0.75, 0.875, 1, 1])
    assert warmup_factor(0, warmup_steps=0) == 1


@given(warmup=st.integers(0, 60), start=st.floats(0, 1))
def test_a_warm_up_rises_without_a_jump(warmup: int, start: float) -> None:
    curve = [warmup_factor(step, warmup, start) for step in range(100)]
    assert curve[warmup:] == [1.0] * (100 - warmup)
    assert all(-1e-9 <= after - before <= 1 / max(1, warmup) + 1e-9 for before, after in itertools.pairwise(curve))


def test_flags_know_these_defaults() -> None:
    defaults = inspect.signature(warmup_factor).parameters
    assert (defaults["warmup_steps"].default, defaults["warmup_fraction"].default) == (40, 0.1)
