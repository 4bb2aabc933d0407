"""Totals: they go on where they were, also those of older versions, and stay small."""
import json

from filled import fill, fill_sources
from hypothesis import given
from hypothesis import strategies as st

from lmplay.stats.figures import Progress
from lmplay.stats.totals import MOST_SAVES, ModelStats, add_save


def test_statistics_go_on_where_they_were():
    stats, copy = ModelStats(), ModelStats()
    fill(stats)
    copy.restore(json.loads(json.dumps(stats.state())))
    assert copy.state() == stats.state()
    fill(stats)
    fill(copy)
    assert copy.state() == stats.state()


def test_the_best_loss_is_of_one_unit():
    """A loss of pairs is no better than one of tokens for being lower, nor worse for being higher: the newest unit counts."""
    stats = ModelStats()
    for step, (loss, n_bytes) in enumerate([(3.0, 10), (0.7, 0), (0.6, 0), (0.65, 0), (2.5, 10), (2.8, 10)]):
        stats.add_validation(Progress(step, step, step, 0.0), {"loss_sum": loss, "n_tokens": 1.0, "n_bytes": n_bytes, "lr": 0.1})
        assert stats.best["loss"] == [3.0, 0.7, 0.6, 0.6, 2.5, 2.5][step]


@given(st.integers(1, 5000))
def test_saves_are_kept_thinly_and_the_newest_always(count):
    saves = []
    for i in range(count):
        add_save(saves, {"samples": i})
    places = [save["samples"] for save in saves]
    assert len(places) <= MOST_SAVES
    assert len(places) >= min(count, MOST_SAVES // 2)
    assert (places[0], places[-1]) == (0, count - 1)
    assert places == sorted(set(places))


def test_statistics_from_before_sources_were_told_apart_can_be_gone_on_with():
    stats, old = ModelStats(), ModelStats()
    fill(stats)
    state = stats.state()
    del state["sources"], state["train"]["sources"], state["validate"]["sources"]
    for name in ("skipped_batches", "forced_cuts"):
        del state["train"]["rows"][name], state["validate"]["rows"][name]
    old.restore(state)
    fill_sources(old)
    assert old.sources["a.jsonl"]["tokens"] == 700
    assert len(old.train.sources["a.jsonl"]["loss_sum"]) == len(old.train) == len(old.train.rows["forced_cuts"])
    assert old.train.sources["a.jsonl"]["n_tokens"][:4] == [0] * 4
