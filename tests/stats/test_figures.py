"""The table of figures, and figures that an objective declares: how they are added up, kept and derived."""
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmplay.stats.figures import BY_NAME, CLOCK_COLUMNS, NEWEST, SPREAD, SUMS, Figure, Progress, columns_of, values
from lmplay.stats.histories import History
from lmplay.stats.totals import ModelStats
from lmplay.stats.writing import write_stats

ENTROPY = Figure("entropy", "entropy", "mean", "entropy_sum", "n_tokens", "nats per token", higher_is_better=False)
CLIPPED = Figure("clipped", "clipped ratios", "sum", validate=False)
BETA = Figure("beta", "weight of the penalty", "newest")
DECLARED = (ENTROPY, CLIPPED, BETA)
# A step: its tokens, and its entropy sum, clipped ratios and beta where they were measured.
STEPS = st.lists(st.tuples(st.integers(1, 9), st.none() | st.integers(0, 50), st.none() | st.integers(0, 3), st.none() | st.integers(1, 9)), max_size=40)


def raw_of(step, tokens, entropy, clipped, beta):
    raw = {"step": step, "loss_sum": 1.0, "n_tokens": tokens, "entropy_sum": entropy, "clipped": clipped, "beta": beta}
    return {name: value for name, value in raw.items() if value is not None}


def stats_with(steps):
    stats = ModelStats(DECLARED)
    for i, step in enumerate(steps, 1):
        raw = raw_of(i, *step)
        stats.add_train(Progress(raw.pop("step"), 2 * i, 10 * i, 0.5 * i), raw)
    return stats


def test_columns_and_raw_values_are_in_the_order_of_the_files():
    assert columns_of("train") == ("step", "samples", "tokens", "loss", "accuracy", "lr", "grad_norm", "padding_share", "skipped_batches", "forced_cuts",
                                   "bytes_lost")
    assert columns_of("validate") == ("step", "samples", "tokens", "loss", "perplexity", "bits_per_byte", "accuracy", "edit_accuracy", "written_accuracy",
                                      "standard_error", "floor", "raw_loss", "bytes_lost")
    assert CLOCK_COLUMNS == columns_of("train", clock=True) == ("seconds", "tokens_per_second", "data_wait_share")
    assert columns_of("validate", clock=True) == ("seconds",)
    assert NEWEST == ("step", "samples", "tokens", "seconds", "lr")
    assert SPREAD == ("judged", "loss_squares", "loss_by_tokens", "token_squares")
    assert SUMS == ("steps", "loss_sum", "n_tokens", "n_bytes", "nats_sum", "nats_tokens", "words_right", "words", "edits_right", "edit_words",
                    "written_right", "written_words", "judged", "loss_squares", "loss_by_tokens", "token_squares",
                    "raw_loss_sum", "raw_tokens",
                    "grad_norm_sum", "grad_norms", "padding", "places", "step_seconds", "data_seconds", "skipped_batches", "forced_cuts", "bytes_lost")
    assert list(History().rows) == [*NEWEST, *SUMS]


def test_values_of_one_step():
    raw = {"loss_sum": 20.0, "n_tokens": 10.0, "n_bytes": 40.0, "nats_sum": 5.0, "nats_tokens": 8.0, "lr": 0.1, "words_right": 0.0, "words": 0.0}
    names = ("loss", "perplexity", "bits_per_byte", "floor", "lr", "accuracy", "grad_norm")
    assert values([BY_NAME[name] for name in names], raw) == {
        "loss": 2.0, "perplexity": math.exp(2.0), "bits_per_byte": 0.5 * (1 / math.log(2)), "lr": 0.1,
        "floor": None,  # known of 8 of 10 tokens
        "accuracy": None, "grad_norm": None}
    assert values([BY_NAME["floor"]], {**raw, "nats_tokens": 10.0}) == {"floor": 0.5}
    assert values([ENTROPY, replace(ENTROPY, exp=True, factor=0.5)], {"entropy_sum": 30.0, "n_tokens": 10.0}) == {"entropy": math.exp(1.5)}


