"""Runs whose model writes what it learns from: the same bits after a stop, what goes wrong, and what is told."""
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import several
import torch
import warm
from helpers import ENVIRONMENT, ROOT, TINY, compare_runs, load, stop_at, train, weights, write_plan, write_rows
from tasks import TASKS, grpo, write_reward
from together import PATCH, steps_of

from lmplay.device.runtime import Runtime
from lmplay.engine import answers, stage
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
    assert "out of memory with 4 pieces of up to 48 tokens in a mini-batch; the last checkpoint is intact." in run(capsys, "out", code=1)


def test_what_cannot_be_is_refused_before_anything_is_done(capsys):
    plan(rewards="no_such_module:score")
    assert "add --trust-config" in run(capsys, "out", code=2)
    said = run(capsys, "out", "--trust-config", code=2)
    assert "reward no_such_module:score: it cannot be imported (ModuleNotFoundError" in said
    changing = [{"name": "constant", "from": 32, "steps": "50%"}, {"name": "constant", "from": 48, "steps": "rest"}]
    write_plan(Path(), {"reason": {"dataset": "tasks.jsonl", "steps": 4, "context_len": changing, "objective": grpo()}})
    assert main([*(flag for flag in TINY if flag not in ("--context-len", "48")), "--training-plan", "plan.json", "--out-dir", "out"]) == 2
    assert "stage 'reason': its context_len changes, and with grpo it is one" in capsys.readouterr().err
    write_plan(Path(), {"reason": {"dataset": "tasks.jsonl", "steps": 4, "objective": {"name": "grpo", "tempreature": 1}}})
    said = run(capsys, "out", code=2)
    assert "key 'objective.tempreature': unknown key. Did you mean 'temperature'?" in said
    assert "beta" not in said
    plan(rewards=["exact", write_reward("raise ValueError")])
    assert "reward my_rewards:score (2 of 2): it raises ValueError, for the text" in run(capsys, "other", "--trust-config", code=2)
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


@pytest.mark.parametrize(("text", "written", "cut"), [("ab##cdef", 4, 0), ("abcdef##", 6, 1), ("#a#b##x", 6, 0)])
def test_an_answer_ends_with_a_mark_of_several_tokens(text, written, cut, capsys, monkeypatch):
    """Here each token is a byte, and an answer has at most 6."""
    class Written(answers.ContinuousBatch):
        def _choose(self, logits, rows):
            return [ord(text[len(one.ids) - self.begun[one.name]]) for one, _ in rows]

        def add(self, name, prompt, *rest):
            self.begun = {**getattr(self, "begun", {}), name: len(prompt)}
            super().add(name, prompt, *rest)

    monkeypatch.setattr(answers, "ContinuousBatch", Written)
    monkeypatch.setattr(answers.Prompting, "stop_texts", property(lambda self: ("##",)))
    seen = write_reward("open('seen', 'a').write(text + '\\n')\n    return len(text)")
    plan(answer_tokens=6, rewards=seen)
    run(capsys, "out", "--trust-config")
    columns = json.loads(Path("out/gpt2ish_model_step_reason_train_stats.json").read_text())["columns"]
    assert set(columns["answer_tokens"]) == {written}
    assert set(columns["cut_share"]) == {cut}
    assert set(Path("seen").read_text().split()) == {text[:6].partition("##")[0]}


def test_a_step_without_differences_is_warned_of_once(capsys):
    plan(rewards=write_reward("return 1.0"))
    said = run(capsys, "out", "--trust-config")
    assert said.count("stage 'reason': in each group of this step all answers have the same reward, so nothing is learned from them.") == 1
    plan()
    assert "all answers have the same reward" not in run(capsys, "other")


def test_what_is_best_is_a_reward(capsys):
    plan()
    said = run(capsys, "out")
    assert "best validation reward " in said
    assert "validation: reward 1.000, tokens of an answer" in said or "validation: reward 0." in said
    assert "loss -" not in said
    entries = json.loads(Path("out/gpt2ish_model_train_stats.json").read_text())["stages"]
    assert [entry.get("loss_unit") for entry in entries] == [None, "reward"]


