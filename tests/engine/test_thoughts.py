"""Runs whose model writes thoughts before predictions: rewards against a plain computation, the teacher, the same bits after a stop, what is refused."""
import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import several
import torch
import warm
from helpers import ENVIRONMENT, TINY, compare_runs, load, sentences, stop_at, train, weights, write_plan, write_rows

from lmplay.engine import stage
from lmplay.train.__main__ import main

END = "."


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), [{"text": f"{number} {sentences(3, word)}"} for number, word in enumerate(["cat", "dog", "cow", "hen"] * 10)])


def rlp(**settings):
    return {"name": "rlp", "thought_tokens": 6, "group": 3, "thought_start": "(", "thought_end": END, "teacher_decay": 0.7, **settings}


def plan(stage=(), **settings):
    write_plan(Path(), {"before": {"dataset": "rows.jsonl", "samples": 10},
                        "think": {"dataset": "rows.jsonl", "steps": 4, "lr": 0.01, "objective": rlp(**settings), **dict(stage)}})


def run(capsys, out, *arguments, code=0):
    return train(capsys, "--training-plan", "plan.json", "--out-dir", out, "--validation-samples", 4, "--validation-interval", "2steps", *arguments, code=code)


def think(out="out", kind="train"):
    return json.loads(Path(f"{out}/gpt2ish_model_step_think_{kind}_stats.json").read_text())


@pytest.mark.parametrize(("horizon", "end"), [(1, END), (4, "#>")])
def test_rewards_are_what_thoughts_add_to_the_log_probability(horizon, end, capsys, monkeypatch):
    """With the thought by the model as it is, without by a running average of its weights from the beginning of the stage."""
    original, seen, follows = stage.train_step, [], {}

    def probability(model, ids, n):
        with torch.no_grad():
            logits = model.head(model(torch.tensor([ids[:-1]])))[0, -n:].double()
        return float(logits.log_softmax(-1).gather(1, torch.tensor(ids[-n:])[:, None]).mean())

    def checked(device_model, optimizers, objective, batch, *rest):
        if objective.writing is not None:
            model = device_model.raw
            own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
            teacher = follows.setdefault("teacher", {name: value.double() for name, value in own.items()})
            model.eval()
            for piece in batch.batch.pieces:
                text, thought = piece.tokens[:piece.n_prompt].tolist(), piece.tokens[piece.n_prompt:].tolist()
                assert chr(text[-1]) == "("
                before, after = piece.judged.between
                ahead = follows["ahead"][piece.sample.row, piece.number]
                assert bytes(token for token in text[:-1] if token < 256).decode().endswith(before)
                assert bytes(token for token in ahead if token < 256).decode() == after
                assert len(ahead) <= horizon
                assert len(thought) <= 6
                has_mark = thought[-len(end):] == [*end.encode()]
                with_thought = probability(model, text + thought + ([] if has_mark else [*end.encode()]) + ahead, len(ahead))
                for name, parameter in model.named_parameters():
                    parameter.data.copy_(teacher[name])
                without = probability(model, text[:-1] + ahead, len(ahead))
                for name, parameter in model.named_parameters():
                    parameter.data.copy_(own[name])
                assert piece.judged.reward == pytest.approx(with_thought - without, abs=2e-5)
                assert piece.judged.rewards == pytest.approx((with_thought, -without), abs=2e-5)
                seen.append(piece.judged.reward)
            rewards = np.array(seen[-len(batch.batch.pieces):]).reshape(-1, 3)
            assert [piece.judged.advantage for piece in batch.batch.pieces] == pytest.approx(list((rewards - rewards.mean(1, keepdims=True)).ravel() * 1.5))
            model.train()
        sums = original(device_model, optimizers, objective, batch, *rest)
        if objective.writing is not None:
            for name, parameter in device_model.raw.named_parameters():
                teacher[name] = 0.7 * teacher[name] + 0.3 * parameter.detach().double()
        return sums

    write = stage.StageRunner._with_answers

    def watched(self, batch):
        follows["ahead"] = {(piece.sample.row, piece.number): piece.tokens[piece.n_prompt:].tolist() for piece in batch.batch.pieces}
        return write(self, batch)

    monkeypatch.setattr(stage, "train_step", checked)
    monkeypatch.setattr(stage.StageRunner, "_with_answers", watched)
    plan(horizon=horizon, thought_end=end)
    run(capsys, "out", "--dropout", 0)
    assert len(seen) == 4 * 5 * 3
    columns = think()["columns"]
    assert columns["reward"] == pytest.approx([float(np.mean(seen[step * 15:step * 15 + 15])) for step in range(4)], abs=1e-5)
    gains = [one - other for one, other in zip(columns["loss_of_teacher"], columns["loss_with_thought"], strict=True)]
    assert columns["reward"] == pytest.approx(gains, abs=1e-5)


