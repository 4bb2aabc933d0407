"""Schedules of a stage in whole runs: what each step is trained with, and that a run that was stopped in any part goes on exactly."""
import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from helpers import TINY, compare_runs, load, main, stop_at, train_plan, write_plan

from lmplay.data.stage import StageData
from lmplay.engine.components import LrSchedulersComponent
from lmplay.optim.set import OptimizerSet

MODEL = Path("out_gpt/gpt2ish_model.lmp")
EXAMPLE = [{"name": "linear", "from": 0, "steps": 4}, {"name": "cosine", "to": 0.1, "steps": "rest"}, {"name": "linear", "to": 0, "samples": "25%"}]


def stage(**keys):
    return {"dataset": "rows.jsonl", "lr": 1e-3, "validation": {"samples": 3}, **keys}


def column(name, stage="one", path=MODEL):
    return load(path)["runner"]["state"]["step_stats"][stage]["train"]["rows"][name]


def test_parts_of_a_stage(corpus, capsys):
    write_plan(corpus, {"one": stage(steps=16, lr_schedule=EXAMPLE)})
    text = train_plan(capsys)
    assert "lr 0.001 linear from 0 to 1 (25%), then cosine to 0.1 (rest), then linear to 0 (25%)" in " ".join(text.split())
    rates = column("lr")
    assert rates[:5] == pytest.approx([0, 0.25e-3, 0.5e-3, 0.75e-3, 1e-3])
    assert rates[8] == pytest.approx(0.55e-3)
    assert rates[12:] == pytest.approx([0.1e-3, 0.075e-3, 0.05e-3, 0.025e-3])


def test_a_stop_in_each_part_changes_nothing(corpus, capsys, monkeypatch):
    """Parts in steps, samples and tokens, the rest, and a share at the end; a stage behind it starts again."""
    parts = [{"name": "linear", "from": 0, "steps": 2}, {"name": "polynomial", "to": 0.5, "samples": 8}, {"name": "linear", "to": 0.8, "tokens": 300},
             {"name": "inverse_sqrt", "to": 0.2, "steps": "rest"}, {"name": "linear", "to": 0, "steps": "30%"}]
    write_plan(corpus, {"one": stage(tokens=2000, lr_schedule=parts), "two": stage(steps=1, lr_schedule=parts[-2:])})
    flags = ["--dropout", "0.1", "--validation-interval", 20]
    train_plan(capsys, *flags, "--out-dir", "whole")
    reached, original = [], LrSchedulersComponent.lr
    monkeypatch.setattr(LrSchedulersComponent, "lr", lambda self, *given: (original(self, *given), reached.append(self.place.part))[0])
    train_plan(capsys, *flags, "--out-dir", "again")
    stops = [step for step, (before, part) in enumerate(itertools.pairwise(reached), 1) if before == part and reached[:step].count(part) == 1]
    assert [reached[step] for step in stops] == [0, 1, 2, 3, 4]
    stop_at(monkeypatch, stops)
    for _ in stops:
        train_plan(capsys, *flags, "--out-dir", "stopped", code=130)
    train_plan(capsys, *flags, "--out-dir", "stopped")
    assert compare_runs(corpus / "whole", corpus / "stopped") == []


def test_a_plateau_goes_on_after_a_stop_with_what_validations_have_made_of_it(corpus, capsys, monkeypatch):
    parts = [{"name": "plateau", "patience": 1, "factor": 0.5, "steps": "rest"}, {"name": "linear", "to": 0, "steps": "25%"}]
    write_plan(corpus, {"one": stage(steps=16, lr=1.0, optimizer="sgd", lr_schedule=parts)})  # such a learning rate makes the loss worse
    flags = ["--validation-interval", "2steps"]
    train_plan(capsys, *flags, "--out-dir", "whole")
    content = load(corpus / "whole" / MODEL.name)["runner"]["state"]["step_stats"]["one"]
    losses = [total / count for total, count in zip(*(content["validate"]["rows"][name] for name in ("loss_sum", "n_tokens")), strict=True)]
    rates = content["train"]["rows"]["lr"]
    expected, best, factor = [1.0, 1.0], None, 1.0
    for loss in losses[:6]:
        factor *= 0.5 if best is not None and loss >= best else 1.0
        best = loss if best is None else min(best, loss)
        expected += [factor] * 2
    assert expected[11] < 1
    assert rates[:12] == expected[:12]
    assert rates[12:] == pytest.approx([expected[12] * left / 4 for left in (4, 3, 2, 1)])
    stop_at(monkeypatch, [5, 12])
    for _ in range(2):
        train_plan(capsys, *flags, "--out-dir", "stopped", code=130)
    train_plan(capsys, *flags, "--out-dir", "stopped")
    assert compare_runs(corpus / "whole", corpus / "stopped") == []


