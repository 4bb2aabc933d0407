"""Weights alone: they start a run and resume none."""
from pathlib import Path

from helpers import load, train_plan


def test_weights_only_start_a_run_and_resume_none(two_stages, capsys):
    import torch

    train_plan(capsys, "--save-weights-only", "w/weights.lmp")
    weights, whole = load(Path("w/weights.lmp")), load(Path("out_gpt/gpt2ish_model.lmp"))
    assert set(weights) == {"format", "versions", "model"}
    assert all(torch.equal(weights["model"]["state"][key], value) for key, value in whole["model"]["state"].items())
    assert Path("w/weights.lmp").stat().st_size < Path("out_gpt/gpt2ish_model.lmp").stat().st_size / 2
    train_plan(capsys, "--initial-model", "w/weights.lmp", "--model", "second.lmp", "--max-steps", 1, code=75)
    assert "--initial-model" in train_plan(capsys, "--resume", "w/weights.lmp", "--model", "third.lmp", code=2)
    Path("w/weights.lmp").unlink()
    train_plan(capsys, "--save-weights-only", "w/weights.lmp")  # also when the plan has been done already
    assert Path("w/weights.lmp").exists()
    assert "model file itself" in train_plan(capsys, "--save-weights-only", "out_gpt/gpt2ish_model.lmp", code=2)
