"""Whole runs on which something goes wrong: losses that are no numbers, gradients that overflow, memory that runs out."""
import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from helpers import TINY, compare_runs, load, sentences, write_plan, write_rows

from lmplay.device.runtime import Runtime
from lmplay.engine import budget, nonfinite, stage
from lmplay.exp.gpt2ish import GPT2ish
from lmplay.train.__main__ import main

POISON = ord("#")
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
FILE = Path("out_gpt/gpt2ish_model.lmp")
ROOM = 12 * 27  # of 12 pieces of the corpus below


@pytest.fixture(autouse=True)
def corpus(tmp_path, monkeypatch):
    """Two sources of short rows; a plan of one stage that reads them in turns, in order, with all rows to train on."""
    monkeypatch.chdir(tmp_path)
    return make_plan()


def make_plan(poisoned=(), batch_size=5, epochs=1):
    """Write the plan; rows of a.jsonl with these numbers are poisoned."""
    write_rows(Path("a.jsonl"), [{"text": sentences(1) + "#" * (i in poisoned)} for i in range(30)])
    write_rows(Path("b.jsonl"), [{"text": sentences(1, "dog")} for i in range(20)])
    return write_plan(Path(), {"one": {"dataset": ["a.jsonl", "b.jsonl"], "shuffle": False, "validation": 0, "epochs": epochs,
                                       "batch_size": batch_size}})


@pytest.fixture
def poison(monkeypatch):
    """A model that gives no numbers for a mini-batch with poison in it."""
    forward = GPT2ish.forward

    def poisoned(self, tokens, lengths=None):
        hidden = forward(self, tokens, lengths=lengths)
        return hidden * math.nan if (tokens == POISON).any() else hidden

    monkeypatch.setattr(GPT2ish, "forward", poisoned)


@pytest.fixture(params=["cpu", "as on a gpu"])
def device(request, monkeypatch):
    """Also where the program learns only one step later what the device has found."""
    begin = Runtime.__init__

    def asynchronous(self, settings):
        begin(self, settings)
        self.asynchronous = True

    if request.param != "cpu":
        monkeypatch.setattr(Runtime, "__init__", asynchronous)


def train(capsys, *arguments, code=0):
    found = main([*TINY, "--mini-batch-size", "2", "--training-plan", "plan.json", *map(str, arguments)])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured.out + captured.err


def statistics(name="gpt2ish_model_step_one_train_stats.json"):
    return json.loads(Path("out_gpt", name).read_text())


@pytest.mark.usefixtures("poison", "device")
def test_the_run_stops_before_the_update_and_names_the_rows(capsys):
    make_plan([12])  # in turns: the rows of both are in step with each other; the fifth batch has rows 10 to 12 of a.jsonl
    text = train(capsys, "--save-interval", 10, code=1)
    assert "stage 'one', step 5: the loss (nan)" in text
    assert "a.jsonl: rows 10, 11, 12; b.jsonl: rows 10, 11." in text
    assert "--on-nonfinite skip" in text
    content = load(FILE)
    assert content["runner"]["state"]["stats"]["total_train_samples"] == 20
    assert all(value.isfinite().all() for value in content["model"]["state"].values())
    Path("out_gpt/first.lmp").write_bytes(FILE.read_bytes())
    assert "step 5" in train(capsys, "--save-interval", 10, code=1)  # the file that was kept leads to the same place


@pytest.mark.usefixtures("poison", "device")
def test_a_batch_can_be_skipped(capsys):
    make_plan([12, 29])
    text = train(capsys, "--on-nonfinite", "skip")
    assert text.count("It is skipped, 1 in a row (at most 10)") == 2
    assert "2 batches skipped" in text
    stats = statistics()
    assert stats["totals"]["skipped_batches"] == 2
    assert stats["totals"]["total_train_samples"] == 50
    assert [step for step, loss in enumerate(stats["columns"]["loss"], 1) if loss is None] == [5, 10]
    assert [step for step, skipped in enumerate(stats["columns"]["skipped_batches"], 1) if skipped] == [5, 10]
    assert load(FILE)["runner"]["state"]["in_row"]["skipped"] == 1
    assert all(value.isfinite().all() for value in load(FILE)["model"]["state"].values())


