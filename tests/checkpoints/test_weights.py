"""Weights alone: they start a run and resume none."""
import os
import shutil
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("target", ["out_gpt/../out_gpt/gpt2ish_model.lmp", "linked/gpt2ish_model.lmp", "link.lmp", "hard.lmp", "out_gpt/gpt2ish_model.two.lmp",
                                    "out_gpt/gpt2ish_model.best.lmp", "out_gpt/gpt2ish_model.prev-1.lmp", "other/gpt2ish_model.lmp"])
@pytest.mark.parametrize("done", [False, True])
def test_weights_alone_never_replace_the_state_of_a_run(two_stages, capsys, target, done):
    flags = [] if done else ["--max-steps", 3]
    train_plan(capsys, "--save-interval", 5, *flags, code=0 if done else 75)
    out = Path("out_gpt")
    Path("linked").symlink_to(out)
    Path("link.lmp").symlink_to(out / "gpt2ish_model.lmp")
    os.link(out / "gpt2ish_model.lmp", "hard.lmp")
    Path("other").mkdir()
    shutil.copy(out / "gpt2ish_model.lmp", "other")
    before = {path: path.read_bytes() for path in (*out.glob("*.lmp"), *Path().glob("*.lmp"), *Path("other").iterdir())}
    assert "is the model file itself" in (text := train_plan(capsys, "--save-weights-only", target, code=2)) or "is a file of a run" in text
    assert {path: path.read_bytes() for path in before} == before


def test_weights_may_lie_beside_the_model(two_stages, capsys):
    train_plan(capsys, "--save-weights-only", "out_gpt/gpt2ish_model.weights.lmp")
    train_plan(capsys, "--save-weights-only", "out_gpt/gpt2ish_model.weights.lmp")
