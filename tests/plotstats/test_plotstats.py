"""lmp_plotstats: what it reads, the arithmetic on curves, what its pictures say, and what it answers."""
import itertools
import json
import math
import os
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
from helpers import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from lmplay.errors import UserError
from lmplay.plotstats.__main__ import main
from lmplay.plotstats.long_json import _read
from lmplay.plotstats.plot import draw_curve, draw_differences, draw_together, same_tokens, save
from lmplay.plotstats.runs import difference, read_curve, read_folder, smooth, thin, window_of
from lmplay.plotstats.theme import THEMES
from lmplay.plotstats.watch import watch
from lmplay.stats.figures import Progress
from lmplay.words import compact

STAGES = [("short", 2000, 75), ("long", 2000, 130)]
NUMBERS = st.floats(-1e3, 1e3) | st.just(math.nan)


def make_run(folder, model="tiny", experiment="gpt2ish_tiny", stages=STAGES, rows=80, stop=None, floor=None, resumes=(), level=2.0, rate=1000.0,
             by_stage=True):
    """Write the files of a run; `stages` are (name, samples, tokens a sample), `stop` is the sample it has got to, `by_stage` asks for those of stages."""
    total = sum(samples for _, samples, _ in stages)
    stop = total if stop is None else stop
    places, reached, tokens = [], 0, 0
    for name, samples, length in stages:
        end = min(reached + samples, stop)
        if end > reached or not places:
            places.append({"name": name, "from_samples": reached, "to_samples": end, "from_tokens": tokens, "to_tokens": tokens + (end - reached) * length,
                           "done": end == reached + samples, "floor_nats_per_token": floor, "floor_bits_per_byte": None})
        reached, tokens = end, places[-1]["to_tokens"]
    corners = ([0, *(place["to_samples"] for place in places)], [0, *(place["to_tokens"] for place in places)])
    train = [row for row in np.linspace(total / rows, total, rows) if row <= stop] if rows else []
    for kind, samples in (("train", train), ("validate", train[3::4])):
        for stage in [None, *(place["name"] for place in places if by_stage)]:
            mine = [place for place in places if stage in (None, place["name"])]
            within = [row for row in samples if mine[0]["from_samples"] < row <= mine[-1]["to_samples"]]
            write_curve(folder, kind, model, experiment, stage, mine, within, np.interp(within, *corners).tolist(), resumes, level, rate, floor)


def write_curve(folder, kind, model, experiment, stage, stages, samples, tokens, resumes, level, rate, floor):
    """Write one file: a loss that falls from 10 to `level`."""
    noise = np.random.default_rng(len(samples)).normal(0, 0.05, len(samples))
    loss = (level + (10 - level) * np.exp(-np.array(samples) / 300) + noise).tolist()
    columns = {"step": list(range(len(samples))), "samples": samples, "tokens": tokens, "loss": loss, "accuracy": [0.5 - value / 30 for value in loss],
               "lr": [0.001] * len(samples), "something_new": ["?"] * len(samples)}
    if kind == "validate":
        columns |= {"perplexity": np.exp(loss).tolist(), "bits_per_byte": [value / 2 for value in loss], "floor": [floor and floor + 0.01] * len(samples)}
    clock = {"seconds": [place / rate for place in tokens], "tokens_per_second": [rate] * len(samples),
             "resumes": [{"samples": place, "tokens": place * 75, "seconds": place * 75 / rate} for place in resumes],
             "stages": [{"from_seconds": place["from_tokens"] / rate, "to_seconds": place["to_tokens"] / rate} for place in stages]}
    name = f"{model}_{kind}_stats.json" if stage is None else f"{model}_step_{stage}_{kind}_stats.json"
    content = {"format": 1, "kind": kind, "model": model, "experiment": experiment, "stage": stage, "totals": {}, "stages": stages, "columns": columns,
               "clock": clock}
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def edit(path, change):
    """Change the content of a file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def plot(capsys, folder, *arguments):
    """Run the door in this process; gives exit code, output and complaints."""
    code = main(["--out-dir", str(folder), *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def picture_size(path):
    """Check that a file is a PNG, and give its width and height."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:])


def pictures(folder):
    return {path.name for path in folder.glob("*.png")}


def curves_of(folder, kind="train"):
    curves, faults = read_folder(folder)
    assert not faults
    return [curve for curve in curves if curve.kind == kind and curve.stage is None]


def add_bits(folder, model, bytes_of_token):
    """Say how long the tokens of a run's validation are."""
    edit(folder / f"{model}_validate_stats.json", lambda content: content["columns"].update(
        bits_per_byte=[value / math.log(2) / bytes_of_token for value in content["columns"]["loss"]]))


