"""Opening a run: which files it goes on with, what may have changed since, and what is refused."""
from pathlib import Path

import pytest
import torch
from helpers import load, sentences, train, train_plan, weights, write_plan, write_rows


def same(left, right):
    return all(torch.equal(left[key], right[key]) for key in left)


def test_reset_history_starts_anew_and_keeps_the_old_file(corpus, capsys):
    train(capsys, "--dataset", "rows.jsonl", "--seed", 3)
    first = weights()
    old = Path("out_gpt/gpt2ish_model.lmp").read_bytes()
    out = train(capsys, "--dataset", "rows.jsonl", "--seed", 3, "--reset-history")
    assert "gpt2ish_model.old-1.lmp" in out
    assert Path("out_gpt/gpt2ish_model.old-1.lmp").read_bytes() == old
    assert same(first, weights())  # nothing of the old run was used
    assert load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["total_train_samples"] == 27
    train(capsys, "--dataset", "rows.jsonl", "--seed", 4, "--reset-history")
    assert Path("out_gpt/gpt2ish_model.old-2.lmp").exists()
    assert not same(first, weights())


def test_initial_model_gives_weights_only_and_is_never_written(corpus, capsys):
    train(capsys, "--dataset", "rows.jsonl", "--model", "first.lmp")
    before = Path("out_gpt/first.lmp").read_bytes()
    train(capsys, "--dataset", "rows.jsonl", "--initial-model", "first.lmp", "--model", "second.lmp", "--lr", "1e-12", "--weight-decay", "0")
    assert Path("out_gpt/first.lmp").read_bytes() == before
    for key, value in weights("out_gpt/second.lmp").items():
        torch.testing.assert_close(value, weights("out_gpt/first.lmp")[key], rtol=0, atol=1e-8)
    stats = load(Path("out_gpt/second.lmp"))["runner"]["state"]["stats"]
    assert stats["total_train_samples"] == 27


def test_a_file_of_another_experiment_is_refused(corpus, capsys):
    train(capsys, "--dataset", "rows.jsonl", "--model", "m.lmp")
    before = Path("out_gpt/m.lmp").read_bytes()
    text = train(capsys, "--dataset", "rows.jsonl", "--model", "m.lmp", "--exp", "gpt2ish_tiny", code=2)
    assert "gpt2ish_tiny" in text
    assert "the file's model is gpt2ish" in text
    assert "--embed-dim 32" in train(capsys, "--dataset", "rows.jsonl", "--model", "m.lmp", "--embed-dim", "32", code=2)
    assert Path("out_gpt/m.lmp").read_bytes() == before


@pytest.mark.parametrize("damage", [lambda data: data[:len(data) // 2], lambda data: b"", lambda data: data[:100] + bytes(200) + data[300:]])
def test_a_damaged_file_is_named_and_left(corpus, capsys, damage):
    train(capsys, "--dataset", "rows.jsonl", "--model", "m.lmp")
    Path("out_gpt/m.lmp").write_bytes(damage(Path("out_gpt/m.lmp").read_bytes()))
    before = Path("out_gpt/m.lmp").read_bytes()
    assert "m.lmp" in train(capsys, "--dataset", "rows.jsonl", "--model", "m.lmp", code=2)
    assert Path("out_gpt/m.lmp").read_bytes() == before


def test_a_begun_stage_cannot_change_and_a_later_one_can(corpus, capsys):
    write_rows(corpus / "more.jsonl", [{"text": sentences(1)}] * 12)
    plan = {"one": {"dataset": "rows.jsonl"}}
    write_plan(corpus, plan)
    train(capsys, "--training-plan", "plan.json")
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "lr": 0.1}})
    text = train(capsys, "--training-plan", "plan.json", code=2)
    assert "stage 'one' has been done" in text
    assert "lr was not given, is 0.1" in text
    write_plan(corpus, {**plan, "two": {"dataset": "more.jsonl"}})
    assert "resumed" in train(capsys, "--training-plan", "plan.json")
    assert load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["step_stats"].keys() == {"one", "two"}


def test_ignore_optimizer_goes_on_with_a_fresh_one(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    train(capsys, "--training-plan", "plan.json")
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl"}})
    assert "--ignore-optimizer" in train(capsys, "--training-plan", "plan.json", "--optimizer", "sgd", code=2)
    train(capsys, "--training-plan", "plan.json", "--optimizer", "sgd", "--ignore-optimizer")


def test_who_goes_on_need_not_say_again_what_the_data_depends_on(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    train(capsys, "--training-plan", "plan.json", "--seed", 3, "--optimizer", "sgd", "--continuation", "estimate")
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl"}})
    assert "--seed 3" in train(capsys, "--training-plan", "plan.json", "--seed", 4, code=2)
    assert "--continuation estimate" in train(capsys, "--training-plan", "plan.json", "--continuation", "exact", code=2)
    train(capsys, "--training-plan", "plan.json")
    kept = load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state_args"]["settings"]
    assert (kept["seed"], kept["optimizer"], kept["continuation"]) == (3, "sgd", "estimate")


def test_reset_history_takes_the_statistics_and_the_old_stages_along(two_stages, capsys):
    train_plan(capsys, "--validation-interval", 20)
    Path("out_gpt/gpt2ish_model_other_train_stats.json").write_text('{"model": "gpt2ish_model_other"}')
    old = Path("out_gpt/gpt2ish_model_step_one_train_stats.json").read_bytes()
    write_plan(Path("."), {"three": {"dataset": "rows.jsonl"}})
    train_plan(capsys, "--reset-history")
    names = {path.name for path in Path("out_gpt").iterdir()}
    assert {"gpt2ish_model.old-1.one.lmp", "gpt2ish_model.old-1.two.lmp", "gpt2ish_model.old-1.best.lmp", "gpt2ish_model_other_train_stats.json"} <= names
    assert not names & {"gpt2ish_model.one.lmp", "gpt2ish_model_step_one_train_stats.json"}
    assert Path("out_gpt/gpt2ish_model.old-1/gpt2ish_model_step_one_train_stats.json").read_bytes() == old


@pytest.mark.parametrize(("flags", "expected"), [
    ([], [0.1 + 0.9 * step / 40 for step in range(4)]), (["--optimizer-warmup-steps", 3, "--optimizer-warmup-fraction", 0.4], [0.4, 0.6, 0.8, 1]),
    (["--disable-optimizer-warmup"], [1, 1, 1, 1])])
def test_a_fresh_optimizer_warms_up_in_the_middle_of_a_stage(two_stages, capsys, flags, expected):
    train_plan(capsys, "--lr", 1, "--grad-clip", 1e-3, "--optimizer-warmup-steps", 2, "--max-steps", 5, code=75)
    text = train_plan(capsys, "--lr", 1, "--grad-clip", 1e-3, "--ignore-optimizer", *flags, "--max-steps", 2, code=75)
    assert "--ignore-optimizer: the optimizer's state is fresh" + (", and its warm-up starts again" if expected[0] < 1 else "") in text
    again = [flag for flag in flags if flag != "--ignore-optimizer"]  # a stop within the warm-up does not end it
    train_plan(capsys, "--lr", 1, "--grad-clip", 1e-3, *again, "--max-steps", 2, code=75)
    rates = load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["train"]["rows"]["lr"]
    assert rates[:5] == pytest.approx([0.1, 0.55, 1, 1, 1])
    assert rates[5:9] == pytest.approx(expected[:len(rates) - 5])
    assert len(rates) >= 8
