"""Intervals and differences against independent ones."""
from __future__ import annotations

import numpy as np
import pytest

from lmplay.evaluate.results import Measure, Result, differences


def measures(seed: int, n: int) -> tuple[Measure, Measure]:
    """Two models on the same documents: hard ones are hard for both."""
    draw = np.random.default_rng(seed)
    weights = draw.integers(5, 200, n).astype(np.float64)
    hard = draw.gamma(4.0, 0.6, n)
    return tuple(Measure("loss", (hard + shift + draw.normal(0, 0.1, n)) * weights, weights, "nats per token", False) for shift in (0.0, 0.05))


def result(name: str, measure: Measure) -> Result:
    return Result("texts", "set", name, "set", {}, {"documents": len(measure.parts)}, (measure,))


def by_a_loop(statistic, n: int) -> tuple[float, float]:
    draw = np.random.default_rng(7)
    return tuple(np.quantile([statistic(draw.choice(n, n)) for _ in range(4000)], [0.025, 0.975]))


def test_intervals_are_those_of_a_plain_bootstrap():
    one, other = measures(0, 300)
    [figure] = one.figures()
    low, high = by_a_loop(lambda chosen: one.parts[chosen].sum() / one.weights[chosen].sum(), 300)
    width = high - low
    assert (figure.low, figure.high) == (pytest.approx(low, abs=width * 0.08), pytest.approx(high, abs=width * 0.08))
    [difference] = differences([result("a", one), result("b", other)])
    low, high = by_a_loop(lambda chosen: (one.parts[chosen] - other.parts[chosen]).sum() / one.weights[chosen].sum(), 300)
    assert (difference.low, difference.high) == (pytest.approx(low, abs=(high - low) * 0.08), pytest.approx(high, abs=(high - low) * 0.08))
    assert difference.high - difference.low < 0.3 * width  # paired


def test_intervals_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    one, _ = measures(1, 200)
    [figure] = one.figures()
    found = stats.bootstrap((one.parts, one.weights), lambda parts, weights, axis=-1: parts.sum(axis) / weights.sum(axis), paired=True, n_resamples=4000,
                            method="percentile", rng=np.random.default_rng(3)).confidence_interval
    width = found.high - found.low
    assert (figure.low, figure.high) == (pytest.approx(found.low, abs=width * 0.08), pytest.approx(found.high, abs=width * 0.08))


def test_many_documents_are_drawn_in_groups_with_the_same_interval():
    one, _ = measures(2, 40_000)
    [figure] = one.figures()
    ratio = one.parts.sum() / one.weights.sum()
    error = np.sqrt(np.square(one.parts - ratio * one.weights).sum()) / one.weights.sum()  # Cochran 1977, chapter 6
    assert (figure.high - figure.low) / 2 == pytest.approx(1.96 * error, rel=0.1)


def test_the_interval_has_the_true_difference_in_about_19_of_20_experiments():
    inside = 0
    for seed in range(200):
        [difference] = differences([result(name, one) for name, one in zip("ab", measures(seed, 60), strict=True)])
        inside += difference.low <= -0.05 <= difference.high
    assert 178 <= inside <= 199


def test_the_verdict_names_the_better_one():
    one, other = measures(0, 300)
    [difference] = differences([result("a", one), result("b", other)])
    assert difference.verdict.startswith("a is better than b by 0.0")
    [difference] = differences([result("b", other), result("a", one)])
    assert difference.verdict.startswith("a is better than b by 0.0")
    ones = np.ones(40)
    worse, better = (Measure("acc", np.arange(40) % 4 < right, ones) for right in (1, 3))
    [difference] = differences([result("a", worse), result("b", better)])
    assert difference.verdict.startswith("b is better than a by 50.0 ± ")
    assert "percentage points of acc" in difference.verdict
    [difference] = differences([result("a", one), result("b", one)])
    assert difference.verdict == "no difference between a and b beyond the noise of 300 documents of set: +0.000 ± 0.000 nats per token"
    [difference] = differences([result(name, Measure("acc", ones[:1] * value, ones[:1])) for name, value in (("a", 0), ("b", 1))])
    assert "which says nothing about others" in difference.verdict


def test_bits_per_byte_compare_where_a_tokenizer_cannot_write_all_bytes():
    one, other = (Measure("bits_per_byte", np.arange(1.0, 21.0), np.full(20, weight), "bits per byte", False) for weight in (10.0, 9.0))
    [difference] = differences([result("a", one), result("b", other)])
    assert difference.difference == pytest.approx(one.value - other.value)
    one, other = (Measure("loss", measure.parts, measure.weights, "nats per token", False) for measure in (one, other))
    assert differences([result("a", one), result("b", other)]) == []


def test_only_documents_that_both_models_were_judged_by_are_compared():
    draw = np.random.default_rng(0)
    parts, weights = draw.gamma(4.0, 5.0, 40), draw.integers(5, 200, 40).astype(np.float64)
    kept = np.arange(40) % 5 > 0
    kept[:20] = True

    def of(name: str, shift: float, chosen: np.ndarray) -> Result:
        measure = Measure("bits_per_byte", (parts + shift * weights)[chosen], weights[chosen], "bits per byte", False)
        return Result("texts", "set", name, "set", {}, {"documents": int(chosen.sum())}, (measure,), numbers=tuple(np.flatnonzero(chosen).tolist()))

    whole = np.ones(40, dtype=bool)
    [difference] = differences([of("a", 0.0, whole), of("b", 0.5, kept)])
    [same] = differences([of("a", 0.0, kept), of("b", 0.5, kept)])
    assert (difference.documents, difference.difference) == (int(kept.sum()), pytest.approx(-0.5))
    assert (difference.low, difference.high) == (same.low, same.high) == (pytest.approx(-0.5), pytest.approx(-0.5))
    assert f"{int(kept.sum())} documents of set" in difference.verdict
    assert differences([of("a", 0.0, kept), of("b", 0.5, ~kept)]) == []


@pytest.mark.parametrize("count", [2, 4, 100])
def test_none_or_all_right_is_not_certain(count):
    for right in (0.0, 1.0):
        [figure] = Measure("acc", np.full(count, right), np.ones(count)).figures()
        end = figure.high if right == 0 else 1 - figure.low
        assert (1 - end) ** count == pytest.approx(0.025)  # with this share of right answers as few come about in one of 40 experiments
        assert figure.value == right == (figure.low if right == 0 else figure.high)
