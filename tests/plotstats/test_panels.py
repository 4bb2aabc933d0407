"""Panels: their axes, and words that never overlap."""
import itertools

import numpy as np
import pytest
from curves import curves_of, edit, make_run, picture_size, words_in

from lmplay.plotstats.plot import draw_curve, draw_differences, draw_together, save
from lmplay.plotstats.runs import read_curve


def test_a_far_floor_does_not_flatten_the_curve(tmp_path):
    make_run(tmp_path, floor=0.01)
    figure = draw_curve(curves_of(tmp_path)[0], None, ["samples"], None)
    assert "floor 0.01 ↓" in words_in(figure)
    assert figure.axes[0].get_ylim()[0] > 0.5


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
