"""Whole runs of several processes, and the comparison of what they leave with what one leaves."""
import json
from pathlib import Path

import pytest
import several
import torch
import warm
from helpers import ENVIRONMENT, TINY, differences, load, sentences, write_plan, write_rows

FLAGS = [*TINY, "--training-plan", "plan.json", "--dropout", "0", "--validation-interval", "12", "--batch-size", "5"]
MODEL = "gpt2ish_model.lmp"
# Sums in float32 come in another order; the spread of losses is a difference of large numbers; the rest depends on the clock or on the run.
LOOSE = ("grad_norm", "standard_error", "perplexity", "best.floor", "loss_squares", "loss_by_tokens")
ASIDE = ("clock", "seconds", "settings", "versions", "room", "listeners")


def write_data(folder):
    write_rows(folder / "rows.jsonl", [{"text": sentences(1 + i % 7)} for i in range(60)])
    write_rows(folder / "more.jsonl", [{"text": sentences(1 + i % 3, "dog")} for i in range(60)])
    write_plan(folder, {"one": {"dataset": ["rows.jsonl", "more.jsonl"], "samples": 22},
                          "two": {"dataset": "rows.jsonl", "samples": 9, "evaluate": {"set": {"dataset": "more.jsonl"}}}})


def train(size, out, *arguments, code=0, **options):
    codes, outputs, complaints = several.train(size, *FLAGS, "--out-dir", out, *arguments, **options)
    assert codes == [code] * size, (outputs, complaints)
    assert not any(outputs[1:]), outputs
    assert not any(complaints[1:]), complaints
    return outputs[0] + complaints[0]


def numbers(value, aside=ASIDE, where=""):
    """List all numbers of a nested value, by their places."""
    if any(part in where for part in aside):
        return {}
    if isinstance(value, dict):
        return {place: found for key, part in value.items() for place, found in numbers(part, aside, f"{where}.{key}").items()}
    if isinstance(value, (list, tuple)):
        return {place: found for number, part in enumerate(value) for place, found in numbers(part, aside, f"{where}.{number}").items()}
    return {where: value} if not isinstance(value, torch.Tensor) else {}


def assert_alike(left, right, weights=1e-5, aside=()):
    """Compare the states and statistics of two runs: samples and counts exactly, losses to 1e-6, weights as float32 allows.

    :param aside: words in the names of figures that may differ.
    """
    one, two = (load(Path(folder) / MODEL) for folder in (left, right))
    for key in one["model"]["state"]:
        torch.testing.assert_close(one["model"]["state"][key], two["model"]["state"][key], rtol=1e-4, atol=weights)
    assert not differences(one["curriculum"], two["curriculum"]) or weights > 1e-5 or _only_losses(one["curriculum"], two["curriculum"])
    assert torch.equal(one["runner"]["state"]["random"]["torch"], two["runner"]["state"]["random"]["torch"])
    mine, theirs = (numbers(state["runner"]["state"], (*ASIDE, *aside)) for state in (one, two))
    assert mine.keys() == theirs.keys()
    for place, value in mine.items():
        tolerance = 1e-3 if any(part in place for part in LOOSE) else 1e-6
        assert theirs[place] == (pytest.approx(value, rel=tolerance) if isinstance(value, float) else value), place


def _only_losses(one, two):
    return all("loss" in line for line in differences(one, two))


PATCH = """
import os, sys, signal, time
from lmplay.engine import batches, evaluate, loop, save, stage, step
rank = int(os.environ["RANK"])
steps = [0]
original = stage.train_step
def train_step(*arguments, **options):
    steps[0] += 1
    {at_step}
    found = original(*arguments, **options)
    {after_step}
    return found
stage.train_step = train_step
{more}
from lmplay.train.__main__ import main
sys.exit(main())
"""


RUNS = """
import json, os, sys
from lmplay.train.__main__ import main
for number, flags in enumerate(json.loads(sys.argv[1])):
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)  # as if torchrun had started them again
    if code := main(flags):
        sys.exit(f"{flags} has ended with {code}")
"""


def train_in_turn(size, runs, **options):
    """Do one run after the other in the same processes; `runs` has the flags of each."""
    command = ["-c", RUNS, json.dumps([[*map(str, (*FLAGS, *flags))] for flags in runs])]
    if size == 1:
        done = warm.run(command, env=ENVIRONMENT, **options)
        assert done.returncode == 0, done.stderr
        return
    codes, outputs, complaints = several.run(size, *command, **options)
    assert codes == [0] * size, (outputs, complaints)


def start(size, out, *arguments, at_step="pass", after_step="pass", more="", **environment):
    return several.start(size, ["-c", PATCH.format(at_step=at_step, after_step=after_step, more=more), *FLAGS, "--out-dir", out, *arguments], **environment)


def steps_of(out):
    return load(Path(out) / MODEL)["runner"]["state"]["stats"]["total_train_steps"]