def test_losses_by_source_are_rewards_too(capsys):
    for name in ("low", "high"):
        write_rows(Path(f"{name}.jsonl"), [{"prompt": f"{name} {i}", "answer": "1"} for i in range(30)])
    reward = write_reward("return 0.75 if 'high' in prompt else 0.25")
    write_plan(Path(), {"reason": {"dataset": ["low.jsonl", "high.jsonl"], "steps": 2, "objective": grpo(rewards=reward)}})
    run(capsys, "out", "--trust-config")
    sources = json.loads(Path("out/gpt2ish_model_step_reason_validate_stats.json").read_text())["sources"]
    assert [sources[f"{name}.jsonl"]["columns"]["loss"][-1] for name in ("low", "high")] == pytest.approx([-0.25, -0.75])


def test_of_several_updates_one_that_is_not_finite_is_left_out(capsys, monkeypatch):
    plan(updates=3)
    original, calls = stage.train_step, []

    def broken(*arguments, **options):
        sums = original(*arguments, **options)
        calls.append(1)
        if len(calls) == 4:  # of the second batch of the stage `reason`: those before have one update
            sums.loss_sum = sums.loss_sum * torch.nan
        return sums

    monkeypatch.setattr(stage, "train_step", broken)
    said = run(capsys, "out", code=1)
    assert "stage 'reason', step 3: in 1 of its 3 updates the loss or the norm of its gradient is not finite" in said
    del calls[:]
    said = run(capsys, "skips", "--on-nonfinite", "skip")
    assert "and they have changed nothing. The batch has" in said
    content = json.loads(Path("skips/gpt2ish_model_step_reason_train_stats.json").read_text())
    assert None not in content["columns"]["loss"]
    assert content["totals"].get("skipped_batches", 0) == 0
    assert content["columns"]["reward"] == pytest.approx([min(1.0, reward) for reward in content["columns"]["reward"]])


def test_a_gradient_scaler_may_lose_all_updates_of_a_step(capsys, monkeypatch):
    """As in the first steps in float16: they have changed nothing, their losses count, also by source, and the run goes on."""
    for name in ("one", "two"):
        write_rows(Path(f"{name}.jsonl"), TASKS)
    write_plan(Path(), {"reason": {"dataset": ["one.jsonl", "two.jsonl"], "steps": 2, "objective": grpo(updates=2)}})
    begin, original, calls = Runtime.__init__, stage.train_step, []

    def scaled(self, settings, *ranks):
        begin(self, settings, *ranks)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def overflowing(*arguments, **options):
        sums = original(*arguments, **options)
        calls.append(1)
        if len(calls) <= 2:
            sums.grad_norm = sums.grad_norm * torch.inf + torch.inf
        return sums

    monkeypatch.setattr(Runtime, "__init__", scaled)
    monkeypatch.setattr(stage, "train_step", overflowing)
    run(capsys, "out")
    content = json.loads(Path("out/gpt2ish_model_step_reason_train_stats.json").read_text())
    assert len(calls) == 4
    assert None not in content["columns"]["loss"]
    assert [norm is None for norm in content["columns"]["grad_norm"]] == [True, False]
    assert all(0 <= reward <= 1 for reward in content["columns"]["reward"])
    assert None not in [loss for source in content["sources"].values() for loss in source["columns"]["loss"]]


def test_with_an_adapter_the_reference_is_the_model_without_it(capsys):
    pytest.importorskip("peft")
    write_plan(Path(), {"before": {"dataset": "tasks.jsonl", "samples": 10},
                        "reason": {"dataset": "tasks.jsonl", "steps": 4, "lr": 0.05, "adapter": {"kind": "lora", "rank": 4}, "objective": grpo(kl=0.1)}})
    run(capsys, "out")
    columns = json.loads(Path("out/gpt2ish_model_step_reason_train_stats.json").read_text())["columns"]
    assert columns["kl"][0] == pytest.approx(0, abs=1e-6)
    assert columns["kl"][-1] > 0
    assert not Path("out/references").exists()


@pytest.mark.slow
def test_a_killed_process_goes_on_exactly(capsys):
    plan(updates=2, kl=0.1)
    arguments = [*TINY, "--batch-size", "5", "--training-plan", "plan.json", "--validation-samples", "4", "--save-interval", "5", "--dropout", "0.3"]
    assert main([*arguments, "--out-dir", "whole"]) == 0
    killed = 0
    for _ in range(12):
        command = ["-m", "lmplay.train", *arguments, "--out-dir", "parts"]
        process = warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
        for line in process.stdout:
            if "reason" in line and killed < 2:
                process.send_signal(signal.SIGKILL)
        process.wait(60)
        killed += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break
    assert killed
    assert compare_runs(Path("whole"), Path("parts")) == []


