"""Runs whose model writes what it learns from: the same bits after a stop, what goes wrong, and what is told."""
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from helpers import ROOT, compare_runs, load, stop_at, train, weights, write_plan, write_rows
from tasks import TASKS, grpo, write_reward

from lmplay.engine import answers
from lmplay.train.__main__ import main


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("tasks.jsonl"), TASKS)


def plan(**settings):
    write_plan(Path(), {"before": {"dataset": "tasks.jsonl", "samples": 10},
                        "reason": {"dataset": "tasks.jsonl", "steps": 4, "lr": 0.01, "objective": grpo(**settings)}})


def run(capsys, out, *arguments, code=0):
    return train(capsys, "--training-plan", "plan.json", "--out-dir", out, "--validation-samples", 4, "--validation-interval", 8, *arguments, code=code)


@pytest.mark.parametrize("settings", [{}, {"kl": 0.1, "updates": 2, "loss": "dapo"}])
def test_a_run_that_was_stopped_goes_on_with_the_same_answers(settings, capsys, monkeypatch):
    plan(**settings)
    run(capsys, "whole")
    stop_at(monkeypatch, {3, 5})
    for code in (130, 130, 0):
        run(capsys, "parts", code=code)
    assert compare_runs(Path("whole"), Path("parts")) == []
    rows = [Path(folder, "gpt2ish_model_samples.jsonl").read_text() for folder in ("whole", "parts")]
    assert rows[0] == rows[1]


def test_a_stop_while_answers_are_written_changes_nothing(capsys, monkeypatch):
    plan()
    run(capsys, "whole")
    original, calls = answers.ContinuousBatch.step, []

    def step(self):
        calls.append(1)
        if len(calls) == 14:  # of a group, behind those of some steps and a validation
            os.kill(os.getpid(), signal.SIGINT)
        return original(self)

    monkeypatch.setattr(answers.ContinuousBatch, "step", step)
    run(capsys, "parts", code=130)
    run(capsys, "parts")
    assert compare_runs(Path("whole"), Path("parts")) == []


@pytest.mark.parametrize("settings", [{}, {"loss": "dr_grpo", "updates": 2, "kl": 0.2}])
def test_mini_batches_make_no_difference(settings, capsys):
    plan(**settings)
    for size in (1, 12):
        run(capsys, f"by{size}", "--mini-batch-size", size, "--dropout", 0)
    one, other = weights("by1/gpt2ish_model.lmp"), weights("by12/gpt2ish_model.lmp")
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5)


def test_figures_are_in_statistics_and_answers_are_kept(capsys):
    plan(rewards=[{"name": "length", "most": 1}, {"name": "exact", "weight": 2}], kl=0.1)
    said = run(capsys, "out", "--dropout", 0.5)  # which this stage has none of: else the divergence would not begin at 0
    content = json.loads(Path("out/gpt2ish_model_step_reason_train_stats.json").read_text())
    columns = content["columns"]
    for name in ("reward", "reward_length", "reward_exact", "reward_deviation", "answer_tokens", "cut_share", "clipped_share", "kl"):
        assert len(columns[name]) == 4, name
        assert None not in columns[name], name
    assert all(1 <= tokens <= 5 for tokens in columns["answer_tokens"])
    assert columns["kl"][0] == pytest.approx(0, abs=1e-6)  # nothing has been learned
    assert columns["kl"][-1] > 0
    assert all(0 < share < 1 for share in content["clock"]["writing_share"])
    assert content["totals"]["total_train_samples"] == 20  # prompts
    assert content["totals"]["pieces"] == 60  # answers
    judged = json.loads(Path("out/gpt2ish_model_step_reason_validate_stats.json").read_text())["columns"]
    assert judged["loss"] == pytest.approx([-reward for reward in judged["reward"]])
    assert judged["reward"] == pytest.approx([one + 2 * two for one, two in zip(judged["reward_length"], judged["reward_exact"], strict=True)])
    rows = [json.loads(line) for line in Path("out/gpt2ish_model_samples.jsonl").read_text().splitlines()]
    assert {row["prompt"] for row in rows} <= {row["prompt"] for row in TASKS}
    assert rows
    assert all(isinstance(row["reward"], float) for row in rows)
    assert judged["written_accuracy"] in ([], [None] * len(judged["loss"]))  # there is no text that it should have written
    assert "reward" in said


FAULTS = [("raise ValueError('no\\nway')", "raises ValueError: no way"), ("return math.nan", "returns nan, not a finite number"),
          ("return 'much'", "returns 'much', not a number"), ("time.sleep(60)", "takes more than 0.5 s"), ("import os; os._exit(3)", "has ended its process")]


