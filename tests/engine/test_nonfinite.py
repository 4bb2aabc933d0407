"""Losses and gradients that are not finite: the run stops before the update, or the batch is skipped."""
import json
import math
from pathlib import Path

import pytest
import torch
from helpers import TINY, compare_runs, load, stop_at, train, write_plan
from two_sources import FILE, make_plan, train_on_two

from lmplay.device.runtime import Runtime
from lmplay.engine import nonfinite
from lmplay.exp.gpt2ish import GPT2ish
from lmplay.train.__main__ import main


def test_losses_that_are_no_numbers_stop_the_run_and_keep_the_file(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    train(capsys, "--training-plan", "plan.json")
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl", "epochs": 20, "lr": 1e30}})
    before = Path("out_gpt/gpt2ish_model.lmp").read_bytes()
    text = train(capsys, "--training-plan", "plan.json", "--optimizer-warmup-steps", 0, "--optimizer", "adamw", code=1)
    assert "not finite" in text
    assert "Traceback" in text
    assert Path("out_gpt/gpt2ish_model.lmp").read_bytes() == before


def test_ruined_weights_never_replace_good_ones(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    train(capsys, "--training-plan", "plan.json", "--optimizer", "sgd")
    before = Path("out_gpt/gpt2ish_model.lmp").read_bytes()
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl", "samples": 5, "lr": 1e38, "validation": 0}})
    assert "not finite" in train(capsys, "--training-plan", "plan.json", "--disable-optimizer-warmup", code=1)
    assert Path("out_gpt/gpt2ish_model.lmp").read_bytes() == before


pytestmark = pytest.mark.usefixtures("two_sources")
POISON = ord("#")


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

    def asynchronous(self, settings, *ranks):
        begin(self, settings, *ranks)
        self.asynchronous = True

    if request.param != "cpu":
        monkeypatch.setattr(Runtime, "__init__", asynchronous)


def statistics(name="gpt2ish_model_step_one_train_stats.json"):
    return json.loads(Path("out_gpt", name).read_text())


@pytest.mark.usefixtures("poison", "device")
def test_the_run_stops_before_the_update_and_names_the_rows(capsys):
    make_plan([12])  # in turns: the rows of both are in step with each other; the fifth batch has rows 10 to 12 of a.jsonl
    text = train_on_two(capsys, "--save-interval", 10, code=1)
    assert "stage 'one', step 5: the loss (nan)" in text
    assert "a.jsonl: rows 10, 11, 12; b.jsonl: rows 10, 11." in text
    assert "--on-nonfinite skip" in text
    content = load(FILE)
    assert content["runner"]["state"]["stats"]["total_train_samples"] == 20
    assert all(value.isfinite().all() for value in content["model"]["state"].values())
    Path("out_gpt/first.lmp").write_bytes(FILE.read_bytes())
    assert "step 5" in train_on_two(capsys, "--save-interval", 10, code=1)  # the file that was kept leads to the same place


@pytest.mark.usefixtures("poison", "device")
def test_a_batch_can_be_skipped(capsys):
    make_plan([12, 29])
    text = train_on_two(capsys, "--on-nonfinite", "skip")
    assert text.count("It is skipped, 1 in a row (at most 10)") == 2
    assert "2 batches skipped" in text
    stats = statistics()
    assert stats["totals"]["skipped_batches"] == 2
    assert stats["totals"]["total_train_samples"] == 50
    assert [step for step, loss in enumerate(stats["columns"]["loss"], 1) if loss is None] == [5, 10]
    assert [step for step, skipped in enumerate(stats["columns"]["skipped_batches"], 1) if skipped] == [5, 10]
    assert load(FILE)["runner"]["state"]["in_row"]["skipped"] == 1
    assert all(value.isfinite().all() for value in load(FILE)["model"]["state"].values())


def test_a_skipped_batch_is_as_if_it_had_been_learned_from_without_effect(capsys, monkeypatch):
    """The weights are those of a run in which the optimizer is not asked at that step."""
    make_plan([12])
    steps = iter(range(1, 100))
    original = torch.optim.AdamW.step
    with monkeypatch.context() as by_hand:
        by_hand.setattr(torch.optim.AdamW, "step", lambda self: original(self) if next(steps) != 5 else None)
        train_on_two(capsys, "--model", "by_hand.lmp", "--dropout", 0.1)
    assert next(steps) > 9
    forward = GPT2ish.forward
    monkeypatch.setattr(GPT2ish, "forward", lambda self, tokens, lengths=None:
                        forward(self, tokens, lengths=lengths) * (math.nan if (tokens == POISON).any() else 1.0))
    train_on_two(capsys, "--model", "skipped.lmp", "--on-nonfinite", "skip", "--dropout", 0.1)
    expected, found = (load(Path(name))["model"]["state"] for name in ("out_gpt/by_hand.lmp", "out_gpt/skipped.lmp"))
    assert all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.usefixtures("poison", "device")
def test_ten_batches_in_a_row_and_no_more(capsys, monkeypatch):
    make_plan(range(30))
    monkeypatch.setattr(nonfinite, "MOST_SKIPPED", 3)
    text = train_on_two(capsys, "--on-nonfinite", "skip", "--save-interval", 10, code=1)
    assert text.count("It is skipped") == 3
    assert "step 4: the loss (nan)" in text
    assert "3 batches before it were skipped, too" in text


@pytest.mark.usefixtures("poison", "device")
@pytest.mark.parametrize("every", [1, 3])
def test_a_run_that_skips_batches_goes_on_as_if_it_had_not_been_stopped(capsys, monkeypatch, every):
    make_plan([3, 4, 12, *range(20, 30)], epochs=2)  # the last batches too
    arguments = ["--on-nonfinite", "skip", "--dropout", 0.1]
    train_on_two(capsys, "--out-dir", "untouched", *arguments)
    stop_at(monkeypatch, range(every, 1000, every))
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

    def scaled(self, settings, *ranks):
        begin(self, settings, *ranks)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=settings.amp_init_scale)

    monkeypatch.setattr(GPT2ish, "__init__", overflowing)
    monkeypatch.setattr(Runtime, "__init__", scaled)
    make_plan(epochs=5)
    assert "step 17: the gradient has overflowed float16 17 times in a row" in train_on_two(capsys, "--amp-init-scale", 4, code=1)
    assert not FILE.exists()