FORKED = pytest.mark.skipif(os.name == "nt", reason="forked processes")
SHARED = [*TINY, "--training-plan", "plan.json", "--validation-samples", 4, "--validation-interval", 8, "--batch-size", 5, "--mini-batch-size", 2,
          "--dropout", 0]


@pytest.mark.slow
@FORKED
@pytest.mark.parametrize(("sizes", "settings", "flags"), [((2, 4), {"kl": 0.1, "updates": 2, "loss": "dapo"}, []), ((2,), {"updates": 2}, ["--shard"])])
def test_several_processes_write_and_learn_what_one_does(sizes, settings, flags):
    write_plan(Path(), {"reason": {"dataset": "tasks.jsonl", "steps": 4, "lr": 0.01, "objective": grpo(**settings)}})
    for size in (1, *sizes):
        codes, outputs, complaints = several.train(size, *SHARED, "--out-dir", f"out{size}", *(flags if size > 1 else []))
        assert codes == [0] * size, (outputs, complaints)
        assert not any([*outputs[1:], *complaints[1:]])
        one, other = (load(Path(f"out{number}/gpt2ish_model.lmp"))["model"]["state"] for number in (1, size))
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5)
        for kind in ("train", "validate"):
            one, other = (json.loads(Path(f"out{number}/gpt2ish_model_step_reason_{kind}_stats.json").read_text())["columns"] for number in (1, size))
            assert one.keys() == other.keys()
            for name, values in one.items():
                assert values == (pytest.approx(other[name], rel=1e-3, abs=1e-5) if None not in values else other[name]), name
        assert Path(f"out{size}/gpt2ish_model_samples.jsonl").read_text() == Path("out1/gpt2ish_model_samples.jsonl").read_text()


@pytest.mark.slow
@FORKED
@pytest.mark.parametrize(("where", "call", "sent", "codes", "saved"), [
    ("answers.ContinuousBatch.step", 3, "SIGTERM", [143, 143], 2),  # while it writes
    ("stage.train_step", 6, "SIGKILL", [1, -9], 3),  # in the second update of a step: what the other one has done by halves is not saved
    ("stage.train_step", 6, "SIGTERM", [143, 143], 4)])
def test_what_ends_one_process_ends_all_and_the_same_command_goes_on(where, call, sent, codes, saved):
    plan(updates=2, kl=0.1)
    several.train(2, *SHARED, "--out-dir", "whole")
    more = f"""
from lmplay.engine import answers
before, calls = {where}, [0]
def counted(*arguments, **options):
    calls[0] += 1
    if rank == 1 and calls[0] == {call}:
        os.kill(os.getpid(), signal.{sent})
    return before(*arguments, **options)
{where} = counted
"""
    program = PATCH.format(at_step="pass", after_step="pass", more=more)
    ended, _, complaints = several.run(2, "-c", program, *SHARED, "--out-dir", "parts", "--save-interval", "1steps")
    assert ended == codes, complaints
    assert steps_of("parts") == saved
    ended, _, complaints = several.train(2, *SHARED, "--out-dir", "parts")
    assert ended == [0, 0], complaints
    assert compare_runs(Path("whole"), Path("parts")) == []


@FORKED
@pytest.mark.slow
def test_a_reward_that_fails_in_one_process_ends_all_with_one_line():
    name = write_reward("import os\n    if os.path.exists('fails') and text:\n        raise ValueError('no way')\n    return len(text)")
    plan(rewards=name)
    program = PATCH.format(at_step="open('fails', 'w').close() if rank == 1 and steps[0] == 3 else None", after_step="pass", more="")
    codes, outputs, complaints = several.run(2, "-c", program, *SHARED, "--out-dir", "out", "--trust-config")
    assert codes == [2, 2], complaints
    assert complaints[0].count("raises ValueError: no way") == 1
    assert not outputs[1] + complaints[1]
    assert steps_of("out") == 3


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
    for name in ("stories", "questions", "preferences", "sums"):
        assert {row["prompt"] for row in rows if row["stage"] == name and "reward" not in row} == {*content["$prompts"]}
    assert {row["stage"] for row in rows if "reward" in row} == {"sums"}