@pytest.mark.parametrize(("settings", "flags"), [({}, []), ({"updates": 2, "horizon": 3, "text_weight": 1}, ["--ema", 0.9])])
def test_a_run_that_was_stopped_goes_on_with_the_same_thoughts(settings, flags, capsys, monkeypatch):
    plan(**settings)
    run(capsys, "whole", *flags)
    stop_at(monkeypatch, {4, 6})
    for code in (130, 130, 0):
        run(capsys, "parts", *flags, code=code)
    assert compare_runs(Path("whole"), Path("parts")) == []
    rows = [Path(folder, "gpt2ish_model_samples.jsonl").read_text() for folder in ("whole", "parts")]
    assert rows[0] == rows[1]


def test_a_teacher_is_that_of_its_stage(capsys):
    stage = {"dataset": "rows.jsonl", "steps": 3, "lr": 0.01}
    write_plan(Path(), {"one": {**stage, "objective": rlp()}, "two": {**stage, "objective": rlp(teacher_decay=0.5)}, "three": stage})
    for more, followed, decay in ((1, 1, 0.7), (3, 1, 0.5), (1, 2, 0.5), (2, None, None)):  # of the newest stage
        train(capsys, "--training-plan", "plan.json", "--out-dir", "out", "--max-steps", more, code=75)
        state = load(Path("out/gpt2ish_model.lmp"))["optimizers"]["state"]
        assert ("teacher" in state) == (followed is not None)
        if followed is not None:
            assert {one["step"] for one in state["teacher"]["state"].values()} == {followed}
            assert state["teacher"]["param_groups"][0]["decay"] == decay


def test_without_its_state_a_teacher_begins_anew(capsys, monkeypatch):
    plan()
    stop_at(monkeypatch, {5})
    run(capsys, "out", code=130)
    run(capsys, "out", "--ignore-optimizer")
    assert len(think()["columns"]["reward"]) == 4


def test_the_text_behind_thoughts_may_be_learned_too(capsys, monkeypatch):
    original, seen = stage.train_step, []

    def checked(device_model, optimizers, objective, batch, *rest):
        if objective.writing is not None:
            for piece in batch.batch.pieces:
                behind, read = piece.tokens[piece.n_prompt:], piece.judged.behind
                thought = behind[:len(behind) - len(read)]
                assert np.array_equal(behind[len(thought):], read)
                assert piece.learned.tolist() == [True] * len(thought) + [False] * (len(read) - piece.judged.n_ahead) + [True] * piece.judged.n_ahead
                assert bytes(token for token in behind[:-piece.judged.n_ahead] if token < 256).endswith(b".")  # by itself, or by us
                seen.append(len(thought))
        return original(device_model, optimizers, objective, batch, *rest)

    monkeypatch.setattr(stage, "train_step", checked)
    plan(horizon=3, text_weight=0.5)
    run(capsys, "out")
    columns = think()["columns"]
    assert np.mean(columns["thought_tokens"]) == pytest.approx(np.mean(seen))
    assert len(seen) == 60


@pytest.mark.parametrize("settings", [{}, {"updates": 2, "horizon": 3, "text_weight": 0.5}])
def test_mini_batches_make_no_difference(settings, capsys):
    plan(**settings)
    for size in (1, 12):
        run(capsys, f"by{size}", "--mini-batch-size", size, "--dropout", 0)
    one, other = weights("by1/gpt2ish_model.lmp"), weights("by12/gpt2ish_model.lmp")
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-4)  # a step is 0.01


def test_figures_are_in_statistics_and_thoughts_are_kept(capsys):
    plan(horizon=3)
    said = run(capsys, "out")
    assert "tokens of a thought" in said
    assert "floor" not in said.partition("stage think")[2]
    columns = think()["columns"]
    for name in ("reward", "helpful_share", "loss_with_thought", "loss_of_teacher", "reward_deviation", "thought_tokens", "cut_share", "clipped_share"):
        assert None not in columns[name], name
        assert len(columns[name]) == 4, name
    assert all(1 <= tokens <= 6 for tokens in columns["thought_tokens"])
    judged = think(kind="validate")["columns"]
    assert judged["loss"] == pytest.approx([-reward for reward in judged["reward"]])
    rows = [json.loads(line) for line in Path("out/gpt2ish_model_samples.jsonl").read_text().splitlines()]
    assert rows
    for row in rows:
        assert any(text["text"].find(row["truth"].strip()) >= 0 for text in map(json.loads, Path("rows.jsonl").read_text().splitlines()))
        assert isinstance(row["reward"], float)
        assert row["prompt"]


