"""What `--recipe` writes into a plan."""
from __future__ import annotations

import json

import pytest
from plan_files import load, stage

from lmplay.errors import UserError
from lmplay.exp import experiments
from lmplay.plan.follow import follow_recipe, keep_written, recipe_in_words
from lmplay.plan.recipes import RECIPES
from lmplay.plan.settings import Settings, resolve_stage


def settings(**typed):
    return Settings(**typed, explicit=frozenset(typed))


def follow(raw, **typed):
    return follow_recipe(settings(**typed), load(raw))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_plan_that_trains(name):
    used, plan = follow(stage(epochs=1), recipe=name)
    recipe = RECIPES[name]
    resolved = resolve_stage(used, plan.stages[0], 256)
    assert (resolved.lr, resolved.batch_size, resolved.grad_clip, resolved.weight_decay) == \
        tuple(recipe.stage[key] for key in ("lr", "batch_size", "grad_clip", "weight_decay"))
    assert (resolved.optimizer, resolved.ema) == (recipe.stage["optimizer"]["name"], recipe.ema)
    assert resolved.lr_schedule.at(1.0) < 0.2
    assert used.experiment(plan) == recipe.family in experiments()
    assert plan.model.dropout == recipe.model["dropout"]
    assert plan.stages[0].epochs == (recipe.epochs or 1)
    assert follow_recipe(used, plan) == (used, plan)


def test_the_rows_are_what_they_are_called():
    _, classic = follow(stage(), recipe="classic")
    _, modern = follow(stage(), recipe="modern")
    assert [plan.stages[0].optimizer.name for plan in (classic, modern)] == ["adamw", "muon"]
    assert classic.stages[0].lr_chain.in_words() == "cosine"
    trapezoid = modern.stages[0].lr_chain
    assert [trapezoid.at(share) for share in (0.05, 0.3, 0.45)] == [1.0] * 3
    assert trapezoid.at(0.75) == pytest.approx(0.5)
    slow, plain = RECIPES["slow"], RECIPES["modern"]
    assert slow.stage["weight_decay"] > plain.stage["weight_decay"]
    assert slow.model["dropout"] > plain.model["dropout"]
    assert slow.ema
    assert slow.epochs > 1
    assert slow.stage["early_stopping"]


def test_what_is_typed_wins_and_the_plan_does_not():
    raw = {"$model": {"exp": "llamaish_tiny", "num_blocks": 3, "dropout": 0.3, "settings": {"rope_base": 500.0}}, **stage(lr=1.0, batch_size=7, samples=9)}
    used, plan = follow(raw, recipe="slow", lr=0.5, ema=0.9, optimizer="sgd")
    resolved = resolve_stage(used, plan.stages[0], 256)
    assert (resolved.lr, resolved.ema, resolved.optimizer, resolved.batch_size) == (0.5, 0.9, "sgd", RECIPES["slow"].stage["batch_size"])
    assert (plan.model.exp, plan.model.num_blocks, plan.model.dropout, plan.model.settings) == ("modern_tiny", 3, RECIPES["slow"].model["dropout"], None)
    assert plan.stages[0].length == ("samples", 9)
    used, plan = follow(raw, recipe="modern", exp="gpt2ish")
    assert (used.experiment(plan), plan.model.exp, plan.model.settings) == ("gpt2ish", "llamaish_tiny", {"rope_base": 500.0})
    assert follow({"$model": {"exp": "hf:somebody/model"}, **stage()}, recipe="modern")[1].model.exp == "hf:somebody/model"


def test_the_width_is_left_out_for_an_optimizer_of_which_the_rule_is_not_known():
    def width(raw, **typed):
        used, plan = follow(raw, recipe="modern", **typed)
        return resolve_stage(used, plan.stages[0], 256).lr_width

    rules = {"$optimizer": [{"match": "head.*", "kind": "sgd"}], **stage()}
    assert [width(stage(), optimizer=name) for name in ("sgd", "adafactor", "torch.optim:NAdam")] == [0, 0, 0]
    assert width(rules) == 0
    assert width(stage()) == width(stage(), optimizer="adamw") == RECIPES["modern"].stage["lr_width"]
    assert width(stage(), optimizer="sgd", lr_width=128) == 128  # what is typed is refused, later


