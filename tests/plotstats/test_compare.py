"""Which of two ideas is better, and whether that is more than noise."""
import json
import math

import numpy as np
import pytest
from curves import curves_of, edit, make_run, plot, words_in
from hypothesis import given
from hypothesis import strategies as st

from lmplay.plotstats.compare import baseline_of, compare, comparison_lines, idea_lines, ideas_of, student_quantile
from lmplay.plotstats.plot import draw_curve, draw_together

COUNT = 200
HARD = np.random.default_rng(1).normal(3.0, 1.0, COUNT)  # how hard each sample is: far more different than two models are


def add_judged(folder, model, better, seed, noise=0.02, tokens=10, count=COUNT, name="validation"):
    """Give a run the losses of its samples."""
    losses = (HARD[:count] - better + np.random.default_rng(seed).normal(0, noise, count)) * tokens
    def change(content):
        samples = content["columns"]["samples"][-1]
        content.setdefault("judged", {})[name] = {
            "samples": samples, "n_samples": count, "n_tokens": tokens * count, "loss": losses.sum() / tokens / count, "identity": list(range(count)),
            "loss_sum": losses.tolist(), "tokens": [tokens] * count, "bytes": [40] * count}
        content["columns"]["standard_error"] = [0.1] * len(content["columns"]["samples"])
    edit(folder / f"{model}_validate_stats.json", change)


def make_runs(folder, **runs):
    """Write runs with settings; `runs` are (better by, seed of the run, dropout)."""
    for model, (better, seed, dropout) in runs.items():
        make_run(folder, model=model)
        add_judged(folder, model, better, seed)
        (folder / f"{model}_settings.json").write_text(json.dumps({"seed": seed, "dropout": dropout, "model": model, "out_dir": model}))


def told(capsys, folder, *arguments):
    code, output, _ = plot(capsys, folder, "--json", *arguments)
    assert code == 0
    return {run["model"]: run for run in json.loads(output)}


def test_two_runs_are_compared_sample_by_sample(tmp_path, capsys):
    make_runs(tmp_path, a=(0.0, 0, 0.0), better=(0.01, 0, 0.1), same=(0.0, 0, 0.2))
    add_judged(tmp_path, "same", 0.0, 5)
    add_judged(tmp_path, "better", 0.01, 6)
    runs = told(capsys, tmp_path, "--baseline", "a")
    [better], [same] = runs["better"]["comparisons"], runs["same"]["comparisons"]
    assert better["difference"] == pytest.approx(-0.01, abs=0.006)  # the samples differ a hundred times as much
    assert better["more_than_noise"]
    assert "better is better, by more than the noise of the samples; a single seed each" in better["verdict"]
    assert not same["more_than_noise"]
    assert same["low"] < 0 < same["high"]
    assert "no difference beyond the noise of the samples" in same["verdict"]
    assert runs["a"]["comparisons"] == []


def test_the_interval_is_that_of_students_t_of_the_paired_differences(tmp_path):
    make_runs(tmp_path, a=(0.0, 0, 0.0), b=(0.02, 1, 0.1))
    curves = curves_of(tmp_path, "validate")
    ideas = ideas_of(curves, {})
    [found] = compare(ideas, ideas[0])
    a, b = (curve.judged["validation"].loss_sum / 10 for curve in curves)  # all samples have as many tokens: the ratio is the mean
    half = student_quantile(COUNT - 1) * (b - a).std(ddof=1) / math.sqrt(COUNT)
    assert (found.difference, found.low, found.high) == pytest.approx(((b - a).mean(), (b - a).mean() - half, (b - a).mean() + half))


def test_the_noise_of_seeds_counts_where_there_are_several(tmp_path, capsys):
    make_runs(tmp_path, d0_s0=(0.00, 0, 0.0), d0_s1=(0.10, 1, 0.0), d0_s2=(-0.10, 2, 0.0), d1_s0=(0.02, 0, 0.1), d1_s1=(0.12, 1, 0.1), d1_s2=(-0.08, 2, 0.1))
    runs = told(capsys, tmp_path)
    [one] = runs["d1_s0"]["comparisons"]
    assert (one["idea"], one["baseline"], one["single"]) == ("d1 (3 seeds)", "d0 (3 seeds)", [])
    assert not one["more_than_noise"]  # one seed of each alone would have said so
    assert one["difference"] == pytest.approx(-0.02, abs=0.01)
    assert 0.1 < one["high"] < 0.4
    group = runs["d0_s1"]["group"]
    assert (group["n"], group["models"]) == (3, ["d0_s0", "d0_s1", "d0_s2"])
    curves = curves_of(tmp_path, "validate")
    ideas = ideas_of(curves, {curve.model: json.loads((tmp_path / f"{curve.model}_settings.json").read_text()) for curve in curves})
    output = "\n".join([*idea_lines(ideas), *comparison_lines(compare(ideas, ideas[0]))])
    assert "d1 (3 seeds) against d0 (3 seeds), 200 samples of validation" in output
    assert "no difference beyond the noise of samples and seeds" in output
    assert "d0: 3 seeds (d0_s0, d0_s1, d0_s2)" in output


