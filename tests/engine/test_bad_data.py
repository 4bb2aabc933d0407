"""Whole runs on data with rows that give no sample, and on data that gives none at all."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from helpers import load, sentences, train, write_plan, write_rows


def test_a_bad_row_ends_the_run_with_its_state_saved_and_is_counted_otherwise(texts_folder, capsys):
    lines = (texts_folder / "texts" / "a.jsonl").read_text().splitlines()
    lines[40] = "{broken"
    (texts_folder / "texts" / "a.jsonl").write_text("\n".join(lines))
    source = {"path": "texts", "on_bad_row": "stop"}
    write_plan(texts_folder, {"one": {"dataset": source, "validation": 0, "shuffle": False}})
    text = train(capsys, "--validation-interval", 20, "--training-plan", "plan.json", "--mini-batch-size", 5, code=2)
    assert "a.jsonl, line 41: not valid JSON" in text
    assert load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["total_train_samples"] > 20
    write_plan(texts_folder, {"one": {"dataset": {**source, "on_bad_row": "skip"}, "validation": 0, "shuffle": False}})
    text = train(capsys, "--validation-interval", 20, "--training-plan", "plan.json", "--reset-history")
    assert "1 row skipped: not valid JSON (" in text
    stage = json.loads(Path("out_gpt/gpt2ish_model_train_stats.json").read_text())["stages"][0]
    assert (stage["skipped"], stage["replaced"]) == ({"not valid JSON": 1}, {})


@pytest.mark.parametrize("nats", ["three", 3.5])
def test_a_column_that_is_called_as_ours_is_no_floor(texts_folder, capsys, nats):
    write_rows(texts_folder / "own.jsonl", [{"text": f"A cat {i}.", "nats": nats} for i in range(30)])
    assert "floor" not in train(capsys, "--validation-interval", 20, "--dataset", "own.jsonl")


def test_rows_that_are_no_text_are_counted_and_shown(corpus, capsys):
    write_rows(corpus / "mixed.jsonl", [{"text": sentences(2)}, {"text": None}, {"text": 5}, {"text": "  "}] * 10)
    write_plan(corpus, {"one": {"dataset": "mixed.jsonl", "validation": 0}})
    text = train(capsys, "--training-plan", "plan.json")
    for reason in ("empty", "not text", "null"):
        assert f"10 rows skipped: {reason}" in text


def test_data_that_gives_no_sample_is_an_error(corpus, capsys):
    write_rows(corpus / "nulls.jsonl", [{"text": None}] * 40)
    write_plan(corpus, {"one": {"dataset": "nulls.jsonl", "validation": 0}})
    text = train(capsys, "--training-plan", "plan.json", code=2)
    assert "stage 'one'" in text
    assert "40 rows skipped: 40 null" in text


def test_validation_rows_that_give_no_sample_are_no_validation(corpus, capsys):
    write_rows(corpus / "nulls.jsonl", [{"text": None}] * 40)
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "validation": {"dataset": "nulls.jsonl"}}})
    assert "no validation" in train(capsys, "--training-plan", "plan.json")


@pytest.mark.parametrize("rows", [["", "A dog ran."], ["A dog ran.", ""]])
def test_a_validation_row_that_is_empty_ends_a_run_that_is_to_stop_there(corpus, capsys, rows):
    write_rows(corpus / "judged.jsonl", [{"text": text} for text in rows])
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "validation": {"dataset": {"path": "judged.jsonl", "on_bad_row": "stop"}}}})
    assert f"judged.jsonl, line {rows.index('') + 1}: gives no sample (empty)" in train(capsys, "--training-plan", "plan.json", code=2)


@pytest.mark.parametrize("count", ["2", "all"])
@pytest.mark.parametrize("judged", ["aaab aab aab 爱 爱 爱", "爱 爱 爱"])
def test_validation_samples_without_any_token_do_not_keep_a_stage_from_its_end(corpus, capsys, judged, count):
    model = tokenizers.models.BPE({"a": 0, "b": 1, "<|endoftext|>": 2}, [])  # what is unknown has no token
    tokenizers.Tokenizer(model).save("few.json")
    write_rows(corpus / "letters.jsonl", [{"text": "ab" * (1 + i % 5)} for i in range(20)])
    write_rows(corpus / "judged.jsonl", [{"text": text} for text in judged.split()])
    write_plan(corpus, {"one": {"dataset": "letters.jsonl", "validation": {"dataset": "judged.jsonl"}}})
    for _ in range(2):
        train(capsys, "--training-plan", "plan.json", "--tokenizer", "few.json", "--validation-samples", count)
        assert load(Path("out_gpt/gpt2ish_model.lmp"))["curriculum"]["state"]["stages"][0]["done"]
