"""Named sets: in the table, the pictures, the report, and in comparisons."""
import json

import pytest
from curves import curves_of, edit, make_run, plot, words_in

from lmplay.plotstats.plot import draw_curve, draw_differences, draw_together


def add_set(folder, model, name, level=1.0, newest=None):
    """Give a run the evaluations of a set, at every fourth of its validations."""
    def change(content):
        columns = {key: values[::4] for key, values in content["columns"].items() if key != "something_new"}
        columns["loss"] = [value * level for value in columns["loss"]]
        content.setdefault("sets", {})[name] = {"columns": columns}
        content["clock"].setdefault("sets", {})[name] = content["clock"]["seconds"][::4]
        content.setdefault("judged", {})[name] = {
            "samples": newest or content["columns"]["samples"][-1], "n_samples": 3, "n_tokens": 30, "n_bytes": 90, "loss": 2.0 * level, "standard_error": None,
            "perplexity": 1234.5, "bits_per_byte": 0.75, "accuracy": 0.5, "edit_accuracy": 0.25, "identity": [1, 2, 3],
            "loss_sum": [20.0 * level, 19.0 * level, 21.0 * level], "tokens": [10] * 3, "bytes": [30] * 3}

    edit(folder / f"{model}_validate_stats.json", change)


@pytest.fixture
def runs(tmp_path):
    for model, level in (("a", 1.0), ("b", 0.9)):
        make_run(tmp_path, model=model, by_stage=False)
        add_set(tmp_path, model, "wiki_test", level)
        (tmp_path / f"{model}_settings.json").write_text(json.dumps({"lr": level, "stages": {"one": {"evaluate": {model: {}}}}}))
    add_set(tmp_path, "a", "old", newest=40)
    add_set(tmp_path, "a", "held_out")
    return tmp_path


def test_the_table_has_the_newest_figures_of_each_named_set(runs, capsys):
    code, said, _ = plot(capsys, runs, "--json")
    [one, other] = json.loads(said)
    assert code == 0
    assert (one["sets"]["wiki_test"]["perplexity"], one["sets"]["old"]["samples"], other["sets"]["wiki_test"]["loss"]) == (1234.5, 40, 1.8)
    assert "identity" not in one["sets"]["old"]
    [found] = other["comparisons"]
    assert (found["set"], found["samples"], found["difference"]) == ("wiki_test", 3, pytest.approx(-0.2))


def test_the_text_has_them_too_but_for_all_held_out_samples(runs, capsys, unpainted):
    code, said, _ = plot(capsys, runs)
    assert code == 0
    table = said[said.index("at samples"):].split("\n\n")[0].splitlines()
    assert [line.split()[:3] for line in table[1:]] == [["a", "wiki_test", "4,000.0"], ["a", "old", "40"], ["b", "wiki_test", "4,000.0"]]
    assert table[1].split()[3:] == ["3", "30", "2.0000", "-", "1,234.50", "0.7500", "50.0%"]
    assert "b against a, 3 samples of wiki_test: 1.8000 and 2.0000 nats per token" in said


def test_the_pictures_have_a_row_of_panels(runs):
    curves = curves_of(runs, "validate")
    alone = draw_curve(curves[0], None, ["samples", "seconds"], 0)
    assert {"wiki_test", "old"} <= {*words_in(alone)}
    assert "held_out" not in words_in(alone)
    expected = curves[0].sets["wiki_test"].columns["loss"].tolist()
    drawn = [line.get_ydata().tolist() for axes in alone.axes[-2:] for line in axes.lines]
    assert expected in drawn
    for picture in (draw_together(curves, ["samples"], 0), draw_differences(curves, ["samples"], 0)):
        assert any("of wiki_test" in text for text in words_in(picture))
        assert not any("of old" in text for text in words_in(picture))  # which one of them lacks


def test_a_set_is_drawn_over_the_ends_of_stages(runs):
    [curve, _] = curves_of(runs, "validate")
    assert curve.borders("loss")
    assert curve.sets["wiki_test"].borders("loss") == []


def test_the_report_has_sets_charts_and_the_comparison(runs, capsys):
    pytest.importorskip("plotly")
    assert plot(capsys, runs, "--html", str(runs / "r.html"))[0] == 0
    text = (runs / "r.html").read_text()
    assert "<h2>Named sets</h2>" in text
    assert "1,234.50" in text
    comparison = text.split("<h2>Comparison</h2>")[1].split("</section>")[0]
    assert "b is better" in comparison
    assert "<td>-0.2000</td>" in comparison
    assert "Loss on wiki_test (nats per token)" in text
    assert plot(capsys, runs, "--models", "a", "--html", str(runs / "one.html"))[0] == 0
    assert "<h2>Comparison</h2>" not in (runs / "one.html").read_text()


def test_runs_that_differ_in_named_sets_alone_are_one_idea(runs, capsys):
    for seed, model in enumerate("ab"):
        edit(runs / f"{model}_settings.json", lambda settings, seed=seed: settings.update(lr=1.0, seed=seed))
    [one, other] = json.loads(plot(capsys, runs, "--json")[1])
    assert one["group"] == other["group"]
    assert one["group"]["n"] == 2