def test_a_batch_passed_over_is_as_if_it_had_been_learned_from_without_effect(capsys, monkeypatch):
    """The weights are those of a run in which the optimizer is not asked at that step."""
    make_plan([12])
    steps = iter(range(1, 100))
    original = torch.optim.AdamW.step
    with monkeypatch.context() as by_hand:
        by_hand.setattr(torch.optim.AdamW, "step", lambda self: original(self) if next(steps) != 5 else None)
        train(capsys, "--model", "by_hand.lmp", "--dropout", 0.1)
    assert next(steps) > 9
    forward = GPT2ish.forward
    monkeypatch.setattr(GPT2ish, "forward", lambda self, tokens, lengths=None:
                        forward(self, tokens, lengths=lengths) * (math.nan if (tokens == POISON).any() else 1.0))
    train(capsys, "--model", "skipped.lmp", "--on-nonfinite", "skip", "--dropout", 0.1)
    expected, found = (load(Path(name))["model"]["state"] for name in ("by_hand.lmp", "skipped.lmp"))
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.usefixtures("poison", "device")
def test_ten_batches_in_a_row_and_no_more(capsys, monkeypatch):
    make_plan(range(30))
    monkeypatch.setattr(nonfinite, "MOST_SKIPPED", 3)
    text = train(capsys, "--on-nonfinite", "skip", "--save-interval", 10, code=1)
    assert text.count("It is skipped") == 3
    assert "step 4: the loss (nan)" in text
    assert "3 batches before it were skipped, too" in text


@pytest.mark.usefixtures("poison", "device")
@pytest.mark.parametrize("every", [1, 3])
def test_a_run_that_passes_over_goes_on_as_if_it_had_not_been_stopped(capsys, monkeypatch, every):
    make_plan([3, 4, 12, *range(20, 30)], epochs=2)  # the last batches too
    arguments = ["--on-nonfinite", "skip", "--dropout", 0.1]
    train(capsys, "--out-dir", "untouched", *arguments)
    original, steps = stage.train_step, iter(range(1, 1000))

    def step_and_signal(*positional, **options):
        result = original(*positional, **options)
        if next(steps) % every == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(stage, "train_step", step_and_signal)
    codes = []
    while not codes or codes[-1] != 0:
        codes.append(main([*TINY, "--mini-batch-size", "2", "--training-plan", "plan.json", "--out-dir", "stopped", *map(str, arguments)]))
    assert codes.count(130) > 3
    assert load(Path("untouched/gpt2ish_model.lmp"))["runner"]["state"]["in_row"]["skipped"] > 1
    assert compare_runs(Path("untouched"), Path("stopped")) == []


def test_overflows_without_end_stop_the_run(capsys, monkeypatch):
    build = GPT2ish.__init__

    def overflowing(self, **settings):
        build(self, **settings)
        self.final_norm.weight.register_hook(lambda gradient: gradient * math.inf)

    begin = Runtime.__init__

    def scaled(self, settings):
        begin(self, settings)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=settings.amp_init_scale)

    monkeypatch.setattr(GPT2ish, "__init__", overflowing)
    monkeypatch.setattr(Runtime, "__init__", scaled)
    make_plan(epochs=5)
    assert "step 17: the gradient has overflowed float16 17 times in a row" in train(capsys, "--amp-init-scale", 4, code=1)
    assert not FILE.exists()


# --- memory

