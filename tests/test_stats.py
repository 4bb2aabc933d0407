"""Statistics: histories of bounded size whose sums stay exact, totals, word accuracy, the files."""
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmplay.cadence import Every
from lmplay.stats.accuracy import count_right, words
from lmplay.stats.modelstats import History, ModelStats, write_stats


@given(st.integers(0, 300), st.sampled_from([2, 4, 10, 16]))
def test_a_history_stays_small_and_its_sums_exact(n, most_rows):
    history = History(most_rows)
    for i in range(1, n + 1):
        history.add(step=i, samples=10 * i, loss_sum=i, n_tokens=2, steps=1)
    assert len(history) <= most_rows
    assert sum(history.rows["loss_sum"]) == n * (n + 1) / 2
    assert sum(history.rows["steps"]) == n
    assert history.rows["step"] == sorted(history.rows["step"])
    if n:
        assert history.rows["step"][-1] == n
        assert len(history) >= min(n, most_rows // 2)
    sizes = history.rows["steps"][:-1]
    assert len(set(sizes)) <= 1  # thinned evenly


def test_two_validations_at_one_step_share_a_row():
    history = History(4)
    for step in range(11):
        for _ in range(2):
            history.add(step=step, samples=step, loss_sum=1.0, n_tokens=1)
    assert sum(history.rows["loss_sum"]) == 22
    assert len(history) <= 4
    assert history.rows["n_tokens"][0] == 2 * (history.rows["step"][1] - history.rows["step"][0])


@given(st.integers(0, 100), st.integers(0, 100))
def test_a_history_goes_on_where_it_was(before, after):
    untouched, stopped, resumed = History(8), History(8), History(8)
    for i in range(before):
        untouched.add(step=i, loss_sum=i / 3)
        stopped.add(step=i, loss_sum=i / 3)
    resumed.restore(json.loads(json.dumps(stopped.state())))
    for i in range(after):
        untouched.add(step=before + i, loss_sum=i / 7)
        resumed.add(step=before + i, loss_sum=i / 7)
    assert resumed.state() == untouched.state()


def fill(stats):
    for i in range(1, 5):
        stats.count_step(10, 100, Counter(pieces=12))
        place = {"step": i, "samples": 10 * i, "tokens": 100 * i, "seconds": 2.0 * i, "lr": 0.1}
        stats.add_train(place, {"loss_sum": 100.0 * i, "n_tokens": 100, "words_right": 3, "words": 4, "grad_norm_sum": 0.5, "grad_norms": 1, "steps": 1,
                                "padding": 5, "places": 50, "step_seconds": 2.0, "data_seconds": 0.5})
        stats.add_validation(place, {"steps": 1, "loss_sum": 50.0 / i, "n_tokens": 50, "n_bytes": 200, "nats_sum": 10.0, "nats_tokens": 50,
                                     "words_right": 1, "words": 2}, final=i == 4)


def test_the_files_say_what_happened(tmp_path):
    stats = ModelStats()
    fill(stats)
    entry = {"name": "s", "done": True, "from_samples": 0, "to_samples": 40, "from_tokens": 0, "to_tokens": 400, "from_seconds": 0.0, "to_seconds": 8.0,
             "floor_nats_per_token": 0.2, "floor_bits_per_byte": 0.07}
    write_stats(tmp_path, "m", "e", None, stats, [entry], [{"samples": 10, "tokens": 100, "seconds": 2.0}])
    train = json.loads((tmp_path / "m_train_stats.json").read_text())
    assert (train["kind"], train["model"], train["experiment"], train["stage"]) == ("train", "m", "e", None)
    assert train["totals"]["total_train_samples"] == 40
    assert train["totals"]["train_loss_total"] == 1000.0
    assert train["totals"]["pieces"] == 48
    assert train["columns"]["loss"] == [1.0, 2.0, 3.0, 4.0]
    assert train["columns"]["accuracy"] == [0.75] * 4
    assert train["columns"]["padding_share"] == [0.1] * 4
    assert train["clock"]["tokens_per_second"] == [50.0] * 4
    assert train["clock"]["data_wait_share"] == [0.25] * 4
    assert "seconds" not in json.dumps({key: value for key, value in train.items() if key != "clock"})
    validate = json.loads((tmp_path / "m_validate_stats.json").read_text())
    assert validate["columns"]["loss"] == [1.0, 0.5, pytest.approx(1 / 3), 0.25]
    assert validate["columns"]["bits_per_byte"][0] == pytest.approx(50 / 200 / 0.693147, rel=1e-5)
    assert validate["columns"]["perplexity"][1] == pytest.approx(1.6487, rel=1e-4)
    assert validate["columns"]["floor"] == [0.2] * 4
    assert validate["final"] == {"samples": 40, "loss": 0.25, "floor": 0.2}
    assert validate["best"]["loss"] == 0.25


def test_statistics_go_on_where_they_were():
    stats, copy = ModelStats(), ModelStats()
    fill(stats)
    copy.restore(json.loads(json.dumps(stats.state())))
    assert copy.state() == stats.state()
    fill(stats)
    fill(copy)
    assert copy.state() == stats.state()


@pytest.mark.parametrize(("truth", "predicted", "right", "all_words"), [
    ("the cat sat.", "the cat sat.", 4, 4),
    ("the cat sat.", "the dog sat.", 3, 4),
    ("the cat sat.", "", 0, 4),
    ("the cat", "a b c d e f g", 0, 2),
    ("one two three", "two three", 2, 3),
    ("日本語", "日木語", 2, 3),
    ("", "x", 0, 0),
])
def test_word_accuracy(truth, predicted, right, all_words):
    assert count_right(truth, predicted) == (right, all_words)


def test_words_of_mixed_scripts():
    assert words("Don't 我喜歡 naïve, 3.5!") == ["Don", "'", "t", "我", "喜", "歡", "naïve", ",", "3", ".", "5", "!"]


@given(st.integers(1, 20), st.lists(st.integers(0, 50), max_size=30))
def test_it_is_time_once_for_each_crossing(interval, jumps):
    before, times = 0, 0
    for jump in jumps:
        times += Every(interval).due(before, before + jump)
        before += jump
    assert times <= before // interval
    assert sum(Every(interval).due(i, i + 1) for i in range(before)) == before // interval
    assert not Every(0).due(0, before)