@pytest.mark.parametrize(("body", "told"), FAULTS)
def test_a_reward_that_fails_is_one_line_and_nothing_is_lost(body, told, capsys):
    name = write_reward("return len(text)")
    plan(rewards={"name": name, "seconds": 0.5})
    run(capsys, "whole", "--trust-config")
    write_reward(f"score.calls = getattr(score, 'calls', 0) + 1\n    if score.calls > 30:\n        {body}\n    return len(text)")  # at the third step
    said = run(capsys, "out", "--trust-config", code=2)
    line, = [line for line in said.splitlines() if "my_rewards:score" in line and "stage 'reason'" in line]
    assert told in line
    assert "for the text" in line
    assert "Traceback" not in said
    done = load(Path("out/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["total_train_steps"]
    assert done >= 3  # those before, though no save was due
    write_reward("return len(text)")
    run(capsys, "out", "--trust-config")
    assert compare_runs(Path("whole"), Path("out")) == []


def test_rewards_may_change_in_a_stage_that_has_begun(capsys, monkeypatch):
    plan()
    stop_at(monkeypatch, {4})
    run(capsys, "out", code=130)
    plan(rewards=[{"name": "length", "most": 2, "seconds": 60}, "exact"], group=4)
    said = run(capsys, "out", code=2)
    assert "has been begun and differs in this plan: objective" in said
    assert "answer_tokens" not in said.partition("differs in this plan")[2].partition("\n")[2]  # no line about what is not known then
    plan(rewards=[{"name": "length", "most": 2, "seconds": 60}, "exact"])
    assert "stage 'reason': rewards were [{" in run(capsys, "out")
    columns = json.loads(Path("out/gpt2ish_model_step_reason_train_stats.json").read_text())["columns"]
    assert len(columns["reward"]) == 4


def test_a_sum_of_rewards_that_is_too_large_is_one_line(capsys):
    plan(rewards={"name": write_reward("return 1e29"), "weight": 100})
    said = run(capsys, "out", "--trust-config", code=2)
    assert "stage 'reason': the weighted sum of the rewards is 1e+31, allowed: from -1e+30 to 1e+30." in said
    assert "Traceback" not in said


def test_memory_that_runs_out_while_log_probabilities_are_computed_is_told(capsys, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("none left")

    plan(updates=2)
    monkeypatch.setattr(answers, "token_log_probs", full)
    assert "out of memory with 4 pieces of up to 48 tokens in a mini-batch; the last checkpoint is whole." in run(capsys, "out", code=1)


def test_what_cannot_be_is_refused_before_anything_is_done(capsys):
    plan(rewards="no_such_module:score")
    assert "add --trust-config" in run(capsys, "out", code=2)
    said = run(capsys, "out", "--trust-config", code=2)
    assert "reward no_such_module:score: it cannot be imported (ModuleNotFoundError" in said
    plan(answer_tokens=30)
    assert "stage 'reason': answer_tokens 30, and its context_len is 48: at most half of it, 24" in run(capsys, "out", code=2)
    write_plan(Path(), {"reason": {"dataset": "tasks.jsonl", "tokens": 100, "objective": grpo()}})
    assert "how many the model will write is not known" in run(capsys, "out", code=2)
    for wrong, told in (({}, "length without limits"), ({"least": 10, "most": 5}, "found 10 with most 5")):
        plan(rewards={"name": "length", **wrong})
        assert told in run(capsys, "out", code=2)
    assert not list(Path("out").glob("*.lmp"))


def test_a_reference_that_is_gone_is_told(capsys, monkeypatch):
    plan(kl=0.1)
    stop_at(monkeypatch, {4})
    run(capsys, "out", code=130)
    kept, = Path("out/references").glob("*.pt")
    content = kept.read_bytes()
    for damage, told in ((kept.unlink, "is not there"), (lambda: kept.write_bytes(content[:-100]), "is damaged")):
        damage()
        said = run(capsys, "out", code=2)
        line, = [line for line in said.splitlines() if "stage 'reason'" in line and ".pt" in line]
        assert told in line
        assert "--resume out/gpt2ish_model.before.lmp" in line
    kept.write_bytes(content)
    run(capsys, "out")


@pytest.mark.slow
def test_the_plan_assistant_goes_through_all_kinds_of_stages(capsys):
    """Its stages with hardly any samples; the same prompts are continued in each."""
    content = json.loads((ROOT / "plans" / "assistant.json").read_text())
    content.pop("$schema")
    for name in ("stories", "questions", "preferences"):
        content[name]["samples"] = 10
    content["sums"]["steps"] = 2
    write_plan(Path(), content)
    assert main(["--training-plan", "plan.json", "--out-dir", "out", "--device", "cpu", "--context-len", "64", "--num-blocks", "1", "--embed-dim", "16",
                 "--num-heads", "2", "--tokenizer", "bytes", "--batch-size", "4", "--validation-samples", "2", "--sample-tokens", "4"]) == 0
    rows = [json.loads(line) for line in Path("out/gpt2ish_tiny_model_samples.jsonl").read_text().splitlines()]
    for stage in ("stories", "questions", "preferences", "sums"):
        assert {row["prompt"] for row in rows if row["stage"] == stage and "reward" not in row} == {*content["$prompts"]}
    assert {row["stage"] for row in rows if "reward" in row} == {"sums"}