@given(STEPS, st.sampled_from([2, 4, 10]), st.integers(0, 40))
def test_declared_figures_stay_exact_however_rows_are_merged_and_over_a_resume(steps, most_rows, stop):
    history = History(most_rows, DECLARED)
    for i, step in enumerate(steps, 1):
        if i == stop:
            state = json.loads(json.dumps(history.state()))
            history = History(most_rows, DECLARED)
            history.restore(state)
        history.add(**raw_of(i, *step))
    columns, begin = history.columns(), 0
    for row, end in enumerate(history.rows["step"]):
        inside = steps[begin:end]
        measured = [(tokens, entropy) for tokens, entropy, _, _ in inside if entropy is not None]
        assert columns["entropy"][row] == (sum(entropy for _, entropy in measured) / sum(tokens for tokens, _ in measured) if measured else None)
        assert columns["clipped"][row] == sum(clipped or 0 for _, _, clipped, _ in inside)
        assert columns["beta"][row] == next((beta for *_, beta in reversed(inside) if beta is not None), None)
        begin = end
    assert begin == len(steps)


@given(STEPS, STEPS)
def test_a_checkpoint_knows_the_figures_that_were_declared(before, after):
    stats = stats_with(before)
    state = json.loads(json.dumps(stats.state()))
    resumed, declared_first = ModelStats(), ModelStats(DECLARED)
    for copy in (resumed, declared_first):
        copy.restore(state)
        copy.declare(DECLARED)  # as the stage does that goes on
        assert copy.figures == DECLARED
    for copy in (stats, resumed, declared_first):
        for i, step in enumerate(after, len(before) + 1):
            raw = raw_of(i, *step)
            copy.add_train(Progress(raw.pop("step"), 2 * i, 10 * i, 0.5 * i), raw)
    assert resumed.state() == declared_first.state() == stats.state()


def test_what_was_before_a_figure_was_declared_counts_as_not_measured():
    stats = ModelStats()
    stats.add_train(Progress(1, 2, 10, 0.5), {"loss_sum": 1.0, "n_tokens": 10.0})
    old = stats.state()
    for declare_before in (True, False):
        stats = ModelStats(DECLARED if declare_before else ())
        stats.restore(old)
        stats.declare(DECLARED)
        stats.add_train(Progress(2, 4, 20, 1.0), {"loss_sum": 1.0, "n_tokens": 10.0, "entropy_sum": 5.0, "clipped": 2.0, "beta": 0.1})
        columns = stats.train.columns()
        assert (columns["entropy"], columns["clipped"], columns["beta"]) == ([None, 0.5], [0, 2.0], [None, 0.1])


@pytest.mark.parametrize(("raw", "words"), [
    ({"entropi_sum": 1.0}, ["unknown figure entropi_sum", "entropy_sum", "loss_sum", "must be declared"]),
    ({"entropy_sum": 1.0}, ["figure entropy_sum", "without"]),  # no tokens
])
def test_a_figure_that_is_not_known_is_an_error_and_changes_nothing(raw, words):
    history = History(figures=DECLARED)
    with pytest.raises(ValueError, match="figure") as caught:
        history.add(step=1, **raw)
    assert all(word in str(caught.value) for word in words)
    assert len(history) == 0
    stats, before = ModelStats(), ModelStats().state()
    for add in (stats.add_train, stats.add_validation):
        with pytest.raises(ValueError, match="unknown figure entropy_sum"):
            add(Progress(1, 2, 10, 0.5), {"loss_sum": 1.0, "n_tokens": 1.0, "nats_tokens": 0.0, "entropy_sum": 1.0})
    assert stats.state() == before


def test_a_value_that_is_not_finite_counts_as_not_measured(tmp_path):
    stats = stats_with([(1, math.nan, 1, 2), (1, 3, math.inf, 4)])
    columns = stats.train.columns()
    assert (columns["entropy"], columns["clipped"]) == ([None, 3.0], [1, 0])
    write_stats(tmp_path, "m", "e", None, stats, [], [])


