"""A plan that reads two sources in turns, and runs of it."""
from pathlib import Path

from helpers import TINY, sentences, write_plan, write_rows

from lmplay.train.__main__ import main

FILE = Path("out_gpt/gpt2ish_model.lmp")


def make_plan(poisoned=(), batch_size=5, epochs=1):
    """Write the plan; rows of a.jsonl with these numbers are poisoned."""
    write_rows(Path("a.jsonl"), [{"text": sentences(1) + "#" * (i in poisoned)} for i in range(30)])
    write_rows(Path("b.jsonl"), [{"text": sentences(1, "dog")} for i in range(20)])
    return write_plan(Path(), {"one": {"dataset": ["a.jsonl", "b.jsonl"], "shuffle": False, "validation": 0, "epochs": epochs,
                                       "batch_size": batch_size}})


def train_on_two(capsys, *arguments, code=0):
    found = main([*TINY, "--mini-batch-size", "2", "--training-plan", "plan.json", *map(str, arguments)])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured.out + captured.err
