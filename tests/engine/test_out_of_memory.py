"""Memory that runs out: mini-batches are halved until they fit, with the same result."""
import json
from pathlib import Path

import pytest
import torch
from helpers import TINY, load, weights, write_plan
from two_sources import FILE, make_plan, train_on_two

from lmplay.engine import budget
from lmplay.exp.gpt2ish import GPT2ish
from lmplay.train.__main__ import main

pytestmark = pytest.mark.usefixtures("two_sources")
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
FULL = 12 * 27  # tokens in a mini-batch of 12 of these pieces


@pytest.fixture
def memory(monkeypatch):
    """A device with memory for N pieces at once, and how many it was given; what is measured before does not count."""
    forward, given = GPT2ish.forward, []
    monkeypatch.setattr(budget, "measure", lambda run, stage, grouping, objective: {FULL: 1.0})

    def limited(most, error=OUT_OF_MEMORY):
        def attempt(self, tokens):
            given.append(len(tokens))
            if len(tokens) > most:
                raise error
            return forward(self, tokens)

        monkeypatch.setattr(GPT2ish, "forward", attempt)
        return given

    return limited


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:127] . "
                         "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)")])
def test_auto_halves_until_it_fits_and_the_result_is_the_same(capsys, memory, error):
    make_plan(batch_size=12)
    train_on_two(capsys, "--mini-batch-size", 3, "--model", "plain.lmp", "--dropout", 0, "--pack", "off")
    given = memory(4, error)
    text = train_on_two(capsys, "--mini-batch-size", "auto", "--dropout", 0)
    assert f"out of memory with {FULL} tokens in a mini-batch: from here on {FULL // 2};" in text
    assert f"out of memory with {FULL // 2} tokens in a mini-batch: from here on {FULL // 4};" in text
    assert given[:3] == [12, 6, 3]
    assert max(given[2:]) == 3
    expected = weights("out_gpt/plain.lmp")
    for key, value in weights().items():
        assert torch.equal(value, expected[key])  # the same mini-batches: the same bits
    assert load(FILE)["runner"]["state"]["room"]["tokens"] == FULL // 4
    [remembered] = json.loads(Path("out_gpt", budget.FILE).read_text())
    assert remembered["tokens"] == FULL // 4


def test_memory_that_runs_out_half_way_leaves_no_trace(capsys, monkeypatch):
    """The random numbers and gradients of a try that failed in its second mini-batch are gone: the bits are those of a run that began smaller."""
    make_plan(batch_size=12)
    train_on_two(capsys, "--mini-batch-size", 3, "--model", "plain.lmp", "--dropout", 0.2, "--pack", "off")
    forward, given = GPT2ish.forward, []

    def attempt(self, tokens):
        given.append(len(tokens))
        hidden = forward(self, tokens)
        if given in ([12], [12, 6, 6]):
            raise OUT_OF_MEMORY
        return hidden

    monkeypatch.setattr(GPT2ish, "forward", attempt)
    monkeypatch.setattr(budget, "measure", lambda run, stage, grouping, objective: {FULL: 1.0})
    train_on_two(capsys, "--mini-batch-size", "auto", "--dropout", 0.2)
    assert given[:5] == [12, 6, 6, 3, 3]
    assert all(torch.equal(value, weights()[key]) for key, value in weights("out_gpt/plain.lmp").items())


def test_the_size_found_is_remembered(capsys, memory):
    make_plan(batch_size=12)
    given = memory(4)
    train_on_two(capsys, "--mini-batch-size", "auto")
    write_plan(Path(), {"one": json.loads(Path("plan.json").read_text())["one"], "two": {"dataset": "a.jsonl", "batch_size": 12}})
    given.clear()
    text = train_on_two(capsys, "--mini-batch-size", "auto")
    assert "out of memory" not in text
    assert max(given) == 3


def test_validation_halves_too(capsys, memory, monkeypatch):
    write_plan(Path(), {"one": {"dataset": "a.jsonl", "batch_size": 2, "validation": {"dataset": "b.jsonl"}}})
    training = []
    forward = GPT2ish.forward

    def attempt(self, tokens):
        if len(tokens) > 1 and not self.training:
            raise torch.OutOfMemoryError("out of memory")
        training.append(self.training)
        return forward(self, tokens)

    monkeypatch.setattr(GPT2ish, "forward", attempt)
    monkeypatch.setattr(budget, "measure", lambda run, stage, grouping, objective: {94: 1.0})
    assert "out of memory with 94 tokens in a mini-batch: from here on 47;" in train_on_two(capsys, "--mini-batch-size", "auto", "--validation-interval", 4)
    assert training[-1] is False
    assert training.count(True) > 25  # dropout is back after the validation that failed


def test_what_to_do_is_said_where_nothing_can_be_halved(capsys, memory):
    memory(0)
    text = train_on_two(capsys, "--mini-batch-size", "auto", code=1)
    assert "out of memory with one piece of up to 28 tokens" in text
    assert "--amp" in text
    assert "--mini-batch-size auto finds" not in text
    memory(1)
    assert "out of memory with 2 pieces of up to 48 tokens in a mini-batch; the last checkpoint is intact. What may help: --mini-batch-size auto" in \
        train_on_two(capsys, code=1)
    memory(0, RuntimeError("another error"))
    with pytest.raises(RuntimeError, match="another error"):
        main([*TINY, "--training-plan", "plan.json", "--mini-batch-size", "auto"])
