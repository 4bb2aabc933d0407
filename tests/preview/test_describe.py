"""`--describe`: the model that a run would train."""
import os
from pathlib import Path

import pytest
from helpers import sentences, train_plan, write_plan, write_rows

from lmplay.data import stage
from lmplay.plan.names import OPTIMIZERS, Member, OptimizerRow
from lmplay.train.__main__ import main

SMALL = ["--embed-dim", "16", "--num-heads", "2", "--device", "cpu", "--training-plan", "plan.json"]
# Parameters of a block: 12 matrices of 16 x 16 and 13 vectors of 16; of all: with embeddings of 257 tokens (also the head's) and 48 positions, and a norm.
BLOCK = 12 * 16 * 16 + 13 * 16
TOTAL = BLOCK + (257 + 48 + 2) * 16


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """The command line of a small run in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(30)])
    write_plan(tmp_path, {"$model": {"num_blocks": 1, "context_len": 48}, "$tokenizer": "bytes", "$defaults": {"batch_size": 5},
                          "one": {"dataset": "rows.jsonl", "batch_size": 6}, "two": {"dataset": "rows.jsonl", "context_len": 40}})
    return SMALL


def describe(capsys, arguments, *more):
    """Give what is printed, line by line, as words."""
    capsys.readouterr()
    assert main([*arguments, *map(str, more), "--describe"]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_parameters_and_steps_are_counted(arguments, capsys):
    lines = describe(capsys, arguments)
    assert ["all", f"{TOTAL:,}"] in lines
    assert ["blocks", f"{BLOCK:,}", f"{BLOCK / TOTAL:.1%}"] in lines
    assert any(" ".join(line).startswith("one: 6 pieces of at most 48 tokens in 2 mini-batches, at most 288 tokens") for line in lines)
    assert any(" ".join(line).startswith("two: 5 pieces of at most 40 tokens in 2 mini-batches, at most 200 tokens") for line in lines)


def test_memory_is_that_of_the_optimizer(arguments, capsys, monkeypatch):
    two = OptimizerRow("two", 0.0, (Member("torch.optim:AdamW", {}, (), 2, "matrices"), Member("torch.optim:SGD", {"momentum": 0.9}, (), 1, "others")))
    monkeypatch.setitem(OPTIMIZERS, "two", two)
    wide = [*arguments, "--embed-dim", "512"]
    matrices, total = 12 * 512 * 512, 12 * 512 * 512 + 13 * 512 + (257 + 48 + 2) * 512
    for name, copies in (("adamw", 2 * total), ("sgd", total), ("two", total + matrices)):
        lines = describe(capsys, wide, "--optimizer", name)
        assert ["weights", f"{4 * total / 2**20:,.1f}", "MiB"] in lines
        assert ["state", "of", name, f"{4 * copies / 2**20:,.1f}", "MiB"] in lines


def test_each_optimizer_that_a_stage_names_has_its_state(arguments, capsys):
    write_plan(Path.cwd(), {"$model": {"num_blocks": 1, "context_len": 48}, "$tokenizer": "bytes", "one": {"dataset": "rows.jsonl", "optimizer": "sgd"},
                            "two": {"dataset": "rows.jsonl", "optimizer": "adamw"}})
    states = {line[2]: float(line[3].replace(",", "")) for line in describe(capsys, arguments, "--optimizer-warmup-steps", 1) if line[:2] == ["state", "of"]}
    assert list(states) == ["sgd", "adamw"]
    assert states["sgd"] < states["adamw"]
    assert [line[2] for line in describe(capsys, arguments, "--optimizer", "sgd") if line[:2] == ["state", "of"]] == ["sgd"]


def test_no_data_is_opened(arguments, capsys, monkeypatch, tmp_path):
    def fail(*_):
        raise AssertionError("a source is opened")

    monkeypatch.setattr(stage, "open_source", fail)
    assert "vocabulary 300" in " ".join(word for line in describe(capsys, arguments, "--tokenizer", "train:300") for word in line)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "rows.jsonl"]


def test_the_model_is_that_which_a_run_would_go_on_with(arguments, capsys):
    assert main([*arguments, "--optimizer", "sgd", "--num-blocks", "2", "--save-interval", "10"]) == 0
    file = "out_gpt/gpt2ish_model"

    def where(*more) -> str:
        lines = describe(capsys, arguments, *more)
        assert any(line[:3] == ["state", "of", "sgd"] for line in lines)
        assert ["all", f"{TOTAL + BLOCK:,}"] in lines
        return next(line[-1] for line in lines if line[:1] == ["experiment"])

    assert where() == f"{file}.lmp"  # a plan that is done is still described
    assert where("--model", "new.lmp", "--resume", f"{file}.one.lmp") == f"{file}.one.lmp"
    with open(f"{file}.lmp", "wb") as newest:
        newest.write(b"damaged")
    assert where() != f"{file}.lmp"
    assert main([*arguments, "--optimizer", "adamw", "--describe"]) == 2
    assert "--optimizer adamw is given" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_described_by_the_state_before(two_stages, capsys):
    train_plan(capsys, "--save-interval", 10, "--max-steps", 8, "--optimizer", "sgd", code=75)
    os.truncate("out_gpt/gpt2ish_model.lmp", 1000)
    text = train_plan(capsys, "--describe")
    assert "as in out_gpt/gpt2ish_model.prev-1.lmp" in text
    assert "state of sgd" in text
    assert "was trained with --optimizer sgd" in train_plan(capsys, "--describe", "--optimizer", "adam", code=2)
    assert "state of adam" in train_plan(capsys, "--describe", "--optimizer", "adam", "--ignore-optimizer")