@pytest.fixture
def memory(monkeypatch):
    """A device with room for so many pieces at once, and how many it was given; what is measured before does not count."""
    forward, given = GPT2ish.forward, []
    monkeypatch.setattr(budget, "measure", lambda run, stage, grouping, objective: {ROOM: 1.0})

    def limited(most, error=OUT_OF_MEMORY):
        def attempt(self, tokens):
            given.append(len(tokens))
            if len(tokens) > most:
                raise error
            return forward(self, tokens)

        monkeypatch.setattr(GPT2ish, "forward", attempt)
        return given

    return limited


def weights(path=FILE):
    return load(path)["model"]["state"]


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:127] . "
                         "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)")])
def test_auto_halves_until_it_fits_and_the_result_is_the_same(capsys, memory, error):
    make_plan(batch_size=12)
    train(capsys, "--mini-batch-size", 3, "--model", "plain.lmp", "--dropout", 0, "--pack", "off")
    given = memory(4, error)
    text = train(capsys, "--mini-batch-size", "auto", "--dropout", 0)
    assert f"out of memory with {ROOM} tokens in a mini-batch: from here on {ROOM // 2};" in text
    assert f"out of memory with {ROOM // 2} tokens in a mini-batch: from here on {ROOM // 4};" in text
    assert given[:3] == [12, 6, 3]
    assert max(given[2:]) == 3
    expected = weights("plain.lmp")
    for key, value in weights().items():
        assert torch.equal(value, expected[key])  # the same mini-batches: the same bits
    assert load(FILE)["runner"]["state"]["room"]["tokens"] == ROOM // 4
    [remembered] = json.loads(Path("out_gpt", budget.FILE).read_text())
    assert remembered["tokens"] == ROOM // 4


def test_memory_that_runs_out_half_way_leaves_no_trace(capsys, monkeypatch):
    """The random numbers and gradients of a try that failed in its second mini-batch are gone: the bits are those of a run that began smaller."""
    make_plan(batch_size=12)
    train(capsys, "--mini-batch-size", 3, "--model", "plain.lmp", "--dropout", 0.2, "--pack", "off")
    forward, given = GPT2ish.forward, []

    def attempt(self, tokens):
        given.append(len(tokens))
        hidden = forward(self, tokens)
        if given in ([12], [12, 6, 6]):
            raise OUT_OF_MEMORY
        return hidden

    monkeypatch.setattr(GPT2ish, "forward", attempt)
    monkeypatch.setattr(budget, "measure", lambda run, stage, grouping, objective: {ROOM: 1.0})
    train(capsys, "--mini-batch-size", "auto", "--dropout", 0.2)
    assert given[:5] == [12, 6, 6, 3, 3]
    assert all(torch.equal(value, weights()[key]) for key, value in weights("plain.lmp").items())


def test_the_size_found_is_remembered(capsys, memory):
    make_plan(batch_size=12)
    given = memory(4)
    train(capsys, "--mini-batch-size", "auto")
    write_plan(Path(), {"one": json.loads(Path("plan.json").read_text())["one"], "two": {"dataset": "a.jsonl", "batch_size": 12}})
    given.clear()
    text = train(capsys, "--mini-batch-size", "auto")
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
    assert "out of memory with 94 tokens in a mini-batch: from here on 47;" in train(capsys, "--mini-batch-size", "auto", "--validation-interval", 4)
    assert training[-1] is False
    assert training.count(True) > 25  # dropout is back after the validation that failed


def test_what_to_do_is_said_where_nothing_can_be_halved(capsys, memory):
    memory(0)
    text = train(capsys, "--mini-batch-size", "auto", code=1)
    assert "out of memory with one piece of up to 28 tokens" in text
    assert "--amp" in text
    assert "--mini-batch-size auto finds" not in text
    memory(1)
    assert "out of memory with 2 pieces of up to 48 tokens in a mini-batch; the last checkpoint is whole. What may help: --mini-batch-size auto" in \
        train(capsys, code=1)
    memory(0, RuntimeError("another error"))
    with pytest.raises(RuntimeError, match="another error"):
        main([*TINY, "--training-plan", "plan.json", "--mini-batch-size", "auto"])
