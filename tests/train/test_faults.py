"""`--check-plan` tells all that is wrong in one run: each fault once, and nothing that only follows from another one."""
import json

import pytest
from helpers import sentences, write_rows
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lmplay.train.__main__ import main

FLAGS = {"--exp": "gpt2ish_tiny", "--num-heads": "2", "--tokenizer": "bytes", "--device": "cpu", "--lr": "0.01"}
RIGHT = {
    "$model": {"embed_dim": 16, "num_blocks": 1, "context_len": 48},
    "$defaults": {"optimizer": "sgd", "lr_schedule": "cosine", "samples": 100},
    "one": {"dataset": ["rows.jsonl", {"path": "rows.csv", "columns": {"text": "words"}}], "freeze": ["blocks.*"], "context_len": 32},
    "two": {"dataset": {"path": "rows.jsonl", "columns": {"text": "text"}}, "evaluate": {"set": {"dataset": "rows.csv"}}, "optimizer": "adamw"},
    "three": {"dataset": "builtin:tales", "steps": 10, "early_stopping": {"patience": 3}, "optimizer": {"name": "sgd", "momentum": 0.5}},
}
# The change (a flag, or the keys down to a value of the plan), what it is set to, and what the line that tells of it says.
FAULTS = {
    "experiment": ("--exp", "gpt2isch_tiny", "--exp gpt2isch_tiny"),
    "heads": ("--num-heads", "7", "--num-heads 7"),
    "no heads": ("--num-heads", "0", "--num-heads 0"),
    "device": ("--device", "cuda:99", "cuda:99"),
    "lr": ("--lr", "fast", "--lr fast"),
    "tokenizer": ("--tokenizer", "train:12", "train:12"),
    "momentum": ("--momentum", "0.9", "stage 'two' is trained with adamw"),
    "width": (("$model", "embed_dim"), "wide", "'$model.embed_dim'"),
    "blocks": (("$model", "num_blocks"), 0, "'$model.num_blocks'"),
    "context": (("$model", "context_len"), "1", "'$model.context_len'"),
    "schedule": (("$defaults", "lr_schedule"), "cosin", "'$defaults.lr_schedule'"),
    "no plan key": ("$defualts", {"lr": 1}, "'$defualts'"),
    "length": (("$defaults", "samples"), 0, "'$defaults.samples'"),
    "file": (("one", "dataset", 0), "missing.jsonl", "missing.jsonl"),
    "column": (("one", "dataset", 1, "columns", "text"), "nothere", "rows.csv: \"columns\" maps text to 'nothere'"),
    "freeze": (("one", "freeze"), ["layers.*"], "layers.*"),
    "too long": (("one", "context_len"), 64, "context_len 64 is more"),
    "optimizer": (("one", "optimizer"), "sdg", "stage 'one', key 'optimizer'"),
    "rare column": (("two", "dataset", "columns", "text"), "nothere", "which none of the 200 rows looked at has"),
    "misspelt": (("two", "batchsize"), 4, "'batchsize'"),
    "set": (("two", "evaluate", "set", "dataset"), "gone.csv", "gone.csv"),
    "patience": (("three", "early_stopping"), {}, "'early_stopping.patience'"),
    "steps": (("three", "steps"), 0, "stage 'three', key 'steps'"),
    "share": (("three", "optimizer", "momentum"), 2, "'optimizer.momentum'"),
    "data": (("three", "dataset"), "builtin:tale", "builtin:tale"),
    "stage": ("bad name", {"dataset": "rows.jsonl"}, "'bad name'"),
    "no stage": ("defaults", {"lr": 0.1}, "key 'defaults'"),
}
# What is not found beside another fault, because it is not known what is meant: with any number of blocks, or heads, it might be right.
HIDDEN = {"freeze": {"blocks"}, "heads": {"no heads", "width", "blocks"}, "too long": {"context"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults")
    write_rows(path / "rows.jsonl", [{"text": sentences(3)}] * 300)
    (path / "rows.csv").write_text("words,text\n" + "one two,three\n" * 300)
    return path


def told(folder, capsys, chosen) -> list[str]:
    plan, flags = json.loads(json.dumps(RIGHT)), dict(FLAGS)
    for name in chosen:
        where, value, _ = FAULTS[name]
        if isinstance(where, str) and where.startswith("--"):
            flags[where] = value
            continue
        *keys, last = (where,) if isinstance(where, str) else where
        part = plan
        for key in keys:
            part = part[key]
        part[last] = value
    (folder / "plan.json").write_text(json.dumps(plan))
    flags |= {"--training-plan": str(folder / "plan.json"), "--out-dir": str(folder / "out")}
    code = main([*(word for flag in flags.items() for word in flag), "--check-plan"])
    lines = capsys.readouterr().err.splitlines()
    assert code == (2 if chosen else 0), lines
    return [line for line in lines if line.startswith("lmp_trainer: ")]


def check(folder, capsys, chosen):
    expected = [name for name in chosen if not HIDDEN.get(name, set()) & {*chosen}]
    lines = told(folder, capsys, chosen)
    for name in expected:
        assert sum(FAULTS[name][2] in line for line in lines) == 1, (name, lines)
    assert len(lines) == len(expected), (expected, lines)


def test_nothing_is_wrong_with_what_the_faults_are_put_into(folder, capsys):
    check(folder, capsys, [])


def test_all_faults_are_told_at_once(folder, capsys):
    check(folder, capsys, [name for name in FAULTS if name not in ("no heads", "width", "blocks", "context")])


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(st.sampled_from([*FAULTS]), min_size=1, max_size=6, unique=True).filter(lambda names: not {"heads", "no heads"} <= {*names}))
def test_each_fault_is_told_once_and_nothing_that_follows_from_it(folder, capsys, chosen):
    check(folder, capsys, chosen)