def contrast(one, other):
    """The contrast ratio of two colours by WCAG 2.2."""
    from matplotlib.colors import to_rgb

    def light(color):
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def words_in(figure):
    """Collect everything that is written in a figure."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


@pytest.fixture
def unpainted(monkeypatch):
    """Leave the painting of pictures out, where only which ones there are matters; gives what would have been painted: panels and title."""
    painted = []
    monkeypatch.setattr("lmplay.plotstats.plot.make_figure", lambda panels, columns, title, theme: painted.append((panels, title)))
    monkeypatch.setattr("lmplay.plotstats.plot.save", lambda figure, path: path.touch())
    return painted


# Arithmetic


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


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (950, "950"), (2000, "2k"), (1_500_000, "1.5M"), (3e9, "3B"), (2.5e12, "2.5T"), (-4000, "-4k")])
def test_counts_are_written_shortly(value, text):
    assert compact(value) == text


# Reading


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


DAMAGE = {
    "cut off": lambda text: text[: len(text) // 2],
    "a list": lambda text: "[1, 2]",
    "no text": lambda text: "",
    "another format": lambda text: text.replace('"format": 1', '"format": 2'),
    "another kind": lambda text: text.replace('"kind": "train"', '"kind": "test"'),
    "no model": lambda text: text.replace('"model"', '"mode"'),
    "no loss": lambda text: text.replace('"loss"', '"los"'),
    "a shorter column": lambda text: text.replace('"accuracy": [', '"accuracy": [0.1, '),
    "text for numbers": lambda text: text.replace('"loss": [', '"loss": ["high", '),
    "columns that are no lists": lambda text: text.replace('"samples": [', '"samples": 7, "x": ['),
    "no clock": lambda text: text.replace('"clock": {', '"clock": null, "x": {'),
    "deep": lambda text: "[" * 100_000,
}


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


@pytest.mark.parametrize("comma", [",", ", "])
@given(st.lists(st.floats() | st.integers(-10**20, 10**20) | st.none(), min_size=1, max_size=9))
@settings(deadline=None, max_examples=30)
def test_long_columns_are_read_to_the_last_bit(comma, values):
    column = [None if value is None or not math.isfinite(value) else value for value in values]
    text = json.dumps({"a]": [[{"b": column * 2001}]], "c": ["[1, 2]", "x" * 3000, "["], "d": column}, separators=(comma, ":"))
    read = _read(text.encode())
    assert np.array_equal(read["a]"][0][0]["b"], np.array(column * 2001, dtype=np.float64), equal_nan=True)
    assert (read["c"], read["d"]) == (json.loads(text)["c"], column)


@pytest.mark.parametrize("damage", [None, '"loss": [', "[", "null", "1.5"])
def test_a_long_file_is_read_as_a_short_one_is(tmp_path, monkeypatch, damage):
    make_run(tmp_path, rows=2000, by_stage=False)
    path = tmp_path / "tiny_train_stats.json"
    edit(path, lambda content: content["columns"].update(accuracy=[None, *[0.25] * 1999], something_new=[1.5] * 2000))
    if damage:
        text = path.read_text()
        path.write_text(text.replace(damage, damage + ",", 1) if damage in text else text)
    answers = []
    for limit in (10**9, 1000):
        monkeypatch.setattr("lmplay.plotstats.long_json._LONG_FILE", limit)
        curves, faults = read_folder(tmp_path)
        answers.append(([{name: values.tolist() for name, values in curve.columns.items()} for curve in curves], faults))
    assert str(answers[0]) == str(answers[1])  # NaN is not equal to itself
    assert bool(answers[0][1]) == bool(damage)


def test_what_is_whole_beside_a_damaged_file_is_drawn(tmp_path, capsys):
    make_run(tmp_path, rows=4, by_stage=False)
    path = tmp_path / "tiny_train_stats.json"
    path.write_text(DAMAGE["cut off"](path.read_text()))
    code, _, complaints = plot(capsys, tmp_path, "--x", "samples")
    assert code == 2
    assert complaints.startswith(f"lmp_plotstats: statistics {path}")
    assert pictures(tmp_path) == {"tiny_validate_stats.png"}


def test_two_files_of_the_same_curve_are_both_named(tmp_path, capsys):
    make_run(tmp_path, rows=4, by_stage=False)
    (tmp_path / "z_copy_train_stats.json").write_text((tmp_path / "tiny_train_stats.json").read_text())
    code, _, complaints = plot(capsys, tmp_path, "--x", "samples")
    assert code == 2
    assert "z_copy_train_stats.json" in complaints
    assert "tiny_train_stats.json" in complaints
    assert "tiny_train_stats.png" in pictures(tmp_path)


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


# Pictures


def test_a_picture_says_what_it_shows(tmp_path):
    make_run(tmp_path, floor=1.02, resumes=(1000,))
    train, validation = curves_of(tmp_path) + curves_of(tmp_path, "validate")
    figure = draw_curve(train, validation, ["samples", "tokens", "seconds"], None)
    words = words_in(figure)
    assert "tiny\nexperiment gpt2ish_tiny · training" in words
    for label in ("samples", "tokens", "training time (minutes)", "word accuracy", "training", "validation", "pale: before smoothing", "resumed"):
        assert words.count(label) == 1, label
    assert any(word.startswith("loss (nats per token)") for word in words)
    assert words.count("short") == words.count("long") == 3
    assert words.count("floor 1.02") == 3  # once for both stages
    assert len(figure.axes) == 6


def test_a_far_floor_does_not_flatten_the_curve(tmp_path):
    make_run(tmp_path, floor=0.01)
    figure = draw_curve(curves_of(tmp_path)[0], None, ["samples"], None)
    assert "floor 0.01 ↓" in words_in(figure)
    assert figure.axes[0].get_ylim()[0] > 0.5


def test_a_running_run_and_a_stage_say_so(tmp_path):
    make_run(tmp_path, stop=3000)
    curves, _ = read_folder(tmp_path)
    figures = {curve.stage: words_in(draw_curve(curve, None, ["samples"], None)) for curve in curves if curve.kind == "train"}
    assert "tiny\nexperiment gpt2ish_tiny · training · not finished" in figures[None]
    assert "tiny\nexperiment gpt2ish_tiny · training · stage long · not finished" in figures["long"]
    assert "tiny\nexperiment gpt2ish_tiny · training · stage short" in figures["short"]


def test_the_first_losses_and_a_rare_spike_do_not_rule_the_axis(tmp_path):
    make_run(tmp_path, rows=400)
    edit(tmp_path / "tiny_train_stats.json", lambda content: content["columns"]["loss"].__setitem__(300, 1e6))
    low, high = draw_curve(curves_of(tmp_path)[0], None, ["samples"], None).axes[0].get_ylim()
    assert 1.0 < low < 2.0
    assert 3.0 < high < 10.0


@pytest.mark.parametrize("stages", [2, 12, 60])
def test_no_written_words_overlap(tmp_path, stages):
    make_run(tmp_path, stages=[(f"stage_number_{index}" + "_with_a_long_name" * (index % 2), 1000 + 300 * (index % 4), 50 + index) for index in range(stages)],
             rows=200, floor=1.0)
    path = tmp_path / "tiny_train_stats.json"

    def change(content):
        for index, stage in enumerate(content["stages"]):
            stage["floor_nats_per_token"] = 1 + index / 100

    edit(path, change)
    figure = draw_curve(read_curve(path), None, ["samples", "tokens", "seconds"], None)
    figure.draw_without_rendering()
    for axes in figure.axes:
        for is_name in (True, False):
            boxes = [text.get_window_extent() for text in axes.texts if text.get_text().startswith("stage") == is_name]
            assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    names = [text for text in figure.axes[0].texts if text.get_text().startswith("stage")]
    assert len(names) == stages if stages <= 12 else len(names) >= 20
    assert figure.axes[0].bbox.height > 300  # the names have their own room
    title = figure.get_suptitle()
    top = next(text for text in figure.texts if text.get_text() == title).get_window_extent()
    assert not any(text.get_window_extent().overlaps(top) for text in names)


def test_the_legend_is_outside_and_inside_the_picture(tmp_path):
    for index in range(9):
        make_run(tmp_path, model=f"a_model_with_a_long_name_{index}", experiment=f"experiment_{index % 2}", rows=10)
    for x_names in (["samples"], ["samples", "tokens", "seconds"]):
        figure = draw_together(curves_of(tmp_path), x_names, None)
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(axes.get_tightbbox()) for axes in figure.axes)
        assert len(figure.legends[0].texts) == 9


def test_names_are_no_formulas(tmp_path):
    make_run(tmp_path, model="_a $x^2$ {b", experiment=r"$\broken$", stages=[("$y$", 100, 10), ("z", 100, 10)], rows=30)
    make_run(tmp_path, model="other", rows=30)
    curves = curves_of(tmp_path)
    for index, figure in enumerate([draw_curve(curves[0], None, ["samples"], None), draw_together(curves, ["samples"], None),
                                    draw_differences(curves, ["samples"], None)]):
        save(figure, tmp_path / f"{index}.png")
        assert picture_size(tmp_path / f"{index}.png")


def test_stages_are_shaded_for_all_together_only_where_they_are_the_same(tmp_path):
    make_run(tmp_path, model="whole")
    make_run(tmp_path, model="shorter", stop=3000, rate=500.0)
    figure = draw_together(curves_of(tmp_path), ["samples", "seconds"], None)
    names = [[text.get_text() for text in axes.texts] for axes in figure.axes[:2]]
    assert names == [["short", "long"], []]


def test_differences_are_to_the_longest_run_on_each_axis(tmp_path):
    make_run(tmp_path, model="many_samples", level=2.0, rate=10_000.0)
    make_run(tmp_path, model="much_time", stop=3000, level=2.5, rate=100.0)
    make_run(tmp_path, model="third", stop=2500, level=3.0)
    figure = draw_differences(curves_of(tmp_path), ["samples", "seconds"], 0)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["below zero = better than many_samples", "below zero = better than much_time",
                      "above zero = better than many_samples", "above zero = better than much_time"]
    ends = [line.get_ydata()[-1] for line in figure.axes[0].lines[1:]]
    assert ends == pytest.approx([0.0, 0.5, 1.0], abs=0.3)
    assert figure.axes[0].lines[0].get_ydata() == pytest.approx([0.0, 0.0])  # the zero line


def test_equal_runs_differ_by_nothing(tmp_path):
    for model in ("a", "b"):
        make_run(tmp_path, model=model)
    low, high = draw_differences(curves_of(tmp_path), ["tokens"], None).axes[0].get_ylim()
    assert -0.1 < low < -0.005
    assert 0.005 < high < 0.1


def test_the_raw_curve_is_behind_the_smoothed_one_and_zero_turns_smoothing_off(tmp_path):
    make_run(tmp_path)
    curve = curves_of(tmp_path)[0]
    raw, front = [line for line in draw_curve(curve, None, ["samples"], 9).axes[0].lines if len(line.get_xdata()) == 80]
    assert raw.get_zorder() < front.get_zorder()
    assert raw.get_ydata().tolist() == curve.columns["loss"].tolist()
    assert front.get_ydata() == pytest.approx(curve.smoothed("samples", "loss", 9)[1])
    assert np.abs(np.diff(front.get_ydata())).sum() < np.abs(np.diff(raw.get_ydata())).sum()
    only = [line for line in draw_curve(curve, None, ["samples"], 0).axes[0].lines if len(line.get_xdata()) == 80]
    assert [line.get_ydata().tolist() for line in only] == [curve.columns["loss"].tolist()]


def test_differences_to_a_baseline(tmp_path):
    for model, level in (("a_long_one", 2.0), ("base", 2.5), ("third", 3.0)):
        make_run(tmp_path, model=model, level=level, stop=2500 if model == "base" else None)
    figure = draw_differences(curves_of(tmp_path), ["samples"], 0, "base")
    assert figure.axes[0].get_title() == "below zero = better than base"
    assert "Training of 3 models, each minus base" in words_in(figure)
    _, *lines = figure.axes[0].lines
    assert [line.get_ydata()[-1] for line in lines] == pytest.approx([-0.5, 0.0, 0.5], abs=0.3)
    assert max(line.get_xdata().max() for line in lines) == 2500


def test_only_what_is_compared_of_the_longest_run_is_drawn(tmp_path):
    make_run(tmp_path, model="long")
    make_run(tmp_path, model="short", stop=400)
    axes = draw_differences(curves_of(tmp_path), ["tokens"], 0).axes[0]
    assert axes.get_xlim()[1] < 1.1 * 400 * 75


@pytest.mark.parametrize(("bytes_of_token", "rows"), [(4.0, 2), (4.04, 2), (2.0, 3)])
def test_where_tokens_differ_bits_per_byte_are_compared_and_the_title_warns(tmp_path, capsys, unpainted, bytes_of_token, rows):
    for model, length in (("a", 4.0), ("b", bytes_of_token)):
        make_run(tmp_path, model=model, by_stage=False)
        add_bits(tmp_path, model, length)
    assert plot(capsys, tmp_path, "--x", "samples")[0] == 0
    compared = [(panels, title) for panels, title in unpainted if "models" in title[0]]
    assert [len(panels) for panels, _ in compared] == [2, 2, rows, rows]  # training says nothing of bytes
    assert {panels[0].figure.name for panels, _ in compared[2:]} == {"bits_per_byte" if rows == 3 else "loss"}
    assert all(len(title) == rows - 1 for _, title in compared)


@pytest.mark.parametrize("name", THEMES)
def test_all_words_can_be_read_on_their_ground(tmp_path, name):
    from matplotlib.text import Text

    make_run(tmp_path, floor=1.02, resumes=(1000,))
    figure = draw_curve(curves_of(tmp_path)[0], None, ["samples", "tokens"], None, THEMES[name])
    figure.draw_without_rendering()
    grounds = [figure.get_facecolor(), THEMES[name].shade]
    words = [text for text in figure.findobj(Text) if text.get_text()]
    assert len(words) > 20
    assert all(contrast(text.get_color(), ground) >= 4.5 for text in words for ground in grounds)
    lines = [line.get_color() for axes in figure.axes for line in axes.lines]
    assert all(contrast(color, figure.get_facecolor()) >= 2 for color in (*lines, *THEMES[name].curves))


def test_saves_and_batches_passed_over_are_marked(tmp_path):
    make_run(tmp_path, resumes=(1000,))
    path = tmp_path / "tiny_train_stats.json"

    def change(content, saves=5):
        content["clock"]["saves"] = [{"samples": 500 / saves * i, "tokens": 0, "seconds": 0} for i in range(1, saves + 1)]
        content["columns"]["skipped_batches"] = [int(i in (3, 9)) for i in range(80)]

    edit(path, change)
    figure = draw_curve(read_curve(path), None, ["samples"], None)
    assert {"saved", "resumed", "batch skipped"} <= set(words_in(figure))
    marks = {line.get_marker(): line.get_xdata().tolist() for line in figure.axes[0].lines if line.get_marker() in ("|", "^", "x")}
    assert marks == {"|": [100, 200, 300, 400, 500], "^": [1000], "x": [200, 500]}
    edit(path, lambda content: change(content, 100))
    assert "saved" not in words_in(draw_curve(read_curve(path), None, ["samples"], None))  # a band says nothing


# The door


def test_pictures_of_other_kinds(tmp_path, capsys):
    make_run(tmp_path, rows=4, by_stage=False)
    (tmp_path / "tiny_validate_stats.json").unlink()
    code, output, _ = plot(capsys, tmp_path, "--x", "samples", "--format", "svg,pdf", "--theme", "dark")
    assert code == 0
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".json"}
    assert set(files) == {"tiny_train_stats.svg", "tiny_train_stats.pdf"}
    assert all(name in output for name in files)
    assert files["tiny_train_stats.svg"].startswith(b"<?xml")
    assert b"#14161a" in files["tiny_train_stats.svg"]
    assert files["tiny_train_stats.pdf"].startswith(b"%PDF")


def test_settings_that_differ_and_the_table_for_programs(tmp_path, capsys, unpainted):
    for index, model in enumerate(["one", "two", "bare"]):
        make_run(tmp_path, model=model, rows=8, stop=2000 + 500 * index, by_stage=False)
    for model, rate in (("one", 0.1), ("two", 0.2)):
        (tmp_path / f"{model}_settings.json").write_text(json.dumps({
            "lr": rate, "seed": 0, "model": f"out/{model}.lmp", "model_args": {"embed_dim": 8 + len(model)}, "given": [model],
            "plan": {"stages": [{"name": "a", "samples": 5, "dataset": [{"path": f"{model}.txt"}]}, {"name": "b", "tokens": 7}][:1 + (model == "two")]}}))
    (tmp_path / "bare_settings.json").write_text("{")
    code, output, _ = plot(capsys, tmp_path, "--json")
    assert code == 0
    runs = {run["model"]: run for run in json.loads(output)}
    assert pictures(tmp_path) == set()
    assert runs["one"]["settings"] == {"lr": 0.1, "a.dataset": [{"path": "one.txt"}], "b.tokens": None}
    assert runs["two"]["settings"] == {"lr": 0.2, "a.dataset": [{"path": "two.txt"}], "b.tokens": 7}
    assert set(runs["bare"]["settings"].values()) == {None}
    train = read_curve(tmp_path / "two_train_stats.json")
    assert (runs["two"]["samples"], runs["two"]["train_loss"]) == (train.last("samples"), train.last("loss"))
    assert runs["two"]["tokens_per_second"] == pytest.approx(1000.0)
    assert [runs[model]["running"] for model in ("one", "two", "bare")] == [False, True, True]
    _, output, _ = plot(capsys, tmp_path, "--x", "samples", "--models", "one", "two")
    assert ["lr", "0.1", "0.2"] in [line.split() for line in output.splitlines()]
    assert "seed" not in output


def test_a_baseline_that_is_not_there_is_named_with_those_that_are(tmp_path, capsys, unpainted):
    for model in ("first_run", "second_run"):
        make_run(tmp_path, model=model, rows=4, by_stage=False)
    code, _, complaints = plot(capsys, tmp_path, "--baseline", "first_rum")
    assert code == 2
    assert len(complaints.splitlines()) == 1
    assert "--baseline first_rum: not in" in complaints
    assert "first_run, second_run" in complaints
    assert "Did you mean 'first_run'?" in complaints
    code, output, _ = plot(capsys, tmp_path, "--x", "samples", "--models", "second_run", "--baseline", "first_run")
    assert code == 0
    assert "all_train_diff.png" in output  # the baseline is one of those that are drawn
    (tmp_path / "first_run_validate_stats.json").unlink()
    make_run(tmp_path, model="third", rows=4, by_stage=False)
    _, output, _ = plot(capsys, tmp_path, "--x", "samples", "--baseline", "first_run")
    assert "all_validate_diff: first_run has no validate statistics of a whole run; each is minus the longest run" in output


class Enough(Exception):
    """Ends a watch."""


def test_watching_draws_what_has_changed_and_says_each_fault_once(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "later"
    one, two = folder / "one_train_stats.json", folder / "two_train_stats.json"
    drawn = []

    def draw(changed):
        if not folder.is_dir():
            raise UserError("no such folder")
        drawn.append(changed)
        return ["one is damaged"] if "{" not in one.read_text() else []

    def replace(path, text):
        path.with_suffix(".tmp").write_text(text)
        os.replace(path.with_suffix(".tmp"), path)

    events = iter([lambda: None, lambda: (folder.mkdir(), replace(one, "{")), lambda: None, lambda: replace(two, "{"), lambda: replace(one, "{}"),
                   lambda: replace(one, "x"), lambda: replace(two, "x"), lambda: replace(one, "{"), two.unlink])

    def sleep(seconds):
        assert seconds == 7
        event = next(events, None)
        if event is None:
            raise Enough
        event()

    monkeypatch.setattr("lmplay.plotstats.watch.time.sleep", sleep)
    with pytest.raises(Enough):
        watch(folder, 7, draw)
    assert drawn == [None, None, {one}, {one}, {two}, {one}, None]
    complaints = capsys.readouterr().err.splitlines()
    assert complaints == ["lmp_plotstats: no such folder", "lmp_plotstats: one is damaged"]


def test_a_watch_draws_again_and_ends_with_ctrl_c(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "lmplay.plotstats", "--out-dir", str(tmp_path), "--x", "samples", "--watch", "0.05"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for stop in (1000, 2000):
            make_run(tmp_path / "", rows=8, stop=stop, by_stage=False)
            for line in process.stdout:
                if "2k" in line or (stop == 1000 and "1k" in line):
                    break
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in complaints
    assert pictures(tmp_path) == {"tiny_train_stats.png", "tiny_validate_stats.png"}
    assert not [path for path in tmp_path.iterdir() if path.suffix not in (".json", ".png")]


def test_one_run(tmp_path, capsys, monkeypatch):
    make_run(tmp_path, floor=1.02, resumes=(1000, 3000))
    drawn = []
    monkeypatch.setattr("lmplay.plotstats.plot.draw_curve", lambda *arguments: drawn.append(arguments) or draw_curve(*arguments))
    code, output, complaints = plot(capsys, tmp_path, "--x", "samples", "seconds")
    assert (code, complaints) == (0, "")
    assert [(curve.kind, curve.stage, other and (other.kind, other.stage)) for curve, other, *_ in drawn] == [
        *(("train", stage, ("validate", stage)) for stage in (None, "long", "short")), *(("validate", stage, None) for stage in (None, "long", "short"))]
    expected = {path.with_suffix(".png").name for path in tmp_path.glob("*.json")}
    assert len(expected) == 6
    assert pictures(tmp_path) == expected
    for name in expected:
        width, height = picture_size(tmp_path / name)
        assert 1000 < width < 3000
        assert 500 < height < 2000
        assert str(tmp_path / name) in output.splitlines()
    assert "no all_train, no all_train_diff: they compare models, and only tiny has train statistics" in output
    validation = read_curve(tmp_path / "tiny_validate_stats.json")
    table = [line.split() for line in output.splitlines()[-2:]]
    assert table[0] == [
        "model", "experiment", "samples", "tokens", "time", "tokens/s", "train", "loss", "validation", "best", "loss", "bits/byte", "best", "bits"]
    loss = read_curve(tmp_path / "tiny_train_stats.json").columns["loss"][-1]
    assert table[1] == ["tiny", "gpt2ish_tiny", "4k", "410k", "6m", "50s", "1k", f"{loss:.4f}", f"{validation.columns['loss'][-1]:.4f}",
                        *(f"{value:.4f}" for value in (validation.columns["loss"].min(), validation.columns["loss"][-1] / 2,
                                                     validation.columns["loss"].min() / 2))]
    assert not [path for path in tmp_path.iterdir() if path.suffix not in (".json", ".png")]


def test_three_runs_and_a_choice_of_them(tmp_path, capsys, unpainted):
    for index, model in enumerate(["one", "two", "three"]):
        make_run(tmp_path, model=model, stop=2000 + 700 * index, rows=30, by_stage=False)
    code, output, _ = plot(capsys, tmp_path, "--x", "tokens")
    assert code == 0
    together = {"all_train.png", "all_train_diff.png", "all_validate.png", "all_validate_diff.png"}
    assert pictures(tmp_path) == {path.with_suffix(".png").name for path in tmp_path.glob("*.json")} | together
    assert [line.split()[0] for line in output.splitlines()[-3:]] == ["one", "three", "two"]
    for path in tmp_path.glob("*.png"):
        path.unlink()
    code, output, _ = plot(capsys, tmp_path, "--x", "seconds", "--models", "two", "--smooth", "0.2")
    assert code == 0
    assert pictures(tmp_path) == {"two_train_stats.png", "two_validate_stats.png"}
    assert [line.split()[0] for line in output.splitlines()[-2:]] == ["model", "two"]


@pytest.mark.parametrize("rows", [0, 1])
def test_hardly_anything_recorded(tmp_path, capsys, rows):
    for model in ("a", "b"):
        make_run(tmp_path, model=model, rows=40, stop=100 * rows, resumes=(100,), floor=1.0, by_stage=False)
    code, output, complaints = plot(capsys, tmp_path, "--x", ["tokens", "seconds"][rows])
    assert (code, complaints) == (0, "")
    assert len(pictures(tmp_path)) == 8
    if not rows:
        assert output.splitlines()[-1].split() == ["b", "gpt2ish_tiny", *["-"] * 9]
        assert "nothing recorded yet" in words_in(draw_curve(curves_of(tmp_path)[0], None, ["tokens"], None))


def test_no_stage_begun(tmp_path, capsys):
    make_run(tmp_path, rows=0, by_stage=False)
    for path in tmp_path.glob("*.json"):
        edit(path, lambda content: (content.update(stages=[]), content["clock"].update(stages=[])))
    assert plot(capsys, tmp_path, "--x", "seconds")[0] == 0


def add_sources(path, names):
    """Give a file losses of sources: the whole loss, each a little higher than the one before."""
    def change(content):
        losses = content["columns"]["loss"]
        content["sources"] = {name: {"samples": 10, "tokens": 1000 - index, "epochs": None, "train_loss": 1.0, "validate_loss": None,
                                     "columns": {"loss": [None, *(value + index / 10 for value in losses[1:])]}} for index, name in enumerate(names)}

    edit(path, change)


def test_the_losses_of_sources_have_panels_of_their_own(tmp_path, capsys):
    make_run(tmp_path, stages=STAGES[:1], rows=40)
    names = ["b.jsonl", "$a$_long/" + "x" * 60]
    for kind in ("train", "validate"):
        add_sources(tmp_path / f"tiny_step_short_{kind}_stats.json", names)
    curve, validation = (read_curve(tmp_path / f"tiny_step_short_{kind}_stats.json") for kind in ("train", "validate"))
    figure = draw_curve(curve, validation, ["samples", "tokens"], 0)
    panels = [axes for axes in figure.axes if "by source" in axes.get_ylabel()]
    assert len(figure.axes) == 6
    assert panels == [figure.axes[4]]
    lines = {(line.get_color(), line.get_linestyle()): line for line in panels[0].lines}
    assert len(lines) == 4
    by_hand = sorted(lines.values(), key=lambda line: (len(line.get_xdata()), line.get_ydata()[-1]))
    assert len(by_hand[-1].get_xdata()) == len(by_hand[-2].get_xdata()) == 39  # the first value is unknown
    assert by_hand[-1].get_ydata()[-1] == pytest.approx(by_hand[-2].get_ydata()[-1] + 0.1)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"b.jsonl, training", "b.jsonl, validation"} <= set(labels)
    assert len(labels) == len(set(labels)) == 6
    assert plot(capsys, tmp_path, "--x", "seconds", "--models", "tiny")[0] == 0


def test_of_many_sources_those_with_most_tokens_are_drawn_and_can_be_told_apart(tmp_path):
    make_run(tmp_path, stages=STAGES[:1])
    path = tmp_path / "tiny_step_short_train_stats.json"
    add_sources(path, [f"s{number}.jsonl" for number in range(14)])
    figure = draw_curve(read_curve(path), None, ["samples"], 0)
    [panel] = [axes for axes in figure.axes if "10 largest of 14 sources" in axes.get_ylabel()]
    assert len({(line.get_color(), line.get_linestyle()) for line in panel.lines}) == len(panel.lines) == 10
    labels = " ".join(words_in(figure))
    assert "s9.jsonl" in labels
    assert "s10.jsonl" not in labels


def test_accuracy_that_was_never_measured_has_no_panel(tmp_path):
    make_run(tmp_path)
    path = tmp_path / "tiny_train_stats.json"
    edit(path, lambda content: content["columns"].update(accuracy=[None] * 80))
    assert len(draw_curve(read_curve(path), None, ["samples", "tokens"], None).axes) == 2


def test_refusals(tmp_path, capsys):
    assert plot(capsys, tmp_path / "nowhere")[::2] == (
        2, f"lmp_plotstats: --out-dir {tmp_path / 'nowhere'}: no such folder; give the one that lmp_trainer writes its *_stats.json files into.\n")
    code, _, complaints = plot(capsys, tmp_path)
    assert code == 2
    assert "no statistics" in complaints
    make_run(tmp_path, model="gpt2ish_tiny_model", rows=4)
    code, _, complaints = plot(capsys, tmp_path, "--models", "gpt2ish_tiny_modle", "gpt2ish_tiny_model", "zzz")
    assert code == 2
    first, second = complaints.splitlines()
    assert "gpt2ish_tiny_modle" in first
    assert "Did you mean 'gpt2ish_tiny_model'?" in first
    assert "zzz" in second
    assert pictures(tmp_path) == set()


@pytest.mark.parametrize(("arguments", "words"), [
    (["--smooth", "-1"], "--smooth: '-1'"), (["--smooth", "nan"], "'nan'"), (["--smooth", "much"], "'much'"), (["--x", "steps"], "'steps'"),
    (["--watc"], "--watc"), (["--smoo", "3"], "--smoo"), (["--watch", "0"], "'0'"), (["--watch", "often"], "'often'"), (["--format", "png,gif"], "'gif'"),
    (["--theme", "pink"], "'pink'"), (["--json", "--watch"], "--json and --watch"),
])
def test_wrong_flags_are_refused_in_one_line(tmp_path, capsys, arguments, words):
    code, _, complaints = plot(capsys, tmp_path, *arguments)
    assert code == 2
    assert words in complaints
    assert len(complaints.splitlines()) == 1


def test_a_picture_that_cannot_be_written_is_named(tmp_path, capsys):
    make_run(tmp_path, rows=4, by_stage=False)
    (tmp_path / "tiny_train_stats.png").mkdir()
    code, _, complaints = plot(capsys, tmp_path, "--x", "samples")
    assert code == 2
    assert str(tmp_path / "tiny_train_stats.png") in complaints
    with pytest.raises(UserError):
        save(draw_curve(curves_of(tmp_path)[0], None, ["samples"], None), tmp_path / "nowhere" / "x.png")


def test_it_is_quick_to_answer_and_needs_no_display_and_no_torch(tmp_path):
    """In a process of its own: where nothing has been imported, there is no display, and the folder is the usual one."""
    (tmp_path / "out_gpt").mkdir()
    make_run(tmp_path / "out_gpt", rows=4, by_stage=False)
    program = """import sys
