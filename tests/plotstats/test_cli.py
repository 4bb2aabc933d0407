"""lmp_plotstats from the command line: what it draws, what it answers, and what it refuses."""
import os
import subprocess
import sys

import pytest
from curves import DAMAGE, curves_of, make_run, picture_size, pictures, plot
from helpers import ROOT

from lmplay.errors import UserError
from lmplay.plotstats.plot import draw_curve, save
from lmplay.plotstats.runs import read_curve


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
        "model", "experiment", "samples", "tokens", "time", "tokens/s", "train", "loss", "validation", "±", "error", "best", "loss", "bits/byte", "best",
        "bits", "accuracy", "by", "edits"]
    loss = read_curve(tmp_path / "tiny_train_stats.json").columns["loss"][-1]
    assert table[1] == ["tiny", "gpt2ish_tiny", "4k", "410k", "6m", "50s", "1k", f"{loss:.4f}", f"{validation.columns['loss'][-1]:.4f}", "-",
                        *(f"{value:.4f}" for value in (validation.columns["loss"].min(), validation.columns["loss"][-1] / 2,
                                                     validation.columns["loss"].min() / 2)), f"{validation.columns['accuracy'][-1]:.1%}", "-"]
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
