"""The statistics files."""
import json

import pytest
from filled import fill, fill_sources

from lmplay.stats.figures import Progress
from lmplay.stats.totals import ModelStats
from lmplay.stats.writing import write_stats


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
