"""Whole runs whose data was moved or has changed."""
from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers import TINY, compare_runs, load, sentences, stop_at, train, write_plan, write_rows

from lmplay.train.__main__ import main


def test_a_folder_that_was_moved_is_gone_on_with_to_the_same_bits(texts_folder, capsys, monkeypatch):
    def plan(path):
        return write_plan(texts_folder, {"one": {"dataset": path, "epochs": 1.5}, "two": {"dataset": path, "samples": 9}})

    plan("texts")
    train(capsys, "--validation-interval", 20, "--training-plan", "plan.json", "--out-dir", "untouched")
    stop_at(monkeypatch, [7])
    train(capsys, "--validation-interval", 20, "--training-plan", "plan.json", "--out-dir", "stopped", code=130)
    shutil.move("texts", "texts elsewhere")
    plan("texts elsewhere")
    train(capsys, "--validation-interval", 20, "--training-plan", "plan.json", "--out-dir", "stopped")

    def but_names(line):
        return not any(word in line for word in (".plan.stages.", ".fingerprints.", ".path", ".forms."))

    assert list(filter(but_names, compare_runs(texts_folder / "untouched", texts_folder / "stopped"))) == []


@pytest.mark.parametrize("change", ["more", "fewer", "other"])
def test_data_that_changed_is_refused_and_can_be_accepted(texts_folder, capsys, monkeypatch, change):
    write_plan(texts_folder, {"one": {"dataset": "texts", "epochs": 3, "validation": {"samples": 2}}})
    stop_at(monkeypatch, [15])
    train(capsys, "--validation-interval", 20, "--training-plan", "plan.json", code=130)
    position = load(Path("out_gpt/gpt2ish_model.lmp"))["curriculum"]["state"]["stages"][0]["position"]
    if change == "other":
        write_rows(texts_folder / "texts" / "a.jsonl", [{"text": sentences(10)}] * 20 + [{"text": "short"}] * 40)
    else:
        write_rows(texts_folder / "texts" / "a.jsonl", [{"text": sentences(1 + i % 3, f"cat{i}")} for i in range(90 if change == "more" else 4)])
    text = train(capsys, "--validation-interval", 20, "--training-plan", "plan.json", code=2)
    said = {"more": "60 rows before, 90 now", "fewer": "60 rows before, 4 now", "other": "60 rows before, 60 now"}[change]
    assert f"the data of texts (a.jsonl has changed; {said}) has changed" in text
    assert "--accept-changed-data" in text
    text = train(capsys, "--validation-interval", 20, "--training-plan", "plan.json", "--accept-changed-data")
    assert "accepted: stage 'one': the data of texts (a.jsonl has changed" in text
    samples = load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["total_train_samples"]
    read = position["read"]
    per_epoch = {"more": 81, "fewer": 4, "other": 54}[change]  # a tenth is held out, of 4 rows none
    epoch, rows_before = position["samples"]["mix"]["epoch"], position["samples"]["mix"]["readers"][0]["offset"]
    assert epoch < 3
    left = (3 - epoch) * per_epoch - rows_before
    assert samples == pytest.approx(max(left, (2 - epoch) * per_epoch) + read, abs=32 + rows_before * 0.1)
    assert "accepted" not in train(capsys, "--validation-interval", 20, "--training-plan", "plan.json")


def told(text: str, event: str) -> dict:
    return next(said for line in text.splitlines() if line.startswith("{") and (said := json.loads(line))["event"] == event)


@pytest.mark.parametrize("keys", [{"epochs": 2.6}, {"epochs": 2, "pieces": "shuffled"}, {"samples": 90}], ids=str)
@pytest.mark.parametrize("n_rows", [90, 4, 31])
def test_how_long_a_stage_is_told_to_be_is_how_long_it_gets_after_its_data_has_changed(texts_folder, capsys, monkeypatch, keys, n_rows):
    write_plan(texts_folder, {"one": {"dataset": "texts", "validation": {"samples": 2}, **keys}})
    stop_at(monkeypatch, [8, 9])
    arguments = "--validation-interval", 20, "--training-plan", "plan.json", "--log-json"
    train(capsys, *arguments, code=130)
    write_rows(texts_folder / "texts" / "a.jsonl", [{"text": sentences(1 + i % 3, f"cow{i}")} for i in range(n_rows)])
    accepted = told(train(capsys, *arguments, "--accept-changed-data", code=130), "stage")["of"]
    text = train(capsys, *arguments)
    assert told(text, "stage")["of"] == accepted == told(text, "stage done")["totals"]["total_train_samples"]


def test_data_that_changed_under_a_begun_stage_is_refused(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "epochs": 3}})
    main([*TINY, "--training-plan", "plan.json", "--batch-size", "5", "--save-interval", "20"])
    state = load(Path("out_gpt/gpt2ish_model.lmp"))
    state["curriculum"]["state"]["stages"][0]["done"] = False  # as if it had been stopped at the end of the stage
    torch.save(state, "out_gpt/gpt2ish_model.lmp")
    capsys.readouterr()
    rows = (corpus / "rows.jsonl").read_text()
    (corpus / "rows.jsonl").write_text(rows.replace("cat", "cow"))
    text = train(capsys, "--training-plan", "plan.json", code=2)
    assert "rows.jsonl has changed" in text
