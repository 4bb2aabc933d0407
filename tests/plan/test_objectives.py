"""The objective of a stage and its settings: short and long form, `$defaults`, wrong names and values, the record, and what may change later."""
import json
from pathlib import Path

import pytest
from helpers import TINY, sentences, write_plan, write_rows

from lmplay.errors import UserError
from lmplay.plan.load import load_plan, plan_from_json
from lmplay.plan.settings import Settings, resolve_stage
from lmplay.train.__main__ import main


def used(**stage):
    """Give the name and the settings of the objective of a stage."""
    plan = plan_from_json({"stages": [{"name": "one", "dataset": "builtin:tales", "samples": 10, **stage}]})
    assert plan_from_json(plan.to_json()) == plan
    found = resolve_stage(Settings(), plan.stages[0], 64)
    return found.objective, found.objective_settings


@pytest.mark.parametrize(("written", "expected"), [
    (None, ("next_token", {})), ("next_token", ("next_token", {})), ("sft", ("sft", {"per": "token"})),
    ({"name": "sft", "per": "sample"}, ("sft", {"per": "sample"})), ({"name": "sft", "per": None}, ("sft", {"per": "token"}))])
def test_settings_are_those_of_the_plan_and_the_defaults_of_the_others(written, expected):
    assert used(objective=written) == expected


@pytest.mark.parametrize(("written", "fault"), [
    ({"name": "sftt"}, r"key 'objective\.name': found \"sftt\", allowed: next_token, sft.*Did you mean 'sft'"),
    ({"name": "sft", "peer": "token"}, r"key 'objective\.peer': unknown key\. Did you mean 'per'"),
    ({"name": "sft", "per": "samples"}, r"key 'objective\.per': found \"samples\", allowed: token or sample\. Did you mean 'sample'"),
    ({"name": "next_token", "per": "token"}, r"key 'objective\.per': found it with next_token, allowed: no settings"),
    ({"name": "sft", "settings": {"per": "token"}}, r"key 'objective\.settings': found it with sft, allowed: per"),
    ({"per": "token"}, r"key 'objective\.name': found nothing"), (3, r"key 'objective': found 3, allowed: next_token")])
def test_what_is_wrong_is_named_with_what_is_allowed(tmp_path, written, fault):
    path = write_plan(tmp_path, {"one": {"dataset": "builtin:tales", "samples": 10, "objective": written}})
    with pytest.raises(UserError, match=fault) as error:
        load_plan(path)
    assert len(error.value.faults) == 1


def test_a_stage_replaces_the_objective_of_the_defaults_whole(tmp_path):
    path = write_plan(tmp_path, {"$defaults": {"objective": {"name": "sft", "per": "sample"}}, "one": {"dataset": "builtin:tales", "samples": 1},
                                 "two": {"dataset": "builtin:tales", "samples": 1, "objective": "sft"}})
    assert [resolve_stage(Settings(), stage, 64).objective_settings for stage in load_plan(path).stages] == [{"per": "sample"}, {"per": "token"}]


def test_the_record_has_what_was_used_and_a_begun_stage_keeps_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), [{"prompt": f"Say {i}.", "completion": sentences(1 + i % 3)} for i in range(40)])
    stage = {"dataset": "rows.jsonl", "batch_size": 5}
    plan = {"one": {**stage, "objective": {"name": "sft", "per": "sample"}}, "two": {**stage, "objective": "sft"}}
    command = [*TINY, "--training-plan", str(write_plan(tmp_path, plan)), "--max-steps", "2"]
    assert main(command) == 75
    stages = json.loads(Path("out_gpt/gpt2ish_model_settings.json").read_text())["stages"]
    assert [(one["objective"], one["objective_settings"]) for one in stages.values()] == [("sft", {"per": "sample"}), ("sft", {"per": "token"})]
    write_plan(tmp_path, {**plan, "two": {**stage, "objective": "next_token"}})
    capsys.readouterr()
    assert main(command) == 75
    captured = capsys.readouterr()
    assert "stage 'two' (not begun): objective was" in captured.out + captured.err
    write_plan(tmp_path, {**plan, "one": {**stage, "objective": "sft"}})
    assert main(command) == 2
    assert "stage 'one' has been begun and differs in this plan: objective was " in capsys.readouterr().err
