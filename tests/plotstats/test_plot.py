"""Pictures: which panels and curves they have."""

import pytest
from curves import STAGES, add_bits, add_sources, curves_of, edit, make_run, pictures, plot, words_in

from lmplay.plotstats.plot import draw_curve, draw_differences, draw_together, same_tokens
from lmplay.plotstats.runs import read_curve, read_folder


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


def test_a_running_run_and_a_stage_say_so(tmp_path):
    make_run(tmp_path, stop=3000)
    curves, _ = read_folder(tmp_path)
    figures = {curve.stage: words_in(draw_curve(curve, None, ["samples"], None)) for curve in curves if curve.kind == "train"}
    assert "tiny\nexperiment gpt2ish_tiny · training · not finished" in figures[None]
    assert "tiny\nexperiment gpt2ish_tiny · training · stage long · not finished" in figures["long"]
    assert "tiny\nexperiment gpt2ish_tiny · training · stage short" in figures["short"]


def test_stages_are_shaded_for_all_together_only_where_they_are_the_same(tmp_path):
    make_run(tmp_path, model="whole")
    make_run(tmp_path, model="shorter", stop=3000, rate=500.0)
    figure = draw_together(curves_of(tmp_path), ["samples", "seconds"], None)
    names = [[text.get_text() for text in axes.texts] for axes in figure.axes[:2]]
    assert names == [["short", "long"], []]


def test_differences_are_to_the_run_with_most_samples_in_all_panels(tmp_path):
    make_run(tmp_path, model="many_samples", level=2.0, rate=10_000.0)
    make_run(tmp_path, model="much_time", stop=3000, level=2.5, rate=100.0)
    make_run(tmp_path, model="third", stop=2500, level=3.0)
    figure = draw_differences(curves_of(tmp_path), ["samples", "seconds"], 0)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["below zero = better than many_samples"] * 2 + ["above zero = better than many_samples"] * 2
    ends = [line.get_ydata()[-1] for line in figure.axes[0].lines[1:]]
    assert ends == pytest.approx([0.0, 0.5, 1.0], abs=0.3)
    assert figure.axes[0].lines[0].get_ydata() == pytest.approx([0.0, 0.0])  # the zero line


def test_equal_runs_differ_by_nothing(tmp_path):
    for model in ("a", "b"):
        make_run(tmp_path, model=model)
    low, high = draw_differences(curves_of(tmp_path), ["tokens"], None).axes[0].get_ylim()
    assert -0.1 < low < -0.005
    assert 0.005 < high < 0.1


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


def test_saves_and_skipped_batches_are_marked(tmp_path):
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


@pytest.mark.parametrize("rows", [0, 1])
def test_hardly_anything_recorded(tmp_path, capsys, rows):
    for model in ("a", "b"):
        make_run(tmp_path, model=model, rows=40, stop=100 * rows, resumes=(100,), floor=1.0, by_stage=False)
    code, output, complaints = plot(capsys, tmp_path, "--x", ["tokens", "seconds"][rows])
    assert (code, complaints) == (0, "")
    assert len(pictures(tmp_path)) == 8
    if not rows:
        assert output.splitlines()[-1].split() == ["b", "gpt2ish_tiny", *["-"] * 12]
        assert "nothing recorded yet" in words_in(draw_curve(curves_of(tmp_path)[0], None, ["tokens"], None))


def test_no_stage_begun(tmp_path, capsys):
    make_run(tmp_path, rows=0, by_stage=False)
    for path in tmp_path.glob("*.json"):
        edit(path, lambda content: (content.update(stages=[]), content["clock"].update(stages=[])))
    assert plot(capsys, tmp_path, "--x", "seconds")[0] == 0


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
