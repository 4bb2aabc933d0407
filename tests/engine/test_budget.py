"""`--mini-batch-size auto`: measured by real steps that leave no trace, remembered, and the same for a run that goes on."""
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import TINY, compare_runs, differences, load, sentences, write_plan, write_rows

from lmplay.checkpoints.saver import Saver
from lmplay.engine import budget
from lmplay.exp.gpt2ish import GPT2ish
from lmplay.train.__main__ import main

MODEL = "gpt2ish_model.lmp"
FULL = 47  # tokens of a full piece


@pytest.fixture(autouse=True)
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1 + i % 5)} for i in range(60)])
    make_plan({"one": {"dataset": "rows.jsonl", "batch_size": 9, "epochs": 1}})


def make_plan(plan):
    write_plan(Path(), plan)


@pytest.fixture
def steady(monkeypatch):
    """A machine on which mini-batches of four pieces are the fastest, and how many pieces were timed; the steps are done nevertheless."""
    timed, seconds = [], budget._seconds

    def pretend(run, objective, batch, alone):
        seconds(run, objective, batch, alone)
        count = batch.n_slots // FULL
        timed.append(count)
        return {1: 1.0, 2: 1.2, 4: 2.0}.get(count, 0.5 * count)

    monkeypatch.setattr(budget, "_seconds", pretend)
    return timed


def train(capsys, out, *arguments, code=0, dropout=0.2):
    found = main([*TINY, "--dropout", str(dropout), "--training-plan", "plan.json", "--out-dir", out, "--validation-interval", "20", "--grad-clip", "1",
                  *map(str, arguments)])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured.out + captured.err


def test_it_ends_where_it_gets_no_faster_and_says_so(capsys, steady):
    text = train(capsys, "out", "--mini-batch-size", "auto")
    assert steady == [1, 2, 4, 8]
    assert "mini-batches of at most 192 tokens, the fastest of 48 (48 tokens/s), 96 (80 tokens/s), 192 (96 tokens/s), 384 (96 tokens/s)\n" in text
    assert load(Path("out", MODEL))["runner"]["state"]["room"]["tokens"] == 192