def test_the_average_is_left_out_for_an_optimizer_that_keeps_its_own_and_the_banner_says_so():
    rules = {"$optimizer": [{"match": "head.*", "kind": "schedulefree"}], **stage()}
    for raw, typed in ((stage(), {"optimizer": "schedulefree"}), (rules, {})):
        used, plan = follow(raw, recipe="slow", **typed)
        assert used.ema == 0
        said = recipe_in_words(used, plan, "modern", {"dropout": 0.0})
        assert f"; left out, as the optimizer keeps an average of its own: ema {RECIPES['slow'].ema:g}" in said
    assert follow(stage(), recipe="slow", optimizer="schedulefree", ema=0.5)[0].ema == 0.5  # what is typed is refused, later
    used, plan = follow(stage(), recipe="slow", ema=0.0)
    assert "keeps an average" not in recipe_in_words(used, plan, "modern", {"dropout": 0.0})


def test_without_a_recipe_nothing_changes():
    plan, used = load(stage(lr=1.0)), settings(lr=0.1)
    assert follow_recipe(used, plan) == (used, plan)
    assert keep_written(plan, {}, {}) is plan
    assert recipe_in_words(used, plan, "gpt2ish", {}) is None


def test_a_recipe_that_does_not_go_with_a_stage_is_refused_in_a_line():
    with pytest.raises(UserError) as refused:
        follow(stage(validation=0), recipe="slow")
    assert len(refused.value.faults) == 1
    assert refused.value.faults[0].startswith("--recipe slow, key 'stages[0].early_stopping': found it beside a validation fraction of 0")


def test_a_run_that_goes_on_keeps_what_was_written_though_the_table_has_changed(monkeypatch):
    raw = {"one": {"dataset": "wikitext", "lr": 1.0}, "two": {"dataset": "wikitext", "lr": 2.0}}
    _, begun = follow(raw, recipe="modern")
    changed = RECIPES["modern"]._replace(family="gpt2ish", stage={**RECIPES["modern"].stage, "lr": 0.25, "batch_size": 99})
    monkeypatch.setitem(RECIPES, "modern", changed)
    stored = json.loads(json.dumps(begun.to_json()))
    for typed in ({}, {"recipe": "modern"}):
        _, plan = follow_recipe(settings(**typed), load({**raw, "three": {"dataset": "wikitext"}}))
        kept = keep_written(plan, {"recipe": "modern"}, stored)
        assert kept.stages[:2] == begun.stages
        assert kept.model == begun.model


def test_lengths_of_the_plan_may_change_beside_those_of_a_recipe():
    raw = {"one": {"dataset": "wikitext"}, "two": {"dataset": "wikitext", "samples": 5}}
    stored = json.loads(json.dumps(follow(raw, recipe="slow")[1].to_json()))
    _, plan = follow({"one": {"dataset": "wikitext"}, "two": {"dataset": "wikitext", "samples": 5000}}, recipe=None)
    assert [stage.length for stage in keep_written(plan, {"recipe": "slow"}, stored).stages] == [("epochs", RECIPES["slow"].epochs), ("samples", 5000)]


@pytest.mark.parametrize("name", RECIPES)
def test_the_warmup_is_that_of_the_recipe(name):
    used, plan = follow(stage(warmup=0.3), recipe=name)
    resolved = resolve_stage(used, plan.stages[0], 256)
    assert resolved.warmup == RECIPES[name].stage["warmup"]


def test_the_banner_says_what_and_why():
    used, plan = follow(stage(), recipe="slow", lr=0.5)
    said = recipe_in_words(used, plan, "modern", {"dropout": plan.model.dropout})
    assert said.startswith(f"slow: {RECIPES['slow'].why}; exp modern, dropout {RECIPES['slow'].model['dropout']}, optimizer muon, lr_width 256, "
                           "lr_schedule linear from 0.1")
    assert f"ema {RECIPES['slow'].ema}" in said
    assert "epochs" in said
    assert said.endswith("; typed: lr 0.5")