from lmplay.plotstats.__main__ import main
try:
    main(["--help"])
except SystemExit:
    assert not {"numpy", "matplotlib", "torch"} & set(sys.modules)
assert main(["--x", "samples"]) == 0
assert main(["--out_dir=out_gpt", "--x", "samples"]) == 0
assert not {"matplotlib.pyplot", "torch"} & set(sys.modules)
"""
    environment = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "MPLBACKEND", "LMP_DATASETS")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(pictures(tmp_path / "out_gpt")) == 2


def test_a_shorter_run_over_the_same_texts_has_the_same_tokens(tmp_path):
    for model, rows in (("long", 80), ("short", 8)):
        make_run(tmp_path, model, rows=rows, by_stage=False)

    def lengthen(content, factor):
        columns = content["columns"]
        columns["bits_per_byte"] = [loss / factor / (2 if i < 2 else 2.3) for i, loss in enumerate(columns["loss"])]  # later texts have longer words

    for factor, same in ((1, True), (1.1, False)):
        edit(tmp_path / "long_validate_stats.json", lambda content: lengthen(content, 1))
        edit(tmp_path / "short_validate_stats.json", lambda content, factor=factor: lengthen(content, factor))
        assert same_tokens([curve for curve in read_folder(tmp_path)[0] if curve.kind == "validate"]) == same