def test_thoughts_that_help_become_likelier(capsys):
    """The model has hardly learned the text, and the mark is unknown to it: behind most thoughts it predicts worse than without."""
    write_rows(Path("rows.jsonl"), [{"text": "ab" * 20} for _ in range(40)])
    stage = {"dataset": "rows.jsonl", "steps": 30, "lr": 0.01}
    write_plan(Path(), {"before": {**stage, "steps": 10}, "think": {**stage, "warmup": 0, "objective": rlp(group=8, thought_tokens=3, teacher_decay=0.999)}})
    run(capsys, "out", "--dropout", 0, "--batch-size", 8)
    columns = think()["columns"]
    assert np.mean(columns["reward"][-5:]) > columns["reward"][0] + 0.1
    assert np.mean(columns["helpful_share"][-5:]) > columns["helpful_share"][0]


def test_an_adapter_has_a_teacher_too(capsys, monkeypatch):
    pytest.importorskip("peft")
    plan(stage={"adapter": {"kind": "lora", "rank": 2}, "lr": 0.05})
    run(capsys, "whole")
    assert think("whole")["columns"]["reward"][0] != think("whole")["columns"]["reward"][1]
    stop_at(monkeypatch, {5})
    for code in (130, 0):
        run(capsys, "parts", code=code)
    assert compare_runs(Path("whole"), Path("parts")) == []


@pytest.mark.parametrize(("settings", "stage", "told"), [
    ({"thought_tokens": 30}, {}, "stage 'think': thought_tokens 30, and its context_len is 48: at most half of it, 24"),
    ({"thought_tokens": 24, "thought_end": "</thought>"}, {}, "stage 'think': its context_len is 48: at least 53, so that 16 tokens of text fit beside"),
    ({"horizon": 0}, {}, "key 'objective.horizon': found 0, allowed: a whole number, 1 or more"),
    ({"teacher_decay": 1}, {}, "key 'objective.teacher_decay': found 1, allowed: a number above 0 and below 1"),
    ({"thought_end": ""}, {}, "key 'objective.thought_end': found \"\", allowed: a text that is not empty"),
    ({"thought_end": "("}, {}, "key 'objective.thought_end': found the same as thought_start, allowed: another text"),
    ({"rewards": "exact"}, {}, "key 'objective.rewards': found it with rlp, allowed: group, thought_tokens"),
    ({}, {"tokens": 500, "steps": None}, "how many the model will write is not known")])
def test_what_cannot_be_is_refused_before_anything_is_done(settings, stage, told, capsys):
    given = {"dataset": "rows.jsonl", "steps": 4, "objective": rlp(**settings), **stage}
    write_plan(Path(), {"think": {key: value for key, value in given.items() if value is not None}})
    said = run(capsys, "out", code=2)
    assert told in said
    assert "Traceback" not in said
    assert not list(Path("out").glob("*.lmp"))


def test_what_is_told_before_a_run(capsys):
    plan()
    said = run(capsys, "out", "--check-plan")
    assert "stage think" in said
    assert "steps       4" in said
    said = run(capsys, "out", "--show-samples", 1)
    assert "(" in said.partition("stage think")[2]


@pytest.mark.slow
def test_a_killed_process_goes_on_exactly(capsys):
    plan(updates=2)
    arguments = [*TINY, "--training-plan", "plan.json", "--validation-samples", "4", "--save-interval", "5", "--dropout", "0.3"]
    assert main([*arguments, "--out-dir", "whole"]) == 0
    killed = 0
    for _ in range(12):
        process = warm.Popen(["-m", "lmplay.train", *arguments, "--out-dir", "parts"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env=ENVIRONMENT)
        for line in process.stdout:
            if "think" in line and killed < 2:
                process.send_signal(signal.SIGKILL)
        process.wait(60)
        killed += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break
    assert killed
    assert compare_runs(Path("whole"), Path("parts")) == []


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="forked processes")
@pytest.mark.parametrize("flags", [[], ["--shard"]])
def test_several_processes_write_and_learn_what_one_does(flags):
    write_plan(Path(), {"think": {"dataset": "rows.jsonl", "steps": 4, "lr": 0.01, "objective": rlp(updates=2, horizon=2, text_weight=0.3)}})
    shared = [*TINY, "--training-plan", "plan.json", "--validation-samples", 4, "--batch-size", 5, "--mini-batch-size", 2, "--dropout", 0]
    for size in (1, 2):
        codes, outputs, complaints = several.train(size, *shared, "--out-dir", f"out{size}", *(flags if size > 1 else []))
        assert codes == [0] * size, (outputs, complaints)
    one, other = (load(Path(f"out{number}/gpt2ish_model.lmp"))["model"]["state"] for number in (1, 2))
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-4)
    assert think("out1")["columns"]["reward"] == pytest.approx(think("out2")["columns"]["reward"], rel=1e-3, abs=1e-5)
    one, other = ([json.loads(line) for line in Path(f"out{number}/gpt2ish_model_samples.jsonl").read_text().splitlines()] for number in (1, 2))
    assert one == [{**row, "reward": pytest.approx(row["reward"], abs=1e-4)} for row in other]
