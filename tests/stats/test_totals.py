"""Totals, sources, and the statistics files that are written from them."""
import json
from collections import Counter

import numpy as np
import pytest
from helpers import TINY, load, sentences, write_plan, write_rows
from hypothesis import given
from hypothesis import strategies as st

from lmplay.cadence import Every
from lmplay.stats.figures import Progress
from lmplay.stats.totals import MOST_SAVES, ModelStats, add_save
from lmplay.stats.writing import write_stats
from lmplay.train.__main__ import main


def fill(stats):
    for i in range(1, 5):
        stats.count_step(10, 100, Counter(pieces=12))
        place = Progress(i, 10 * i, 100 * i, 2.0 * i)
        stats.add_train(place, {"loss_sum": 100.0 * i, "n_tokens": 100, "words_right": 3, "words": 4, "grad_norm_sum": 0.5, "grad_norms": 1, "steps": 1,
                                "padding": 5, "places": 50, "step_seconds": 2.0, "data_seconds": 0.5})
        stats.add_validation(place, {"lr": 0.1, "steps": 1, "loss_sum": 50.0 / i, "n_tokens": 50, "n_bytes": 200, "nats_sum": 10.0, "nats_tokens": 50,
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


def test_a_run_tells_its_sources_apart_and_nothing_is_left_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "a.jsonl", [{"text": sentences(1 + i % 9)} for i in range(30)])
    write_rows(tmp_path / "b.jsonl", [{"text": sentences(1 + i % 3, "dog")} for i in range(20)])
    write_rows(tmp_path / "c.jsonl", [{"text": sentences(2, "fox")} for i in range(20)])
    write_plan(tmp_path, {"one": {"dataset": "a.jsonl"}, "two": {"dataset": ["a.jsonl", "b.jsonl", "a.jsonl"], "epochs": 1.5},
                          "three": {"dataset": ["a.jsonl", "b.jsonl"], "validation": {"dataset": "c.jsonl"}}})
    assert main([*TINY, "--training-plan", "plan.json", "--batch-size", "6", "--mini-batch-size", "4", "--validation-interval", "20"]) == 0
    said = capsys.readouterr().out

    def read(stage, kind):
        return json.loads((tmp_path / "out_gpt" / f"gpt2ish_model_step_{stage}_{kind}_stats.json").read_text())

    assert read("one", "train")["sources"] == read("one", "validate")["sources"] == {}
    content, state = read("two", "train"), load(tmp_path / "out_gpt/gpt2ish_model.lmp")["runner"]["state"]["step_stats"]
    assert list(content["sources"]) == ["a.jsonl", "b.jsonl", "a.jsonl (2)"]
    for unit in ("samples", "tokens"):
        assert sum(source[unit] for source in content["sources"].values()) == content["totals"][f"total_train_{unit}"]
    assert content["sources"]["b.jsonl"]["epochs"] == pytest.approx(content["sources"]["b.jsonl"]["samples"] / 18)
    assert content["clock"]["saves"][-1]["samples"] == content["stages"][0]["to_samples"]
    assert sum(content["columns"]["forced_cuts"]) == content["totals"].get("forced_cuts", 0)
    assert f"b.jsonl {content['sources']['b.jsonl']['samples']} samples, {content['sources']['b.jsonl']['tokens']:,} tokens, " in said
    for kind in ("train", "validate"):
        whole, parts = state["two"][kind]["rows"], state["two"][kind]["sources"].values()
        assert np.sum([part["n_tokens"] for part in parts], axis=0).tolist() == whole["n_tokens"]
        assert np.sum([part["loss_sum"] for part in parts], axis=0) == pytest.approx(whole["loss_sum"], rel=1e-5)
    assert list(read("three", "validate")["sources"]) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert [name for name, source in read("three", "validate")["sources"].items() if source["validate_loss"] is not None] == ["c.jsonl"]
    assert "c.jsonl 0 samples, 0 tokens, validation" in said
    assert "three/c.jsonl" in json.loads((tmp_path / "out_gpt/gpt2ish_model_train_stats.json").read_text())["sources"]


def fill_sources(stats, steps=20):
    stats.begin_sources({"a.jsonl": 40, "b.jsonl": None})
    for i in range(1, steps + 1):
        parts = {"a.jsonl": (60.0 / i, 30), "b.jsonl": (20.0, 10)} if i % 2 else {"a.jsonl": (80.0 / i, 40)}
        for name, (_, tokens) in parts.items():
            stats.count_source(name, tokens // 10, tokens)
        place = Progress(i, 4 * i, 40 * i, 2.0 * i)
        stats.add_train(place, {"lr": 0.1, "loss_sum": sum(loss for loss, _ in parts.values()), "n_tokens": 40}, parts)
        if i % 10 == 0:
            stats.add_validation(place, {"lr": 0.1, "loss_sum": 50.0, "n_tokens": 50, "nats_tokens": 0, "nats_sum": 0},
                                 sources={"a.jsonl": (30.0, 25), "b.jsonl": (20.0, 25)})


def test_the_files_say_what_each_source_gave(tmp_path):
    stage, run = ModelStats(), ModelStats()
    fill_sources(stage)
    write_stats(tmp_path, "m", "e", "s", stage, [], [])
    write_stats(tmp_path, "m", "e", None, run, [], [], {"s": stage, "other": ModelStats()})
    train, validate, whole = (json.loads((tmp_path / name).read_text())["sources"] for name in
                              ("m_step_s_train_stats.json", "m_step_s_validate_stats.json", "m_train_stats.json"))
    one, other = train["a.jsonl"], train["b.jsonl"]
    assert (one["samples"], one["tokens"], one["epochs"]) == (70, 700, 1.75)
    assert (other["samples"], other["tokens"], other["epochs"]) == (10, 100, None)
    assert one["columns"]["loss"] == pytest.approx([2 / i for i in range(1, 21)])
    assert other["columns"]["loss"] == [2.0, None] * 10
    assert one["train_loss"] == pytest.approx((60 / 19 + 80 / 20) / 70)  # of the last tenth of the rows, by tokens
    assert [validate[name]["columns"]["loss"] for name in ("a.jsonl", "b.jsonl")] == [[1.2, 1.2], [0.8, 0.8]]
    assert one["validate_loss"] == 1.2
    assert whole == {f"s/{name}": {key: value for key, value in said.items() if key != "columns"} for name, said in train.items()}


def test_a_long_run_writes_no_more_than_a_short_one(tmp_path):
    sizes = []
    stats = ModelStats()
    for i in range(1, 60_001):
        place = Progress(i, 10 * i, 100 * i, 2.0 * i)
        stats.add_train(place, {"lr": 0.1, "loss_sum": 100.0, "n_tokens": 100, "steps": 1, "skipped_batches": float(i == 33_333), "forced_cuts": 2.0})
        if i in (10_000, 60_000):
            write_stats(tmp_path, "m", "e", None, stats, [], [])
            sizes.append((tmp_path / "m_train_stats.json").stat().st_size)
    columns = json.loads((tmp_path / "m_train_stats.json").read_text())["columns"]
    assert len(columns["step"]) == 7500  # the rows stand for 8 steps each
    assert sizes[1] < 1.2 * sizes[0]
    assert sum(columns["skipped_batches"]) == 1
    assert columns["step"][columns["skipped_batches"].index(1)] == 33_336
    assert sum(columns["forced_cuts"]) == 120_000


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


@given(st.integers(1, 20), st.lists(st.integers(0, 50), max_size=30))
def test_it_is_time_once_for_each_crossing(interval, jumps):
    before, times = 0, 0
    for jump in jumps:
        times += Every(interval).due(before, before + jump)
        before += jump
    assert times <= before // interval
    assert sum(Every(interval).due(i, i + 1) for i in range(before)) == before // interval
    assert not Every(0).due(0, before)
