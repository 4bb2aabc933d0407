"""A run tells its sources apart."""
import json

import numpy as np
import pytest
from helpers import TINY, load, sentences, write_plan, write_rows

from lmplay.train.__main__ import main


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


def test_where_samples_count_alike_they_do_in_each_source(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, word in (("a", "cat"), ("b", "dog")):
        write_rows(tmp_path / f"{name}.jsonl", [{"prompt": f"Say {i}.", "completion": sentences(1 + i % 3, word)} for i in range(20)])
    write_plan(tmp_path, {"one": {"dataset": ["a.jsonl", "b.jsonl"], "steps": 3, "pieces": "together", "objective": {"name": "sft", "per": "sample"}}})
    assert main([*TINY, "--training-plan", "plan.json", "--batch-size", "6", "--mini-batch-size", "4", "--validation-interval", "6"]) == 0
    for kind in ("train", "validate"):
        state = load(tmp_path / "out_gpt/gpt2ish_model.lmp")["runner"]["state"]["step_stats"]["one"][kind]
        parts = state["sources"].values()
        assert np.sum([part["n_tokens"] for part in parts], axis=0) == pytest.approx(state["rows"]["n_tokens"])
        assert np.sum([part["loss_sum"] for part in parts], axis=0) == pytest.approx(state["rows"]["loss_sum"], rel=1e-5)
    said = capsys.readouterr().out
    assert "nats per token, samples alike" in said
