"""Early stopping: which validation was the best, and when a stage ends."""
from pathlib import Path

from helpers import load, train, write_plan


def test_a_stage_ends_early_when_validation_gets_no_better(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "epochs": 50, "lr": 1e-9, "early_stopping": {"patience": 3, "min_delta": 0.5}}})
    text = train(capsys, "--training-plan", "plan.json", "--validation-interval", "10")
    assert "ended early" in text
    assert load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["total_train_samples"] < 60
