"""Recorded curves: reading the files, and the arithmetic on curves."""
import math

import numpy as np
import pytest
from curves import DAMAGE, edit, make_run, words_in
from hypothesis import given
from hypothesis import strategies as st

from lmplay.plotstats.plot import draw_curve
from lmplay.plotstats.runs import difference, read_curve, read_folder, smooth, thin, window_of
from lmplay.stats.figures import Progress

NUMBERS = st.floats(-1e3, 1e3) | st.just(math.nan)


@given(st.floats(-1e6, 1e6), st.integers(0, 60), st.integers(0, 40), st.lists(st.integers(0, 60), max_size=3))
def test_the_mean_of_a_constant_is_the_constant(value, rows, half, borders):
    values = np.full(rows, value)
    assert smooth(values, 2 * half + 1, sorted(min(border, rows) for border in borders)) == pytest.approx(values, rel=1e-12)


@given(st.lists(NUMBERS, max_size=50), st.integers(1, 20), st.lists(st.integers(0, 50), max_size=3))
def test_the_mean_is_over_the_known_values_within_the_window_and_the_part(values, half, borders):
    borders = sorted(min(border, len(values)) for border in borders)
    expected = []
    for index in range(len(values)):
        begin = max([0, index - half, *(border for border in borders if border <= index)])
        end = min([len(values), index + half + 1, *(border for border in borders if border > index)])
        known = [value for value in values[begin:end] if not math.isnan(value)]
        expected.append(sum(known) / len(known) if known else math.nan)
    assert smooth(np.array(values), 2 * half + 1, borders) == pytest.approx(np.array(expected), nan_ok=True, abs=1e-9)


def test_a_huge_loss_is_forgotten_behind_its_window():
    values = np.full(1000, 3.0)
    values[100] = 1e30
    assert smooth(values, 21)[111:] == pytest.approx(3.0)


@pytest.mark.parametrize(("smoothing", "rows", "window"), [
    (0, 500, 1), (1, 500, 1), (7, 500, 7), (8, 500, 9), (0.1, 500, 51), (0.5, 3, 1), (1e9, 10, 21), (None, 19, 1), (None, 20, 5),
    (None, 1000, 21), (None, 0, 1),
])
def test_windows(smoothing, rows, window):
    assert window_of(smoothing, rows) == window


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(-50, 50)), max_size=40))
def test_a_run_minus_itself_is_zero(points):
    x, y = np.array(sorted(points), dtype=float).reshape(-1, 2).T
    places, values = difference(x, y, x, y)
    assert places.tolist() == sorted(set(x))
    assert values == pytest.approx(0.0)


def test_a_difference_is_taken_where_both_are_known_and_interpolates():
    random = np.random.default_rng(0)
    x, x_reference = np.sort(random.uniform(0, 10, 50)), np.sort(random.uniform(2, 8, 20))
    y, y_reference = random.normal(size=50), random.normal(size=20)
    places, values = difference(x, y, x_reference, y_reference)
    inside = (x >= x_reference.min()) & (x <= x_reference.max())
    assert places.tolist() == x[inside].tolist()
    assert 0 < len(places) < 50
    assert values == pytest.approx(y[inside] - np.interp(x[inside], x_reference, y_reference))
    assert difference(x, y, x[:0], y[:0])[0].size == 0


