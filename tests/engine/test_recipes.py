"""`--recipe` in whole runs: it is said, recorded, kept when a run goes on, and repeated."""
import json

import pytest
from helpers import TINY, compare_runs, load, main, write_plan

from lmplay.plan.recipes import RECIPES


def run(capsys, *flags, code=0):
    found = main([*TINY, "--model", "m", "--training-plan", "plan.json", *map(str, flags)])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return " ".join((captured.out + captured.err).split())


@pytest.fixture
def plan(corpus):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "samples": 60, "lr": 1.0}, "two": {"dataset": "rows.jsonl", "samples": 20, "batch_size": 3}})
    return corpus


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_goes_on_with_the_recipe_whether_it_is_typed_again_or_not(plan, capsys, monkeypatch, name):
    said = run(capsys, "--recipe", name, "--out-dir", "whole", "--lr", 2e-3)
    assert said.startswith(f"recipe {name}: {RECIPES[name].why}; exp {RECIPES[name].family}")
    assert "typed: lr 0.002 model" in said
    record = json.loads((plan / "whole" / "m_settings.json").read_text())
    assert record["recipe"] == name
    assert record["stages"]["two"]["batch_size"] == RECIPES[name].stage["batch_size"]
    assert record["stages"]["one"]["lr"] == 2e-3
    run(capsys, "--recipe", name, "--out-dir", "stopped", "--lr", 2e-3, "--max-steps", 2, code=75)
    monkeypatch.setitem(RECIPES, name, RECIPES[name]._replace(stage={**RECIPES[name].stage, "batch_size": 4, "weight_decay": 0.0}))
    run(capsys, "--out-dir", "stopped", "--lr", 2e-3, "--max-steps", 1, code=75)
    run(capsys, "--recipe", name, "--out-dir", "stopped", "--lr", 2e-3)
    assert compare_runs(plan / "whole", plan / "stopped") == []
    assert main(["--use-config", "whole/m_settings.json", "--out-dir", "again"]) == 0
    for file in ("model", "optimizers"):
        assert str(load(plan / "again" / "m.lmp")[file]["state"]) == str(load(plan / "whole" / "m.lmp")[file]["state"])


def test_another_recipe_for_a_run_that_goes_on_is_refused(plan, capsys):
    run(capsys, "--recipe", "classic", "--max-steps", 1, code=75)
    assert "was trained with --recipe classic, and --recipe modern is given; leave that out, or start over with --reset-history" in \
        run(capsys, "--recipe", "modern", "--exp", "gpt2ish", code=2)
    write_plan(plan, {"one": {"dataset": "rows.jsonl", "samples": 4}})
    run(capsys, "--model", "plain", "--max-steps", 1, code=75)
    assert "was trained without --recipe, and --recipe classic is given" in run(capsys, "--model", "plain", "--recipe", "classic", code=2)


def test_an_unknown_recipe_is_refused_in_a_line(plan, capsys):
    assert run(capsys, "--recipe", "fast", code=2) == "lmp_trainer: --recipe fast: allowed is one of classic, modern, slow."
