"""Taking note of steps."""
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

from helpers import train, write_plan

from lmplay.engine import record


def test_a_clock_that_runs_backwards_takes_no_time_away(corpus, capsys, monkeypatch):
    seconds = itertools.count(1000, -7)
    monkeypatch.setattr(record, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    assert " tokens in 0 s of training" in train(capsys, "--training-plan", "plan.json")
    clock = json.loads(Path("out_gpt/gpt2ish_model_train_stats.json").read_text())["clock"]
    assert set(clock["seconds"]) == {0.0}
