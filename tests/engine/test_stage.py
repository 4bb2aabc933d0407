"""A stage at work: what it trains, with every optimizer and precision."""
import json
from pathlib import Path

import pytest
import torch
from helpers import train, weights, write_plan


def test_frozen_parameters_stay_and_the_others_move(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "freeze": ["*", "!final_norm.*"]}})
    train(capsys, "--training-plan", "plan.json", "--seed", 5, "--check-grads", "--optimizer", "sgd")
    moved = weights()
    train(capsys, "--training-plan", "plan.json", "--seed", 5, "--optimizer", "sgd", "--lr", "1e-30", "--reset-history")
    assert {key.split(".")[0] for key, value in weights().items() if not torch.equal(value, moved[key])} == {"final_norm"}


def test_check_grads_looks_at_the_gradients(corpus, capsys):
    assert "all there, none zero, all finite" in train(capsys, "--dataset", "rows.jsonl", "--check-grads")


def test_check_grads_names_frozen_parameters_at_the_first_step_of_each_run(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 4, "freeze": ["final_norm.*"]}, "two": {"dataset": "rows.jsonl", "steps": 2}})
    frozen = "gradients of stage one:\n  final_norm.weight: frozen, no gradient\n  final_norm.bias: frozen, no gradient\n"
    text = train(capsys, "--training-plan", "plan.json", "--check-grads", "--max-steps", 2, code=75)
    assert text.count("gradients of stage") == text.count(frozen) == 1
    text = train(capsys, "--training-plan", "plan.json", "--check-grads")  # in the middle of the stage
    assert (text.count(frozen), text.count("gradients of stage"), text.count("gradients of stage two:\n  all there, none zero, all finite")) == (1, 2, 1)
    assert "gradients of stage" not in train(capsys, "--training-plan", "plan.json", "--reset-history")


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd", "rmsprop"])
def test_every_optimizer_trains(corpus, capsys, optimizer):
    train(capsys, "--dataset", "rows.jsonl", "--optimizer", optimizer, "--lr", "0.01")
    losses = json.loads(Path("out_gpt/gpt2ish_model_train_stats.json").read_text())["columns"]["loss"]
    assert losses[-1] < losses[0]


def test_mixed_precision_trains(corpus, capsys):
    assert "mixed bfloat16" in train(capsys, "--dataset", "rows.jsonl", "--amp")