class Restless(GPT2ish):
    """A model that draws numbers of every kind and has a buffer that each forward pass changes."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, tokens, lengths=None):
        if self.training:
            self.passes += 1
            random.random(), np.random.rand()
        return super().forward(tokens, lengths=lengths)


@pytest.mark.parametrize("more", [(), ("--pack", "off", "--activation-checkpointing", "on"), ("--amp", "--data-workers", 0)])
def test_measuring_leaves_no_trace(capsys, monkeypatch, steady, more):
    """The run is bit for bit the one in which what was found is typed."""
    monkeypatch.setattr("lmplay.exp.gpt2ish.GPT2ish", Restless)
    train(capsys, "auto", "--mini-batch-size", "auto", *more)
    train(capsys, "typed", "--mini-batch-tokens", 192, *more)
    assert steady == [1, 2, 4, 8]
    lines = compare_runs(Path("auto"), Path("typed"))
    assert {line.split("room")[-1] for line in lines} == {": keys differ"}  # typed, nothing was found


def test_a_run_that_goes_on_has_the_same_token_budget_and_the_same_bits(capsys, steady):
    train(capsys, "whole", "--mini-batch-size", "auto")
    text = train(capsys, "parts", "--mini-batch-size", "auto", "--max-steps", 2, code=75)
    assert "the fastest of" in text
    del steady[:]
    Path("parts", budget.FILE).unlink()
    text = train(capsys, "parts", "--mini-batch-size", "auto")
    assert "mini-batches of at most" not in text
    assert not steady
    assert compare_runs(Path("whole"), Path("parts")) == []


def test_what_was_found_is_remembered_as_long_as_nothing_it_depends_on_changes(capsys, steady):
    train(capsys, "out", "--mini-batch-size", "auto", "--max-steps", 1, code=75)
    del steady[:]
    text = train(capsys, "out", "--mini-batch-size", "auto", "--model", "second.lmp", "--lr", 0.1, "--max-steps", 1, code=75)
    assert f"mini-batches of at most 192 tokens, as measured before (out/{budget.FILE})" in text
    assert not steady
    for changed in (["--amp"], ["--batch-size", 4], ["--activation-checkpointing", "on"], ["--pack", "off"], ["--optimizer", "sgd"]):
        train(capsys, "out", "--mini-batch-size", "auto", "--model", f"{changed[0][2:]}.lmp", "--max-steps", 1, *changed, code=75)
        assert steady, changed
        del steady[:]
    assert len(json.loads(Path("out", budget.FILE).read_text())) == 6


@pytest.mark.parametrize("content", ["", "{}", "[1]", '[{"tokens": "many", "of": {}}]', '[{"tokens": 5}]'])
def test_a_damaged_file_is_measured_anew_and_replaced(capsys, steady, content):
    Path("out").mkdir()
    Path("out", budget.FILE).write_text(content)
    train(capsys, "out", "--mini-batch-size", "auto", "--max-steps", 1, code=75)
    assert steady
    [entry] = json.loads(Path("out", budget.FILE).read_text())
    assert entry["tokens"] == 192


def test_stages_of_other_sizes_are_measured_by_themselves(capsys, steady):
    make_plan({"one": {"dataset": "rows.jsonl", "batch_size": 2, "samples": 4}, "two": {"dataset": "rows.jsonl", "batch_size": 3, "samples": 6}})
    train(capsys, "out", "--mini-batch-size", "auto")
    assert steady == [1, 2, 1, 2, 3]
    assert sorted(entry["tokens"] for entry in json.loads(Path("out", budget.FILE).read_text())) == [96, 144]


def test_a_token_budget_that_does_not_fit_ends_the_search(capsys, monkeypatch):
    monkeypatch.setattr(budget, "GAIN", 0)  # whatever the clock says, larger is faster
    forward = GPT2ish.forward

    def limited(self, tokens, lengths=None):
        if tokens.numel() > 5 * FULL:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, tokens, lengths=lengths)

    monkeypatch.setattr(GPT2ish, "forward", limited)
    text = train(capsys, "out", "--mini-batch-size", "auto", "--max-steps", 1, code=75)
    assert "mini-batches of at most 192 tokens" in text
    assert "384" not in text
    assert "out of memory" not in text


def test_a_best_state_on_the_gpu_makes_way_before_mini_batches_get_smaller(capsys, monkeypatch):
    kept, forward = [True], GPT2ish.forward

    def limited(self, tokens, lengths=None):
        if kept and self.training:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, tokens, lengths=lengths)

    monkeypatch.setattr(GPT2ish, "forward", limited)
    monkeypatch.setattr(Saver, "best_is_on_gpu", property(lambda self: bool(kept)))
    monkeypatch.setattr(Saver, "release_best", lambda self: kept.clear())
    text = train(capsys, "out", "--mini-batch-size", 2, "--max-steps", 1, code=75)
    assert "out of memory: the best state, which was kept on the GPU, is on the CPU now; the current mini-batches are done again" in text
    assert "from here on" not in text


def test_memory_that_would_run_out_on_a_cpu_is_not_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(budget, "GAIN", 0)
    monkeypatch.setattr(budget, "memory_in_use", lambda device: 1000)
    monkeypatch.setattr(budget, "memory_left", lambda device: 1000)
    taken = iter([1000, 1100, 1300, 1500])  # before it measures, and after each size
    monkeypatch.setattr(budget, "peak_memory", lambda device: next(taken))  # twice 500 are more than the share of what is left
    text = train(capsys, "out", "--mini-batch-size", "auto", "--max-steps", 1, code=75)
    assert "mini-batches of at most 192 tokens" in text
    assert next(taken, None) is None


def test_where_not_even_one_piece_fits_training_says_so(capsys, monkeypatch):
    def fail(self, tokens, lengths=None):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(GPT2ish, "forward", fail)
    text = train(capsys, "out", "--mini-batch-size", "auto", code=1)
    assert "the fastest of none that fit" in text
    assert "out of memory with one piece" in text


@pytest.mark.parametrize("speeds", [{1: 10.0}, {1: 10.0, 2: 10.2}, {1: 10.0, 2: 12.0}, {1: 10.0, 2: 12.0, 4: 12.1}])
def test_a_token_budget_is_no_larger_than_it_has_to_be(speeds):
    found = budget._fastest(speeds)
    assert speeds[found] * 1.05 > max(speeds.values())
    assert all(speeds[smaller] * 1.02 < speeds[found] for smaller in speeds if smaller < found)


@pytest.mark.slow
def test_measuring_leaves_no_trace_in_compiled_code(capsys, steady):
    flags = ("--compile-model", "--compile-backend", "aot_eager", "--max-steps", 2)
    train(capsys, "auto", "--mini-batch-size", "auto", *flags, code=75)
    torch._dynamo.reset()
    train(capsys, "typed", "--mini-batch-tokens", 192, *flags, code=75)
    assert differences(*(load(Path(out, MODEL))["model"] for out in ("auto", "typed"))) == []
