"""Short runs, what they say, and what their log file holds."""
import re

from helpers import TINY

from lmplay.train.__main__ import main

LOG = "out/gpt2ish_model.log"


def flags(*more):
    return [*TINY, "--training-plan", "plan.json", "--batch-size", "4", "--save-interval", "16", "--validation-interval", "8", "--out-dir", "out", *more]


def train(capsys, *more, code=0):
    assert main(flags(*more)) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err or code == 1
    return captured.out


def log_lines(folder):
    lines = (folder / LOG).read_text(encoding="utf-8").split("\n")[:-1]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d  ", line) for line in lines)
    return [line[27:] for line in lines]
