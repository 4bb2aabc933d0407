"""Runs that keep an average of the weights, or have an optimizer that does."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import compare_runs, load, stop_at, train_plan, write_plan

from lmplay.generate.command import run as generate

STAGE = {"dataset": "rows.jsonl", "steps": 8, "lr": 0.003}


def validations() -> dict:
    return json.loads(Path("out_gpt/gpt2ish_model_validate_stats.json").read_text())["columns"]


@pytest.mark.parametrize(("optimizer", "ema"), [("adamw", 0.9), ("muon", 0.9), ("schedulefree", 0)])
def test_it_resumes_exactly_over_stages(corpus, capsys, monkeypatch, optimizer, ema):
    write_plan(corpus, {"one": {**STAGE, "optimizer": optimizer}, "two": {**STAGE, "optimizer": "sgd" if ema else optimizer, "lr": 0.1 if ema else 0.003}})
    flags = ["--dropout", "0.1", "--validation-interval", 10]
    train_plan(capsys, *flags, "--ema", ema, "--out-dir", "whole")
    stop_at(monkeypatch, [3, 8, 10])
    train_plan(capsys, *flags, "--ema", ema, "--out-dir", "stopped", code=130)
    for code in (130, 130, 0):
        train_plan(capsys, *flags, "--out-dir", "stopped", code=code)
    assert compare_runs(corpus / "whole", corpus / "stopped") == []
    averages = load(corpus / "whole" / "gpt2ish_model.lmp")["optimizers"]["state"].get("ema", {"state": {}})["state"]
    assert {one["step"] for one in averages.values()} == ({16} if ema else set())  # over both stages


def test_the_average_is_judged_and_used_and_the_training_is_the_same(corpus, capsys):
    write_plan(corpus, {"one": {**STAGE, "early_stopping": {"patience": 9}}})
    flags = ["--validation-interval", 10]
    train_plan(capsys, *flags)
    plain, weights = validations(), load(Path("out_gpt/gpt2ish_model.lmp"))["model"]["state"]
    train_plan(capsys, *flags, "--ema", 0.9, "--reset-history", "--save-weights-only", "w.lmp")
    averaged = validations()
    assert averaged["raw_loss"] == plain["loss"]
    assert plain["raw_loss"] == [None] * len(plain["loss"])
    assert averaged["loss"] != plain["loss"]
    content = load(Path("out_gpt/gpt2ish_model.lmp"))
    assert all(torch.equal(value, weights[name]) for name, value in content["model"]["state"].items())
    assert content["curriculum"]["state"]["stages"][0]["lowest_loss"] == min(averaged["loss"])
    average, raw = (load(Path("out_gpt") / f"{name}.lmp")["model"]["state"] for name in ("w", "w_raw"))
    assert all(torch.equal(value, weights[name]) for name, value in raw.items())
    assert torch.equal(average["blocks.0.mlp.expansion.weight"].flatten()[:5],
                       next(one["average"] for one in content["optimizers"]["state"]["ema"]["state"].values()
                            if one["average"].shape == average["blocks.0.mlp.expansion.weight"].shape).flatten()[:5])
    Path("out_gpt/w.lmp").unlink()
    train_plan(capsys, *flags, "--save-weights-only", "w.lmp")  # the plan is complete
    assert all(torch.equal(value, average[name]) for name, value in load(Path("out_gpt/w.lmp"))["model"]["state"].items())
    texts = []
    for more in (["--model", "out_gpt/gpt2ish_model.lmp"], ["--model", "out_gpt/w.lmp"], ["--model", "out_gpt/gpt2ish_model.lmp", "--raw"],
                 ["--model", "out_gpt/w_raw.lmp"]):
        assert generate([*more, "--prompt", "A cat", "--max-tokens", "40", "--seed", "3"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert "--ema 0.5 is given" in train_plan(capsys, *flags, "--ema", 0.5, code=2)


def test_a_run_without_an_average_goes_on_without_one(corpus, capsys):
    write_plan(corpus, {"one": STAGE})
    train_plan(capsys, "--max-steps", 2, code=75)
    assert "was trained with --ema 0.0, and --ema 0.9 is given" in train_plan(capsys, "--ema", 0.9, code=2)


def test_the_code_that_a_checkpoint_names_is_not_run(corpus, capsys):
    write_plan(corpus, {"one": {**STAGE, "steps": 4}})
    train_plan(capsys, "--optimizer", "torch.optim:NAdam", "--max-steps", 2, code=75)
    assert "code that a file names is run only if it is trusted" in train_plan(capsys, code=2)
    train_plan(capsys, "--optimizer", "torch.optim:NAdam", "--max-steps", 1, code=75)
    train_plan(capsys, "--trust-config")


def test_the_file_of_the_weights_never_replaces_that_of_a_run(corpus, capsys):
    write_plan(corpus, {"one": {**STAGE, "steps": 2}})
    train_plan(capsys, "--model", "m_raw")
    before = Path("out_gpt/m_raw.lmp").read_bytes()
    for more in (["--ema", 0.9], ["--optimizer", "schedulefree"]):
        text = train_plan(capsys, *more, "--model", "other", "--save-weights-only", "m.lmp", "--reset-history", code=2)
        assert "--save-weights-only" in text
        assert "m_raw.lmp: is a file of a run; give another file." in text
    assert Path("out_gpt/m_raw.lmp").read_bytes() == before
    train_plan(capsys, "--model", "other", "--save-weights-only", "m.lmp", "--reset-history")  # which has no averages