@given(st.lists(st.floats(-1e3, 1e3), max_size=300), st.integers(2, 40))
def test_thinning_keeps_the_ends_and_the_peaks(values, most):
    array = np.array(values)
    kept = thin(array, most)
    assert kept.tolist() == sorted(set(kept.tolist()))
    if values:
        assert {0, len(values) - 1} <= set(kept.tolist())
        assert (array[kept].min(), array[kept].max()) == (array.min(), array.max())
    assert len(kept) <= max(most, 2 * most + 2 * -(-len(values) // (most // 2)))


def test_a_million_points_become_few():
    assert 1000 < len(thin(np.random.default_rng(0).normal(size=1_000_000), 2000)) < 3000


def test_a_file_is_what_it_says_and_not_what_it_is_called(tmp_path):
    make_run(tmp_path, model="a_step_b", stages=[("c_step_d", 100, 10)], rows=4)
    (tmp_path / "a_step_b_train_stats.json").rename(tmp_path / "x_step_y_train_stats.json")
    curves, faults = read_folder(tmp_path)
    assert [(curve.model, curve.kind, curve.stage) for curve in curves] == [
        ("a_step_b", kind, stage) for kind in ("train", "validate") for stage in (None, "c_step_d")]
    assert not faults
    assert curves[0].path.name == "x_step_y_train_stats.json"


def test_null_is_unknown_and_missing_columns_are_too(tmp_path):
    make_run(tmp_path, rows=4)
    path = tmp_path / "tiny_train_stats.json"
    edit(path, lambda content: (content["columns"].update(loss=[3.0, None, 2.0, None]), content["columns"].pop("accuracy")))
    curve = read_curve(path)
    assert curve.columns["loss"] == pytest.approx([3.0, math.nan, 2.0, math.nan], nan_ok=True)
    assert curve.points("samples", "loss")[0].tolist() == [1000.0, 3000.0]
    assert (curve.last("loss"), curve.lowest("loss")) == (2.0, 2.0)
    assert math.isnan(curve.last("accuracy"))
    assert math.isnan(curve.lowest("accuracy"))


def test_the_smoothed_curve_keeps_the_jump_between_stages(tmp_path):
    make_run(tmp_path, rows=40)
    path = tmp_path / "tiny_train_stats.json"
    edit(path, lambda content: content["columns"].update(loss=[1.0] * 20 + [5.0] * 20))
    for x_name in ("samples", "tokens", "seconds"):
        assert read_curve(path).smoothed(x_name, "loss", 9)[1].tolist() == [1.0] * 20 + [5.0] * 20


def test_steps_within_a_long_sample_belong_to_the_stage_of_their_tokens(tmp_path):
    make_run(tmp_path, rows=40)
    path = tmp_path / "tiny_train_stats.json"

    def change(content):  # the first steps of the second stage end no sample
        content["columns"]["samples"][20:24] = [2000] * 4
        content["columns"]["loss"] = [1.0] * 20 + [5.0] * 20

    edit(path, change)
    assert read_curve(path).smoothed("samples", "loss", 9)[1].tolist() == [1.0] * 20 + [5.0] * 20


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_named_in_one_line(tmp_path, damage):
    make_run(tmp_path, rows=4, by_stage=False)
    path = tmp_path / "tiny_train_stats.json"
    path.write_text(damage(path.read_text()))
    curves, faults = read_folder(tmp_path)
    assert [curve.kind for curve in curves] == ["validate"]
    assert len(faults) == 1
    assert str(path) in faults[0]
    assert "\n" not in faults[0]


def test_it_reads_what_the_trainer_writes(tmp_path):
    from lmplay.stats.totals import ModelStats
    from lmplay.stats.writing import write_stats

    stats = ModelStats()
    for step in range(1, 4):
        place = Progress(step, 10 * step, 100 * step, 0.5 * step)
        stats.add_train(place, {"lr": 0.1, "steps": 1, "loss_sum": 300.0 / step, "n_tokens": 100, "step_seconds": 0.5})
    stats.add_validation(place, {"loss_sum": 90.0, "n_tokens": 100, "nats_sum": 50.0, "nats_tokens": 100, "n_bytes": 200, "words_right": 1, "words": 4})
    stage = {"name": "only", "done": False, "from_samples": 0, "to_samples": 30, "from_tokens": 0, "to_tokens": 300, "from_seconds": 0.0, "to_seconds": 1.5,
             "floor_nats_per_token": 0.4, "floor_bits_per_byte": None}
    write_stats(tmp_path, "model", "experiment", None, stats, [stage], [{"samples": 20, "tokens": 200, "seconds": 1.0}])
    (train, validation), faults = read_folder(tmp_path)
    assert not faults
    assert train.columns["loss"] == pytest.approx([3.0, 1.5, 1.0])
    assert train.columns["seconds"].tolist() == [0.5, 1.0, 1.5]
    assert train.running
    assert train.resumes["tokens"].tolist() == [200.0]
    assert validation.last("accuracy") == 0.25
    assert "floor 0.5" in words_in(draw_curve(validation, None, ["samples"], None))  # of the rows validated, before that of the stage
