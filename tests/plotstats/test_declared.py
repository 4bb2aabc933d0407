"""Figures that an objective of another package has declared are drawn from their description in the statistics files."""
import json
import re

import pytest

from lmplay.plotstats.__main__ import main
from lmplay.plotstats.plot import draw_curve, draw_differences, draw_together
from lmplay.plotstats.runs import read_curve
from lmplay.stats.figures import NATS, REWARD, Figure, Progress, begin_entry
from lmplay.stats.totals import ModelStats
from lmplay.stats.writing import write_stats

FIGURES = (Figure("entropy", "entropy of $p$", "mean", "entropy_sum", "n_tokens", "nats per token", log=True),
           Figure("agreement", "agreement", "mean", "agreed", "pairs", "share", higher_is_better=True, chart=False),
           Figure("hidden", "hidden", "sum", panel=False))


def write_run(folder, name, figures=FIGURES, steps=30, stages=()):
    stats = ModelStats(figures)
    for i in range(1, steps + 1):
        place = Progress(i, 4 * i, 100 * i, 0.5 * i)
        own = {"entropy_sum": 500.0 / i, "agreed": i, "pairs": 40, "hidden": 1} if figures else {}
        stats.add_train(place, {"loss_sum": 300.0, "n_tokens": 100, "lr": 0.1, **own})
        if i % 10 == 0:
            stats.add_validation(place, {"loss_sum": 300.0, "n_tokens": 100, "nats_sum": 0.0, "nats_tokens": 0, **own})
    write_stats(folder, name, "e", None, stats, stages, [])


def curve_of(folder, name, kind="train"):
    return read_curve(folder / f"{name}_{kind}_stats.json")


def labels(picture):
    return [axes.get_ylabel() for axes in picture.axes]


def test_a_declared_figure_has_a_panel(tmp_path):
    write_run(tmp_path, "a")
    curve, validation = curve_of(tmp_path, "a"), curve_of(tmp_path, "a", "validate")
    assert curve.columns["entropy"].tolist() == [500.0 / i / 100 for i in range(1, 31)]
    assert [figure.name for figure in validation.declared] == ["entropy", "agreement", "hidden"]
    picture = draw_curve(curve, validation, ["samples"], 0)
    assert labels(picture) == ["loss (nats per token)", r"entropy of \$p\$ (nats per token), log scale", "agreement"]
    training, held_out = (line.get_ydata().tolist() for line in picture.axes[2].lines[-2:])
    assert training == [i / 40 for i in range(1, 31)]
    assert held_out == [0.25, 0.5, 0.75]
    assert [axes.yaxis.get_major_formatter()(0.5, 0) for axes in picture.axes[1:]] == ["0.5", "50%"]


@pytest.mark.parametrize(("units", "label"), [([NATS], "loss (nats per token)"), (["per pair"], "loss (per pair)"), ([NATS, "per pair"], "loss"),
                                              ([REWARD], "loss (in validation the reward with a minus sign)")])
def test_a_loss_has_the_unit_of_its_objective(tmp_path, units, label):
    write_run(tmp_path, "a", stages=[begin_entry(f"stage{i}", Progress(i, 4 * i, 100 * i, 0.5 * i), None, None, unit) for i, unit in enumerate(units)])
    curve, validation = curve_of(tmp_path, "a"), curve_of(tmp_path, "a", "validate")
    for picture in (draw_curve(curve, validation, ["samples"], 0), draw_together([curve], ["samples"], 0)):
        assert labels(picture)[0] == label


def test_runs_that_know_it_are_compared_and_others_have_no_line(tmp_path):
    write_run(tmp_path, "a")
    write_run(tmp_path, "b", steps=40)
    write_run(tmp_path, "plain", figures=())
    curves = [curve_of(tmp_path, name) for name in ("plain", "a", "b")]
    picture = draw_together(curves, ["tokens"], 0)
    assert [sum(len(line.get_xdata()) > 0 for line in axes.lines if line.get_marker() in ("", "None")) for axes in picture.axes] == [3, 2, 2]
    picture = draw_differences(curves[1:], ["tokens"], 0)
    assert labels(picture)[1:] == [r"difference in entropy of \$p\$ (nats per token)", "difference in agreement (points)"]
    assert [axes.get_title() for axes in picture.axes] == ["below zero = better than b", "zero = b", "above zero = better than b"]


def test_a_declared_figure_has_a_chart(tmp_path):
    pytest.importorskip("plotly")
    write_run(tmp_path, "a")
    write_run(tmp_path, "plain", figures=())
    assert main(["--out-dir", str(tmp_path), "--html", str(tmp_path / "r.html")]) == 0
    charts = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', (tmp_path / "r.html").read_text(), re.DOTALL)[1])["charts"]
    found = {chart["title"]: chart for chart in charts if chart["column"] not in ("loss", "lr")}
    assert list(found) == ["Validation entropy of $p$ (nats per token)", "Training entropy of $p$ (nats per token)", "Validation hidden", "Training hidden"]
    chart = found["Training entropy of $p$ (nats per token)"]
    assert (chart["log"], chart["percent"], chart["better"], [line["run"] for line in chart["lines"]]) == (True, False, "", ["a"])
    assert chart["lines"][0]["raw"]["y"][:2] == [5.0, 2.5]


@pytest.mark.parametrize("damage", ['"figures":7,"x":{', '"figures":{"entropy":7},"x":{', '"figures":{"entropy":{}},"x":{', '"figures":{"nowhere":{'])
def test_a_damaged_description_is_named(tmp_path, capsys, damage):
    write_run(tmp_path, "a")
    path = tmp_path / "a_train_stats.json"
    path.write_text(path.read_text().replace('"figures":{"entropy":{' if "nowhere" in damage else '"figures":{', damage))
    assert main(["--out-dir", str(tmp_path), "--json"]) == 2
    assert capsys.readouterr().err.startswith(f"lmp_plotstats: statistics {path}: damaged")