def test_a_single_run_against_several_seeds_is_as_uncertain_as_one_of_them(tmp_path, capsys):
    """Its seed's noise is taken to be theirs: a new run lies within the interval of 95 % as often as of any sample of three and one more."""
    make_runs(tmp_path, d0_s0=(0.00, 0, 0.0), d0_s1=(0.10, 1, 0.0), d0_s2=(-0.10, 2, 0.0), new=(0.15, 3, 0.1))
    [one] = told(capsys, tmp_path, "--baseline", "d0_s0")["new"]["comparisons"]
    assert one["single"] == ["new"]
    half = student_quantile(2) * 0.1 * math.sqrt(1 + 1 / 3)
    assert (one["high"] - one["low"]) / 2 == pytest.approx(half, rel=0.1)
    assert one["verdict"] == ("no difference beyond the noise of samples and seeds; new has a single seed, whose noise is taken to be that of the other's "
                              "seeds")


def test_of_runs_that_have_ended_all_held_out_samples_are_compared(tmp_path):
    make_runs(tmp_path, a=(0.0, 0, 0.0), b=(0.0, 0, 0.1))
    for model in ("a", "b"):
        add_judged(tmp_path, model, 0.0, 3, count=20)
        add_judged(tmp_path, model, 0.0, 3, name="held_out")
    ideas = ideas_of(curves_of(tmp_path, "validate"), {})
    [found] = compare(ideas, ideas[0])
    assert (found.set, found.samples) == ("held_out", COUNT)


def test_other_tokens_are_compared_by_bytes(tmp_path):
    make_runs(tmp_path, a=(0.0, 0, 0.0), b=(0.0, 0, 0.1))
    add_judged(tmp_path, "b", 1.0, 3, tokens=20)
    ideas = ideas_of(curves_of(tmp_path, "validate"), {})
    [found] = compare(ideas, baseline_of(ideas, "a"))
    assert found.unit == "bits per byte"
    assert found.baseline_loss == pytest.approx(HARD.mean() * 10 / 40 / math.log(2), abs=0.02)


def test_only_samples_that_both_have_judged_are_compared_and_old_files_not_at_all(tmp_path):
    make_runs(tmp_path, a=(0.0, 0, 0.0), b=(0.0, 0, 0.1))
    make_run(tmp_path, model="old")
    add_judged(tmp_path, "b", 0.5, 3, count=50)
    ideas = ideas_of(curves_of(tmp_path, "validate"), {})
    [found] = compare(ideas, baseline_of(ideas, "a"))
    assert (found.idea, found.samples) == ("b", 50)


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (10, 2.2281), (30, 2.0423), (1023, 1.9623)])
def test_quantiles_of_students_t(freedom, expected):
    assert student_quantile(freedom) == pytest.approx(expected, rel=2e-3)


@given(st.floats(1, 500), st.floats(1, 500))
def test_more_freedom_is_a_narrower_interval(one, other):
    low, high = sorted((one, other))
    assert student_quantile(high) <= student_quantile(low) * (1 + 1e-4)


def test_pictures_have_bands_and_one_line_for_the_seeds_of_an_idea(tmp_path):
    make_runs(tmp_path, d0_s0=(0.0, 0, 0.0), d0_s1=(0.1, 1, 0.0), other=(0.0, 0, 0.1))
    curves = curves_of(tmp_path, "validate")
    ideas = ideas_of(curves, {curve.model: json.loads((tmp_path / f"{curve.model}_settings.json").read_text()) for curve in curves})
    words = words_in(draw_together(curves, ["samples"], None, ideas=ideas))
    assert "d0 (2 seeds)" in words
    assert "other" in words
    assert any("standard deviation over the seeds" in word and "standard error of the samples" in word for word in words)
    figure = draw_curve(curves[0], None, ["samples"], None)
    assert len(figure.axes[0].collections) == 1  # the band


def test_validations_of_two_stages_are_not_joined(tmp_path):
    make_run(tmp_path)
    [curve] = curves_of(tmp_path, "validate")
    y = draw_curve(curve, None, ["samples"], None).axes[0].lines[-1].get_ydata()
    assert np.isnan(y).sum() == 1
    assert np.flatnonzero(np.isnan(y))[0] == curve.borders("loss")[0]


def test_a_run_with_the_seed_of_another_is_no_further_seed(tmp_path):
    make_runs(tmp_path, a_s0=(0.0, 0, 0.0), a_s1=(0.1, 1, 0.0), a_s0_again=(0.0, 0, 0.0))
    curves = curves_of(tmp_path, "validate")
    ideas = ideas_of(curves, {curve.model: json.loads((tmp_path / f"{curve.model}_settings.json").read_text()) for curve in curves})
    assert sorted(len(idea.runs) for idea in ideas) == [1, 2]
    assert {run.model for idea in ideas for run in idea.runs} == {"a_s0", "a_s1", "a_s0_again"}