@pytest.mark.parametrize("figure", [replace(ENTROPY, per="words"), replace(ENTROPY, of="other_sum"), Figure("entropy", "entropy", "sum"),
                                    Figure("loss", "loss", "sum")])
def test_two_figures_of_one_name_are_refused(figure):
    stats = ModelStats(DECLARED)
    with pytest.raises(ValueError, match=f"figure {figure.name}: "):
        stats.declare([figure])
    state = ModelStats(DECLARED).state()
    if figure.name != "loss":
        with pytest.raises(ValueError, match="figure entropy: "):
            ModelStats([figure]).restore(state)


def test_another_title_is_no_other_figure():
    stats, better = ModelStats([replace(ENTROPY, title="uncertainty")]), replace(ENTROPY, title="better title")
    stats.restore(ModelStats(DECLARED).state())
    assert [figure.title for figure in stats.figures] == ["uncertainty", "clipped ratios", "weight of the penalty"]
    stats.declare([better])
    assert stats.figures == (better, CLIPPED, BETA)


@pytest.mark.parametrize("wrong", [{"kind": "mean"}, {"kind": "sum", "per": "n_tokens"}, {"kind": "median"}])
def test_a_figure_that_cannot_be_derived_is_refused(wrong):
    with pytest.raises(ValueError, match="figure x: "):
        Figure("x", "x", **wrong)


def test_only_statistics_with_declared_figures_describe_them(tmp_path):
    stats = stats_with([(2, 5, 1, 3), (2, None, None, None)])
    write_stats(tmp_path, "m", "e", None, stats, [], [])
    write_stats(tmp_path, "plain", "e", None, ModelStats(), [], [])
    train, validate, plain = (json.loads((tmp_path / f"{name}_stats.json").read_text()) for name in ("m_train", "m_validate", "plain_train"))
    assert train["columns"] | {"entropy": [2.5, None], "clipped": [1, 0], "beta": [3, None]} == train["columns"]
    assert train["figures"]["entropy"] == {"title": "entropy", "unit": "nats per token", "higher_is_better": False, "log": False, "panel": True, "chart": True}
    assert list(validate["figures"]) == [name for name in validate["columns"] if name in ("entropy", "clipped", "beta")] == ["entropy", "beta"]
    assert "figures" not in plain
    assert "figures" not in ModelStats().state()
    assert list(ModelStats().state()["train"]["rows"]) == [*NEWEST, *SUMS]


@given(st.lists(st.tuples(st.floats(0.1, 50), st.integers(1, 30)), min_size=2, max_size=20), st.integers(1, 3))
def test_the_standard_error_is_that_of_the_ratio_of_sums(samples, validations):
    loss, tokens = np.array(samples).T
    spread = {"judged": len(samples), "loss_squares": loss @ loss, "loss_by_tokens": loss @ tokens, "token_squares": tokens @ tokens}
    sums = {"loss_sum": loss.sum(), "n_tokens": tokens.sum(), "steps": 1, **spread}
    rows = {name: [validations * value, value, 0.0] for name, value in sums.items()}  # the same validation several times in one row says no more than once
    residuals = loss / loss.sum() - tokens / tokens.sum()
    expected = loss.sum() / tokens.sum() * np.sqrt(residuals @ residuals * len(samples) / (len(samples) - 1))
    several, once, none = BY_NAME["standard_error"].column(rows)
    assert none is None
    assert [several, once] == pytest.approx([expected] * 2, rel=1e-3, abs=1e-5)


def test_one_sample_has_no_standard_error():
    raw = {"loss_sum": 3.0, "n_tokens": 2.0, "steps": 1.0, "judged": 1.0, "loss_squares": 9.0, "loss_by_tokens": 6.0, "token_squares": 4.0}
    assert values([BY_NAME["standard_error"]], raw) == {"standard_error": None}
