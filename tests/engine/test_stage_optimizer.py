"""Optimizers, warm-ups and lengths of a stage's own."""
import math
from pathlib import Path

import pytest
import torch
from helpers import compare_runs, load, stop_at, train_plan, weights, write_plan

MODEL = Path("out_gpt/gpt2ish_model.lmp")


def groups():
    return load(MODEL)["optimizers"]["state"]["main"]["param_groups"]


def rates():
    return load(MODEL)["runner"]["state"]["stats"]["train"]["rows"]["lr"]


def test_a_stage_may_count_steps(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 9, "lr_schedule": "linear", "warmup": 0, "lr": 1e-3},
                        "two": {"dataset": "rows.jsonl", "steps": "0.003k"}})
    text = train_plan(capsys)
    assert "stage 1/2   one (to do): 9 steps of" in text
    stats = load(MODEL)["runner"]["state"]["step_stats"]
    assert [stats[name]["total_train_steps"] for name in ("one", "two")] == [9, 3]
    assert rates()[:9] == pytest.approx([1e-3 * (1 - step / 9) for step in range(9)])


def test_a_stage_of_steps_with_an_optimizer_of_its_own_resumes_exactly(corpus, capsys, monkeypatch):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 7, "warmup": 0.5}, "two": {
        "dataset": "rows.jsonl", "steps": 6, "optimizer": {"name": "sgd", "momentum": 0.5}, "lr": 0.1}, "three": {"dataset": "rows.jsonl", "steps": 5}})
    flags = ["--dropout", "0.1", "--validation-interval", 10]
    train_plan(capsys, *flags, "--out-dir", "whole")
    stop_at(monkeypatch, [3, 8, 10, 16])
    for _ in range(4):
        train_plan(capsys, *flags, "--out-dir", "stopped", code=130)
    train_plan(capsys, *flags, "--out-dir", "stopped")
    assert compare_runs(corpus / "whole", corpus / "stopped") == []
    kinds = [load(corpus / "whole" / f"gpt2ish_model.{name}.lmp")["optimizers"] for name in ("one", "two", "three")]
    assert [found["state_args"]["main"]["optimizer"] for found in kinds] == ["adamw", "sgd", "adamw"]
    assert kinds[1]["state"]["main"]["param_groups"][0]["momentum"] == 0.5
    assert "exp_avg" in kinds[2]["state"]["main"]["state"][0]
    assert kinds[2]["state"]["main"]["state"][0]["step"] == 5  # it begins without state


@pytest.mark.parametrize(("warmup", "flags", "expected"), [
    (4, [], [0.1, 0.325, 0.55, 0.775, 1, 1]), (0, [], [1] * 6), (0.5, [], [0.1, 0.28, 0.46, 0.64, 0.82, 1]),
    (4, ["--optimizer-warmup-steps", 2], [0.1, 0.55, 1, 1]), (4, ["--disable-optimizer-warmup"], [1, 1]),
    (4, ["--optimizer-warmup-fraction", 0.5], [0.5, 0.625])])
def test_a_stage_warms_up_as_it_says(corpus, capsys, warmup, flags, expected):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 10, "warmup": warmup, "lr": 1e-4}})
    train_plan(capsys, *flags)
    assert rates()[:len(expected)] == pytest.approx([1e-4 * share for share in expected])
    assert rates()[9] == 1e-4


def test_a_warm_up_of_a_fraction_begins_anew_with_a_fresh_optimizer(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 12, "warmup": 0.25, "lr": 1e-4}})
    train_plan(capsys, "--max-steps", 5, code=75)
    train_plan(capsys, "--ignore-optimizer")
    assert rates()[5:9] == pytest.approx([1e-5, 4e-5, 7e-5, 1e-4])


def test_settings_of_the_optimizer_by_flag_and_plan(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 4, "optimizer": {"name": "adamw", "betas": [0.8, 0.9]}},
                        "two": {"dataset": "rows.jsonl", "steps": 2}})
    train_plan(capsys, "--eps", "1e-6", "--max-steps", 2, code=75)
    assert [(tuple(group["betas"]), group["eps"]) for group in groups()] == [((0.8, 0.9), 1e-6)] * 2
    text = train_plan(capsys, "--betas", "0.5,0.6", "--max-steps", 1, code=75)
    assert "betas (0.8, 0.9) -> (0.5, 0.6) in stage 'one'" in text
    assert "eps 1e-06 -> default in stages 'one', 'two'" in text
    assert [(tuple(group["betas"]), group["eps"]) for group in groups()] == [((0.5, 0.6), 1e-8)] * 2
    text = train_plan(capsys)
    assert tuple(groups()[0]["betas"]) == (0.9, 0.999)
    assert "stage 'one' is trained with adamw, which takes betas and eps" in train_plan(capsys, "--momentum", "0.5", "--reset-history", code=2)


def test_a_step_takes_the_settings_of_the_optimizer(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 2, "warmup": 0}})

    def reached(steps, lr, momentum):
        flags = ["--optimizer", "sgd", "--lr", lr, "--momentum", momentum, "--weight-decay", 0, "--max-steps", steps]
        train_plan(capsys, *flags, "--reset-history", code=75)
        return weights()["blocks.0.mlp.expansion.weight"]

    start, first, plain, pushed = reached(1, 1e-30, 0), reached(1, 0.5, 0.5), reached(2, 0.5, 0), reached(2, 0.5, 0.5)
    torch.testing.assert_close(pushed - plain, 0.5 * (first - start), atol=1e-6, rtol=1e-3)


def test_an_optimizer_that_was_typed_holds_for_the_stage_that_has_begun(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 4, "optimizer": "adam"}, "two": {"dataset": "rows.jsonl", "steps": 2, "optimizer": "adam"}})
    train_plan(capsys, "--optimizer", "sgd", "--max-steps", 2, code=75)
    assert "--optimizer sgd" in train_plan(capsys, "--optimizer", "adagrad", code=2)
    text = train_plan(capsys, "--max-steps", 2, code=75)
    assert "optimizer sgd -> adam in stage 'two'" in text
    assert load(MODEL)["optimizers"]["state_args"]["main"]["optimizer"] == "sgd"
    train_plan(capsys)
    assert load(MODEL)["optimizers"]["state_args"]["main"]["optimizer"] == "adam"


@pytest.mark.parametrize(("flags", "precision"), [
    (["--amp"], "mixed bfloat16"), (["--amp", "bfloat16"], "mixed bfloat16"), (["--amp", "float16"], "mixed float16"), (["--amp", "--no-amp"], "float32"),
    (["--amp", "off"], "float32"), ([], "float32")])
def test_mixed_precision_of_a_type(corpus, capsys, flags, precision):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 3}})
    text = train_plan(capsys, *flags)
    assert f"device      cpu, {precision}," in text
    content = load(MODEL)["runner"]["state"]
    assert bool(content["scaler"]) == (precision == "mixed float16")
    assert math.isfinite(content["stats"]["train_loss_total"])


def test_short_numbers_in_flags(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 3, "batch_size": "0.004k"}})
    assert "batch 4," in train_plan(capsys, "--mini-batch-tokens", "1k", "--batch-size", "0.004k")
    assert "allowed is a whole number from 1" in train_plan(capsys, "--batch-size", "4q", code=2)