def test_a_checkpoint_without_a_place_goes_on(corpus, capsys):
    """As versions before parts wrote them."""
    write_plan(corpus, {"one": stage(steps=8, lr_schedule="cosine")})
    train_plan(capsys, "--out-dir", "whole")
    train_plan(capsys, "--max-steps", 3, code=75)
    content = load(MODEL)
    del content["lr_schedulers"]["state"]["main"]["place"]
    torch.save(content, MODEL)
    train_plan(capsys)
    assert column("lr") == column("lr", path=corpus / "whole" / MODEL.name)


@pytest.mark.parametrize(("schedule", "needs"), [
    (EXAMPLE, True), (EXAMPLE[:2], True), ([{"name": "constant", "steps": "5%"}, {"name": "constant", "steps": "rest"}], True), ("step", True),
    ([EXAMPLE[0], {"name": "constant", "steps": "rest"}], False), ([EXAMPLE[0], {"name": "plateau", "steps": "rest"}], False), ("plateau", False)])
def test_a_schedule_needs_a_length_where_it_depends_on_one(corpus, capsys, monkeypatch, schedule, needs):
    monkeypatch.setattr(StageData, "length_is_known", False)
    write_plan(corpus, {"one": stage(epochs=1, lr_schedule=schedule)})
    text = train_plan(capsys, "--max-steps", 1, code=2 if needs else 75)
    assert ("stage 'one': lr_schedule " in text and "needs a length that is known; give samples, tokens or steps" in text) == needs


def test_changes_and_records_say_what_the_schedule_is(corpus, capsys):
    write_plan(corpus, {"one": stage(steps=3), "two": stage(steps=20, lr_schedule=EXAMPLE)})
    train_plan(capsys, "--max-steps", 2, code=75)
    stages = json.loads((corpus / "out_gpt" / "gpt2ish_model_settings.json").read_text())["stages"]
    assert (stages["one"]["schedule"], stages["one"]["min_fraction"], stages["one"]["warmup"]) == ("constant", 1.0, 40)
    assert stages["two"]["schedule"] == "linear from 0 to 1 (20%), then cosine to 0.1 (rest), then linear to 0 (25%)"
    assert stages["two"]["warmup"] == 0
    assert "min_fraction" not in stages["two"]
    write_plan(corpus, {"one": stage(steps=3), "two": stage(steps=20, lr_schedule=EXAMPLE[1:])})
    text = " ".join(train_plan(capsys, code=0).split())
    assert "stage 'two' (not begun): lr_schedule was" in text
    assert '"from": 0' in text


def test_weight_decay_by_parts(corpus, capsys, monkeypatch):
    parts = [{"name": "linear", "from": 0, "to": 0.4, "steps": 4}, {"name": "constant", "from": 0.2, "steps": "rest"},
             {"name": "cosine", "to": 0.6, "tokens": "25%"}]
    write_plan(corpus, {"one": stage(steps=16, weight_decay=parts), "two": stage(steps=2, weight_decay=0.3)})
    used, original = [], OptimizerSet.step
    monkeypatch.setattr(OptimizerSet, "step", lambda self: (used.append({group["decays"]: group["weight_decay"] for group in self.param_groups}),
                                                            original(self))[1])
    flags = ["--dropout", "0.1", "--validation-interval", 20]
    train_plan(capsys, *flags, "--out-dir", "whole")
    expected = [0, 0.1, 0.2, 0.3, *[0.2] * 8, *(0.6 - 0.4 * (1 + math.cos(math.pi * done / 4)) / 2 for done in range(4)), 0.3, 0.3]
    assert [groups[True] for groups in used] == pytest.approx(expected)
    assert {groups[False] for groups in used} == {0.0}
    record = json.loads((corpus / "whole" / "gpt2ish_model_settings.json").read_text())["stages"]
    assert record["one"]["weight_decay"] == "linear from 0 to 0.4 (25%), then constant from 0.2 (rest), then cosine to 0.6 (25%)"
    assert record["two"]["weight_decay"] == 0.3
    stop_at(monkeypatch, [2, 6, 14])
    for _ in range(3):
        train_plan(capsys, *flags, "--out-dir", "stopped", code=130)
    train_plan(capsys, *flags, "--out-dir", "stopped")
    assert compare_runs(corpus / "whole", corpus / "stopped") == []
    train_plan(capsys, *flags, "--max-steps", 2, code=75)
    text = train_plan(capsys, *flags, "--weight-decay", "0", "--max-steps", 1, code=75)
    assert "weight_decay_schedule linear from 0 to 0.4" in text
    assert used[-1][True] == 0


def batches_of(monkeypatch):
    """List the number of pieces, and the most tokens of a piece, of each batch that is trained on."""
    from lmplay.engine import stage as stage_module

    found, original = [], stage_module.train_step

    def step(model, optimizers, objective, batch, *arguments, **options):
        found.append((len(batch.batch.pieces), max(len(piece.tokens) for piece in batch.batch.pieces)))
        return original(model, optimizers, objective, batch, *arguments, **options)

    monkeypatch.setattr(stage_module, "train_step", step)
    return found


