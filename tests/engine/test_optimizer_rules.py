"""Several optimizers in one run: rules of a plan, classes of other packages, and their place in a checkpoint."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import compare_runs, load, stop_at, train_plan, write_plan

MODEL = Path("out_gpt/gpt2ish_model.lmp")
RULES = [{"match": "*embedding*", "lr": 3, "kind": "sgd"}, {"match": ["blocks.0.*", "final_norm.*"], "lr": 0.5, "weight_decay": 0.2}]
STAGE = {"dataset": "rows.jsonl", "steps": 6, "optimizer": "muon"}


def test_rules_and_several_optimizers_resume_exactly(corpus, capsys, monkeypatch):
    soap = {"dataset": "rows.jsonl", "steps": 4, "optimizer": {"name": "pytorch_optimizer:SOAP", "settings": {"precondition_frequency": 2}}}
    write_plan(corpus, {"$optimizer": RULES, "one": STAGE, "two": soap, "three": {**STAGE, "optimizer": "schedulefree"}})
    flags = ["--dropout", "0.1", "--validation-interval", 10, "--trust-config"]
    train_plan(capsys, *flags, "--out-dir", "whole")
    stop_at(monkeypatch, [2, 4, 7, 9, 13])
    for _ in range(5):
        train_plan(capsys, *flags, "--out-dir", "stopped", code=130)
    train_plan(capsys, *flags, "--out-dir", "stopped")
    assert compare_runs(corpus / "whole", corpus / "stopped") == []
    kinds = [load(corpus / "whole" / f"gpt2ish_model.{name}.lmp")["optimizers"] for name in ("one", "two", "three")]
    assert [*kinds[0]["state"]] == ["matrices", "others", "main *embedding*", "matrices blocks.0.*, final_norm.*", "others blocks.0.*, final_norm.*"]
    assert kinds[1]["state"]["main"]["param_groups"][0]["precondition_frequency"] == 2


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_mixed_precision_with_several_optimizers(corpus, capsys, precision):
    write_plan(corpus, {"$optimizer": RULES, "one": STAGE})
    train_plan(capsys, "--amp", precision)
    losses = json.loads(Path("out_gpt/gpt2ish_model_train_stats.json").read_text())["columns"]
    assert losses["loss"][-1] < losses["loss"][0], [*losses]


def test_code_that_a_plan_names_is_not_run_unless_it_is_trusted(corpus, capsys):
    (corpus / "evil.py").write_text("open('ran', 'w')\n")
    for optimizer, rules in (("evil:Muon", []), ("adamw", [{"match": "head.*", "kind": "evil:Muon"}])):
        write_plan(corpus, {"$optimizer": rules, "one": {**STAGE, "optimizer": optimizer}})
        for flags in ([], ["--check-plan"], ["--describe"], ["--show-samples", 1]):
            text = train_plan(capsys, *flags, code=2)
            assert "has the optimizer evil:Muon, and code that a file names is run only if it is trusted: add --trust-config" in text
    (corpus / "flags.json").write_text(json.dumps({"optimizer": "evil:Muon"}))
    assert "has the optimizer evil:Muon, and code of a file" in train_plan(capsys, "--use-config", "flags.json", code=2)
    assert not (corpus / "ran").exists()
    write_plan(corpus, {"one": {**STAGE, "optimizer": "torch.optim:NAdam"}})
    train_plan(capsys, "--trust-config")
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 2}})
    train_plan(capsys, "--optimizer", "torch.optim:NAdam", "--betas", "0.8,0.9", "--model", "typed.lmp")
    record = json.loads(Path("out_gpt/typed_settings.json").read_text())["stages"]["one"]
    assert (record["optimizer"], record["betas"]) == ("torch.optim:NAdam", [0.8, 0.9])
    assert "momentum" not in record


def test_all_that_is_wrong_with_optimizers_is_told_at_once(corpus, capsys):
    wrong = {"$optimizer": [{"match": "haed.*", "kind": "adamq"}, {"match": [], "lr": -1}], "one": STAGE}
    write_plan(corpus, wrong)
    text = train_plan(capsys, code=2)
    assert "key '$optimizer[0].kind': found \"adamq\", allowed: adamw, adam" in text
    assert "Did you mean 'adam'?" in text
    assert "key '$optimizer[1].lr': found -1, allowed: a number above 0." in text
    assert "key '$optimizer[1].match': found [], allowed: a pattern over parameter names" in text
    settings = {"name": "muon", "settings": {"nesterow": False}}
    for preview in ([], ["--check-plan"]):
        write_plan(corpus, {"$optimizer": [{"match": "haed.*"}], "one": STAGE})
        assert "$optimizer 'haed.*': matches no parameter. Did you mean 'head'?" in train_plan(capsys, *preview, code=2)
        write_plan(corpus, {"one": {**STAGE, "optimizer": settings}, "two": {**STAGE, "dataset": "nothing.jsonl"}})
        text = train_plan(capsys, *preview, code=2)
        assert preview == [] or "optimizer muon: settings: Muon has no 'nesterow'. Did you mean 'nesterov'? It takes: params, lr" in text
        assert "nothing.jsonl" in text


def test_a_begun_stage_keeps_its_rules(corpus, capsys):
    write_plan(corpus, {"$optimizer": RULES, "one": STAGE, "two": STAGE})
    train_plan(capsys, "--max-steps", 2, code=75)
    write_plan(corpus, {"$optimizer": RULES[:1], "one": STAGE, "two": STAGE})
    assert "stage 'one' has been begun and differs in this plan: optimizer_rules was" in train_plan(capsys, code=2)


def test_a_stage_with_other_settings_begins_without_state_after_a_stop_too(corpus, capsys):
    def muon(steps):
        return {**STAGE, "optimizer": {"name": "muon", "settings": {"ns_steps": steps}}}

    stages = {"one": muon(5), "two": muon(2)}
    write_plan(corpus, stages)
    train_plan(capsys, "--out-dir", "whole")
    write_plan(corpus, {"one": stages["one"]})
    train_plan(capsys, "--out-dir", "stopped")
    write_plan(corpus, stages)
    train_plan(capsys, "--out-dir", "stopped")
    whole, stopped = (load(corpus / out / "gpt2ish_model.lmp") for out in ("whole", "stopped"))
    assert [content["optimizers"]["state"]["matrices"]["param_groups"][0]["ns_steps"] for content in (whole, stopped)] == [2, 2]
    assert all(map(torch.equal, whole["model"]["state"].values(), stopped["model"]["state"].values()))
