"""Schedules at chosen steps."""
from __future__ import annotations

import inspect
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmplay.optim.schedules import SCHEDULES, lr_factor


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("constant", [1, 1, 1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.2, 0.1, 0]),
        ("cosine", [1, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, 0.55, 0.1 + 0.9 * 0.0954915, 0.1 + 0.9 * 0.0244717, 0.1]),
        ("wsd", [1, 1, 1, 1, 0.5, 0]),
    ],
)
def test_schedules_at_chosen_places(name: str, at: list[float]) -> None:
    found = [lr_factor(name, 10_000, progress) for progress in (0, 0.25, 0.5, 0.8, 0.9, 1)]
    assert found == pytest.approx(at, abs=1e-6)


def test_lowest_share() -> None:
    for name in ("linear", "cosine", "wsd"):
        assert lr_factor(name, 10_000, 1.0, min_fraction=0.25) == pytest.approx(0.25)
        assert lr_factor(name, 10_000, 0.0, min_fraction=0.25) == 1
    assert lr_factor("linear", 10_000, 0.5, min_fraction=0.5) == pytest.approx(0.75)


def test_warm_up() -> None:
    assert [lr_factor("constant", step, None) for step in (0, 20, 39, 40, 41)] == pytest.approx([0.1, 0.55, 0.9775, 1, 1])
    assert [lr_factor("constant", step, None, warmup_steps=4, warmup_fraction=0.5) for step in range(6)] == pytest.approx([0.5, 0.625, 0.75, 0.875, 1, 1])
    assert lr_factor("constant", 0, None, warmup_steps=0) == 1
    assert lr_factor("linear", 20, 0.5) == pytest.approx(0.55 * 0.5)


@given(
    name=st.sampled_from(sorted(SCHEDULES)), steps=st.integers(100, 2000), warmup=st.integers(0, 60), start=st.floats(0, 1), lowest=st.none() | st.floats(0, 1)
)
def test_schedules_never_jump(name: str, steps: int, warmup: int, start: float, lowest: float | None) -> None:
    if name == "constant":
        lowest = None
    curve = [lr_factor(name, step, step / steps, lowest, warmup, start) for step in range(steps + 1)]
    assert all(0 <= factor <= 1 for factor in curve)
    most = 1 / max(1, warmup) * (warmup > 0) + 5 / steps  # wsd is the steepest: all the way down in a fifth of the stage
    assert all(abs(after - before) <= most + 1e-9 for before, after in itertools.pairwise(curve))
    after_warmup = curve[warmup:]
    assert after_warmup == sorted(after_warmup, reverse=True)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_progress_past_the_end_is_the_end(name: str) -> None:
    assert lr_factor(name, 500, 1.3) == lr_factor(name, 500, 1.0)


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
def test_unknown_length_leaves_constant_only(name: str) -> None:
    assert lr_factor("constant", 500, None) == 1
    with pytest.raises(ValueError, match=name):
        lr_factor(name, 500, None)


def test_flags_know_these_defaults() -> None:
    defaults = inspect.signature(lr_factor).parameters
    assert (defaults["warmup_steps"].default, defaults["warmup_fraction"].default) == (40, 0.1)
