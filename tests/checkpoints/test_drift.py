"""What is not as it was at the checkpoint: all of it is told, and only that; what would change the meaning of the past is refused."""
from pathlib import Path

import pytest
import torch
from helpers import TINY, load, sentences, write_plan, write_rows

from lmplay.data.sentences import RULES
from lmplay.plan.curriculum import changes_to_come
from lmplay.plan.load import plan_from_json
from lmplay.train.__main__ import main

MODEL = Path("out_gpt/gpt2ish_model.lmp")
PLAN = {"one": {"dataset": "rows.jsonl", "epochs": 2}, "two": {"dataset": "rows.jsonl", "samples": 10, "lr": 0.001}}


@pytest.fixture
def begun(tmp_path, monkeypatch, capsys):
    """A run that was stopped in the first of two stages."""
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(60)])
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path, PLAN)
    train(capsys, code=75)
    return tmp_path


def train(capsys, *arguments, code=75):
    found = main([*TINY, "--batch-size", "5", "--training-plan", "plan.json", "--max-steps", "1", *map(str, arguments)])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured.out + captured.err


def told(text: str) -> list[str]:
    """Give the list that is printed below "since the checkpoint"."""
    lines = iter(text.splitlines())
    if "since the checkpoint:" not in lines:
        return []
    found = []
    for line in lines:
        if not line.startswith("  "):
            break
        found.append(line.strip())
    return found


def test_another_device_and_the_precision_that_comes_with_it_are_told(begun, capsys):
    content = torch.load(MODEL, weights_only=True)
    content["runner"]["state_args"]["runs_on"] = {"device": "NVIDIA H100", "precision": "mixed bfloat16"}
    torch.save(content, MODEL)
    assert told(train(capsys)) == ["device NVIDIA H100 -> cpu (bits may differ)", "precision mixed bfloat16 -> float32 (bits may differ)"]
    assert told(train(capsys)) == []


def test_nothing_is_told_where_nothing_differs(begun, capsys):
    assert told(train(capsys)) == []
    assert told(train(capsys, "--out-dir", "out_gpt", "--check-grads", "--max-samples-this-run", 1)) == []


@pytest.mark.parametrize(("flags", "lines"), [
    (["--lr", "0.01"], ["lr 0.0006 -> 0.01 in stage 'one'", "lr 0.001 -> 0.01 in stage 'two'"]),
    (["--batch-size", "7"], ["batch_size 5 -> 7 in stages 'one', 'two'"]),
    (["--grad-clip", "1", "--weight-decay", "0"], ["grad_clip 0.0 -> 1.0 in stages 'one', 'two'", "weight_decay default -> 0.0 in stages 'one', 'two'"]),
    (["--amp"], ["--amp off -> on"]),
    (["--mini-batch-size", "2"], ["--mini-batch-size 4 -> 2 (bits may differ)"]),
    (["--validation-interval", "50", "--disable-optimizer-warmup"], ["--disable-optimizer-warmup off -> on", "--validation-interval auto -> 50"]),
    (["--optimizer", "sgd", "--ignore-optimizer"],
     ["--ignore-optimizer: the optimizer's state is fresh, and its warm-up starts again", "optimizer adamw -> sgd in stages 'one', 'two'"]),
])
def test_every_flag_that_matters_is_told(begun, capsys, flags, lines):
    assert sorted(told(train(capsys, *flags))) == lines


def test_another_version_is_told(begun, capsys):
    state = load(MODEL)
    state["versions"]["torch"] = "1.0"
    torch.save(state, MODEL)
    assert told(train(capsys)) == [f"torch 1.0 -> {torch.__version__} (bits may differ)"]


def test_other_rules_of_cutting_are_told(begun, capsys):
    state = load(MODEL)
    del state["versions"]["cutting rules"]  # a file from before they had a number
    torch.save(state, MODEL)
    assert told(train(capsys)) == [f"cutting rules 1 -> {RULES} (bits may differ)"]
    assert told(train(capsys)) == []


def test_stages_to_come_may_change_and_all_of_it_is_told(begun, capsys):
    write_plan(begun, {"one": PLAN["one"], "three": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl", "samples": 20, "lr": 0.001}})
    assert told(train(capsys)) == ["stage 'two' (not begun): samples was 10, is 20", "stage 'three' is new"]
    write_plan(begun, {"one": PLAN["one"], "two": {"dataset": "rows.jsonl", "samples": 20, "lr": 0.001}})
    assert told(train(capsys)) == ["stage 'three' is gone (it had not begun)"]
    write_plan(begun, {"one": {"dataset": "rows.jsonl", "epochs": 3}, "two": PLAN["two"]})
    assert "epochs was 2.0, is 3.0" in train(capsys, code=2)


def test_the_order_of_stages_to_come_is_told():
    def plan(*names):
        return plan_from_json({"stages": [{"name": name, "dataset": "builtin:tales", "samples": 1} for name in names]})

    assert changes_to_come(plan("a", "b", "c"), plan("a", "c", "b"), {"a"}) == ["the stages to come have another order: c, b"]
    assert changes_to_come(plan("a", "b"), plan("a", "b"), {"a"}) == []


def test_a_stage_appended_to_a_finished_plan_is_trained_on(begun, capsys):
    train(capsys, "--max-steps", 0, code=0)
    before = load(MODEL)["runner"]["state"]["stats"]["total_train_samples"]
    write_plan(begun, {**PLAN, "more": {"dataset": "rows.jsonl", "samples": 10}})
    assert told(train(capsys, "--max-steps", 0, code=0)) == ["stage 'more' is new"]
    assert load(MODEL)["runner"]["state"]["stats"]["total_train_samples"] == before + 10


def test_what_a_plan_says_of_new_models_is_told_where_it_does_not_hold(begun, capsys):
    write_plan(begun, {**PLAN, "$model": {"embed_dim": 32}, "$tokenizer": "train:300"})
    flags = [word for word in TINY if word not in ("--embed-dim", "16", "--tokenizer", "bytes")]
    assert main([*flags, "--batch-size", "5", "--training-plan", "plan.json", "--max-steps", "1"]) == 75
    assert told(capsys.readouterr().out) == ["$model embed_dim 32 of the plan is for new models; this one has 16",
                                             "$tokenizer train:300 of the plan is for new models; this one has bytes"]


def test_sizes_that_are_meant_for_another_experiment_are_told(begun, capsys):
    write_plan(begun, {**PLAN, "$model": {"exp": "gpt2ish_tiny", "embed_dim": 32}})
    text = train(capsys, "--exp", "gpt2ish", "--model", "new.lmp")
    assert "--exp gpt2ish is built with the plan's $model, which is meant for gpt2ish_tiny" in text
    assert "meant for" not in train(capsys, "--model", "newer.lmp")