GROWING = {"batch_size": [{"name": "constant", "from": 2, "steps": "25%"}, {"name": "linear", "from": 4, "to": 8, "steps": "rest"}],
           "context_len": [{"name": "constant", "from": 20, "steps": "50%"}, {"name": "linear", "from": 32, "to": 48, "steps": "rest"}]}


def follow_plan(folder, capsys, stages, *flags, code=0):
    """Run a plan whose sizes no flag replaces; gives all that is said."""
    write_plan(folder, {"$model": {"context_len": 48}, **stages})
    at = TINY.index("--context-len")
    found = main([*TINY[:at], *TINY[at + 2:], "--training-plan", "plan.json", *map(str, flags)])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return " ".join((captured.out + captured.err).split())


def test_batches_and_context_grow_by_parts(corpus, capsys, monkeypatch):
    found = batches_of(monkeypatch)
    text = follow_plan(corpus, capsys, {"one": stage(steps=8, pieces="spread", **GROWING), "two": stage(steps=1, batch_size=3)})
    assert "batch constant from 2 (25%), then linear from 4 to 8 (rest), context constant from 20 (50%), then linear from 32 to 48 (rest)" in text
    assert "batch 2 to 8 / 3" in text
    sizes = [size for size, _ in found]
    assert sizes == [2, 2, 4, 5, 5, 6, 7, 7, 3]  # 4 + 4 k / 6, rounded
    longest = [length for _, length in found]
    assert max(longest[:4]) <= 20
    assert min(longest[4:]) > 20
    record = json.loads((corpus / "out_gpt" / "gpt2ish_model_settings.json").read_text())["stages"]
    assert record["one"]["batch_size"] == "constant from 2 (25%), then linear from 4 to 8 (rest)"
    assert (record["two"]["batch_size"], record["two"]["context_len"]) == (3, 48)


@pytest.mark.parametrize("pieces", ["together", "spread", "shuffled"])
@pytest.mark.parametrize("length", [{"steps": 12}, {"samples": 40}, {"tokens": 3000}], ids=str)
def test_a_stop_while_sizes_grow_changes_nothing(corpus, capsys, monkeypatch, pieces, length):
    found = batches_of(monkeypatch)
    plan = {"one": stage(pieces=pieces, **length, **GROWING)}
    flags = ["--dropout", "0.1", "--validation-interval", 20]
    follow_plan(corpus, capsys, plan, *flags, "--out-dir", "whole")
    assert {2, 7} <= {size for size, _ in found} or pieces == "shuffled"
    stops = [1, 2, len(found) // 2, len(found) - 1]
    stop_at(monkeypatch, stops)
    for _ in dict.fromkeys(stops):
        follow_plan(corpus, capsys, plan, *flags, "--out-dir", "stopped", "--data-workers", 2, code=130)
    follow_plan(corpus, capsys, plan, *flags, "--out-dir", "stopped")
    assert compare_runs(corpus / "whole", corpus / "stopped") == []


def test_a_typed_size_replaces_the_schedule_and_is_told(corpus, capsys, monkeypatch):
    found = batches_of(monkeypatch)
    plan = {"one": stage(steps=8, **GROWING)}
    follow_plan(corpus, capsys, plan, "--max-steps", 3, code=75)
    said = follow_plan(corpus, capsys, plan, "--max-steps", 2, "--batch-size", 5, code=75)
    assert [size for size, _ in found] == [2, 2, 4, 5, 5]
    assert "batch_size 8 -> 5 in stage 'one'" in said
    assert "batch_size_schedule constant from 2 (25%), then linear from 4 to 8 (rest) -> default in stage 'one'" in said
    follow_plan(corpus, capsys, plan, "--max-steps", 2, code=75)
    assert [size for size, _ in found[5:]] == [6, 7]


@pytest.mark.parametrize(("keys", "words"), [
    ({"context_len": [{"name": "linear", "from": 16, "to": 64, "steps": "rest"}], "steps": 4},
     ["stage 'one': context_len reaches 64, which is more than the model's 48; lower it, or start a new model with --context-len 64"]),
    ({"batch_size": [{"name": "linear", "from": 2, "to": 8, "steps": "rest"}], "epochs": 1},
     ["stage 'one': batch_size as a list of parts needs a length that is known; give samples, tokens or steps."])])
def test_sizes_that_cannot_be_are_refused_before_training(corpus, capsys, monkeypatch, keys, words):
    if "epochs" in keys:
        monkeypatch.setattr(StageData, "length_is_known", False)
    said = follow_plan(corpus, capsys, {"one": stage(**keys)}, code=2)
    assert all(word in said for word in words)


@pytest.mark.parametrize(("steps", "warned"), [(3, True), (5, False)])
def test_a_stage_that_is_shorter_than_its_warm_up_is_warned_of(corpus, capsys, steps, warned):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": steps, "warmup": 5}})
    said = train_plan(capsys)
    assert ("WARNING: stage 'one': 3 steps, and its warm-up takes 5: the learning rate has not reached its peak." in said) == warned
