"""Stages that train an adapter: resumed exactly, whole states wherever one is used, and what is wrong said in a line."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import warm
from helpers import ENVIRONMENT, TINY, compare_runs, generate, load, sentences, write_plan, write_rows
from pairs import rows_of_pairs
from tasks import TASKS, grpo

from lmplay.checkpoints.trained import open_trained
from lmplay.engine import adapting
from lmplay.evaluate.__main__ import main as evaluate
from lmplay.export.__main__ import main as export
from lmplay.train.__main__ import main

pytest.importorskip("peft")
ADAPTER = {"kind": "lora", "rank": 4, "dropout": 0.1}
PLAN = {"$defaults": {"batch_size": 5}, "one": {"dataset": "rows.jsonl", "samples": 7},
        "two": {"dataset": "rows.jsonl", "samples": 20, "lr": 0.01, "adapter": ADAPTER, "early_stopping": {"patience": 9}},
        "three": {"dataset": "rows.jsonl", "samples": 10}}
RUN = [*TINY, "--training-plan", "plan.json", "--validation-interval", "7", "--save-interval", "6", "--mini-batch-size", "2"]
MODEL = "gpt2ish_model"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1 + i % 3)} for i in range(40)])
    write_rows(tmp_path / "chats.jsonl", [{"prompt": f"Say {i}.", "completion": sentences(1 + i % 3)} for i in range(40)])
    write_rows(tmp_path / "pairs.jsonl", rows_of_pairs(40))
    write_rows(tmp_path / "tasks.jsonl", TASKS)
    write_plan(tmp_path, PLAN)
    return tmp_path


def run(*arguments, code=0):
    assert main([*RUN, *map(str, arguments)]) == code


def change(**stages):
    plan = json.loads(Path("plan.json").read_text())
    for name, more in stages.items():
        plan[name] = {**plan[name], **more}
    Path("plan.json").write_text(json.dumps(plan))


def in_slices(out, *arguments, steps=2):
    """Stop after each few steps, until the plan is done."""
    codes = [75]
    while codes[-1] == 75:
        codes.append(main([*RUN, *arguments, "--out-dir", out, "--max-steps", str(steps)]))
        assert len(codes) < 60
    assert codes[-1] == 0
    return len(codes)


def whole_state(path):
    """The weights as they are to be used."""
    return open_trained(Path(path)).module.state_dict()


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


WAYS = {"lora, muon": ({"optimizer": "muon"}, []), "dora, averages": ({"adapter": {**ADAPTER, "kind": "dora"}}, ["--ema", "0.8"]),
        "rslora, schedulefree": ({"adapter": {**ADAPTER, "kind": "rslora", "targets": "attention"}}, ["--optimizer", "schedulefree"])}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_stopped_goes_on_exactly(folder, capsys, way):
    stage, flags = WAYS[way]
    if "--optimizer" in flags:
        pytest.importorskip("schedulefree")
    change(two=stage)
    run("--out-dir", "whole", *flags)
    assert in_slices("parts", *flags) > 6
    assert compare_runs(Path("whole"), Path("parts")) == []


@pytest.mark.slow
@pytest.mark.parametrize("stage", [{"dataset": "chats.jsonl", "objective": {"name": "sft", "per": "sample"}}, {"dataset": "pairs.jsonl", "objective": "dpo"},
                                   {"dataset": "pairs.jsonl", "objective": "orpo"}, {"dataset": "tasks.jsonl", "objective": grpo(kl=0.1), "batch_size": 6}])
def test_every_objective_can_have_one_and_goes_on_exactly(folder, capsys, stage):
    change(two={**stage, "samples": 12, "adapter": ADAPTER})
    run("--out-dir", "whole")
    in_slices("parts", steps=3)
    assert compare_runs(Path("whole"), Path("parts")) == []


def test_the_base_is_frozen_and_states_hold_the_adapter_alone(folder, capsys):
    run("--out-dir", "out", "--max-steps", "6", code=75)
    assert "adapter lora, rank 4, alpha 8, on 4 layers: 1,024 parameters are trained, the 8,192 of the model are frozen" in capsys.readouterr().out
    state = load(Path(f"out/{MODEL}.lmp"))
    one = load(Path(f"out/{MODEL}.one.lmp"))["model"]["state"]
    assert sum(value.numel() for value in state["model"]["state"].values()) == 1024
    assert all(".lora_" in name for name in state["model"]["state"])
    numbers = [number for member in state["optimizers"]["state"].values() for number in member["state"]]
    assert len(numbers) == len(state["model"]["state"])
    (base,) = Path("out/bases").iterdir()
    assert state["model"]["state_args"]["adapter"]["base"] == base.stem
    assert same(load(base)["model"]["state"], one)
    assert any(not torch.equal(value, one[name]) for name, value in whole_state(f"out/{MODEL}.lmp").items())
    assert all(torch.equal(value, one[name]) for name, value in whole_state(f"out/{MODEL}.lmp").items() if "norm" in name or "embedding" in name)
    run("--out-dir", "out")
    assert set(one) == set(load(Path(f"out/{MODEL}.two.lmp"))["model"]["state"])  # merged
    assert "adapter" not in load(Path(f"out/{MODEL}.two.lmp"))["model"]["state_args"]


def test_the_end_of_the_stage_merges_what_it_was_judged_by(folder, capsys):
    """The best state of the stage is that of its last validation here, before the merge; the stage's own file is written after it."""
    change(two={"lr": 0.05, "adapter": {**ADAPTER, "dropout": 0}})
    run("--out-dir", "out")
    best, end = load(Path(f"out/{MODEL}.two.best.lmp")), load(Path(f"out/{MODEL}.two.lmp"))
    assert best["runner"]["state"]["stats"]["total_train_steps"] == end["runner"]["state"]["stats"]["total_train_steps"]
    assert "adapter" in best["model"]["state_args"]
    assert same(whole_state(f"out/{MODEL}.two.best.lmp"), end["model"]["state"])


def test_a_state_in_the_middle_is_a_model_for_every_program(folder, capsys):
    run("--out-dir", "out", "--max-steps", "6", code=75)
    capsys.readouterr()
    expected = whole_state(f"out/{MODEL}.lmp")
    assert generate(capsys, "--out-dir", "out", "--prompt", "The", "--max-tokens", "3")[0] == 0
    assert evaluate([MODEL, "--out-dir", "out", "--set", "rows.jsonl", "--device", "cpu"]) == 0
    assert export([MODEL, "exported", "--out-dir", "out"]) == 0
    exported = pytest.importorskip("transformers").AutoModelForCausalLM.from_pretrained("exported")
    assert torch.equal(exported.transformer.wte.weight, expected["token_embedding.weight"])
    torch.testing.assert_close(exported.transformer.h[0].mlp.c_fc.weight.T, expected["blocks.0.mlp.expansion.weight"])
    capsys.readouterr()
    assert main(["--inspect", f"out/{MODEL}.lmp"]) == 0
    (base,) = Path("out/bases").iterdir()
    assert f"adapter     lora, rank 4, alpha 8, on 4 layers; the weights below it are in {base} (there)" in capsys.readouterr().out
    assert main([*RUN[:-8], "--dataset", "rows.jsonl", "--initial-model", f"out/{MODEL}.lmp", "--model", "next", "--max-steps", "1", "--lr", "1e-12",
                 "--out-dir", "out"]) == 75
    weights = load(Path("out/next.lmp"))["model"]["state"]
    assert all(torch.allclose(weights[name], value, atol=1e-6) for name, value in expected.items())


def test_resumes_from_a_state_elsewhere_and_from_the_best(folder, capsys):
    run("--out-dir", "out", "--max-steps", "6", code=75)
    run("--out-dir", "elsewhere", "--resume", f"out/{MODEL}.lmp", "--max-steps", "1", code=75)
    assert [file.name for file in Path("out/bases").iterdir()] == [file.name for file in Path("elsewhere/bases").iterdir()]
    (base,) = Path("elsewhere/bases").iterdir()
    content = base.read_bytes()
    base.unlink()  # a link to the other
    base.write_bytes(content[:-9])
    assert main(["--inspect", f"elsewhere/{MODEL}.lmp"]) == 0
    assert f"{base} (damaged)" in capsys.readouterr().out
    run("--out-dir", "elsewhere", "--resume", f"out/{MODEL}.lmp", "--max-steps", "1", code=75)
    assert base.read_bytes() == content
    run("--out-dir", "out", "--resume", "best")
    assert "plan complete" in capsys.readouterr().out


def test_other_seeds_of_one_base_share_its_file(folder, capsys):
    plan = {"two": PLAN["two"]}
    run("--out-dir", "out", "--training-plan", "plan.json", "--max-steps", "3", code=75)
    write_plan(folder, {"$defaults": {"batch_size": 5}, **plan})
    for seed in (1, 2):
        run("--out-dir", "out", "--initial-model", f"out/{MODEL}.one.lmp", "--model", f"s{seed}", "--seed", seed, "--max-steps", "1", code=75)
    assert len(list(Path("out/bases").iterdir())) == 1
    one, two = (load(Path(f"out/s{seed}.lmp"))["model"]["state"] for seed in (1, 2))
    assert not same(one, two)


def refused(capsys, *arguments):
    capsys.readouterr()
    run("--out-dir", "out", *arguments, code=2)
    said = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in "".join(said)
    return said


def test_a_base_that_is_gone_damaged_or_another_is_refused(folder, capsys):
    run("--out-dir", "out", "--max-steps", "6", code=75)
    before = Path(f"out/{MODEL}.lmp").read_bytes()
    (base,) = Path("out/bases").iterdir()
    content = base.read_bytes()
    again = f"or repeat the stage from its start with --resume out/{MODEL}.one.lmp"
    base.rename("kept.lmp")
    (line,) = refused(capsys)
    assert f"holds an adapter, and the weights below it, {base}, are not there." in line
    assert again in line
    base.write_bytes(content[:-200] + b"x" + content[-199:])
    (line,) = refused(capsys)
    assert "cannot be read" in line
    assert "damaged" in line
    write_plan(folder, {**PLAN, "one": {**PLAN["one"], "samples": 5}})
    run("--out-dir", "other", "--max-steps", "4", code=75)
    base.write_bytes(next(Path("other/bases").iterdir()).read_bytes())
    write_plan(folder, PLAN)
    (line,) = refused(capsys)
    assert "are not those that it was trained on" in line
    assert Path(f"out/{MODEL}.lmp").read_bytes() == before
    assert generate(capsys, "--out-dir", "out", "--prompt", "The")[0] == 2
    run("--out-dir", "out", "--resume", f"out/{MODEL}.one.lmp")
    assert "plan complete" in capsys.readouterr().out


def test_a_begun_stage_keeps_its_adapter(folder, capsys):
    run("--out-dir", "out", "--max-steps", "6", code=75)
    change(two={"adapter": {**ADAPTER, "rank": 8}})
    assert "stage 'two' has been begun and differs in this plan: adapter was" in refused(capsys)[0]


@pytest.mark.parametrize(("stage", "said"), [
    ({"adapter": {"kind": "lora", "rank": 0}}, "'adapter.rank': found 0, allowed: a whole number, 1 or more"),
    ({"adapter": "lorra"}, "'adapter': found \"lorra\", allowed: lora, dora, rslora, or {\"kind\": ..."),
    ({"adapter": {"kind": "lora", "targets": "mlp"}}, "'adapter.targets': found \"mlp\", allowed: attention or all"),
    ({"adapter": {"kind": "lora", "dropout": 1}}, "'adapter.dropout': found 1"),
    ({"adapter": {"kind": "lora", "alpha": 0}}, "'adapter.alpha': found 0"),
    ({"adapter": {"kind": "lora", "targets": ["layers.*"]}}, "stage 'two': adapter.targets 'layers.*': matches no linear layer."),
    ({"adapter": {"kind": "lora", "rank": 500}}, "stage 'two': adapter.rank 500: is more than"),
    ({"adapter": "lora", "freeze": ["blocks.*"]}, "'freeze': found it beside adapter, allowed: one of them")])
def test_wrong_settings_are_refused_in_a_line(folder, capsys, stage, said):
    change(two=stage)
    for look in ([], ["--check-plan"]):
        (line,) = [line for line in refused(capsys, *look) if "adapter" in line]
        assert said in line
    assert not Path("out").exists()


def test_rules_of_the_plan_are_for_weights_and_for_adapters(folder, capsys):
    plan = {**PLAN, "two": {**PLAN["two"], "adapter": {**ADAPTER, "dropout": 0}}}
    write_plan(folder, {**plan, "$optimizer": [{"match": "*.lora_B.*", "lr": 1e-9}, {"match": "token_embedding.*", "lr": 0.5}]})
    run("--out-dir", "out", "--max-steps", "6", code=75)
    state = load(Path(f"out/{MODEL}.lmp"))["model"]["state"]
    assert all(value.abs().max() < 1e-6 for name, value in state.items() if "lora_B" in name)
    run("--out-dir", "out")
    write_plan(folder, {**plan, "$optimizer": [{"match": "*.lora_C.*", "lr": 2}]})
    assert "$optimizer '*.lora_C.*': matches no parameter." in refused(capsys, "--reset-history")[0]
    write_plan(folder, {"one": PLAN["one"], "$optimizer": [{"match": "*.lora_B.*", "lr": 2}]})
    assert "$optimizer '*.lora_B.*': is for the parameters of an adapter, and no stage has one." in refused(capsys, "--reset-history")[0]


def test_null_leaves_the_adapter_of_the_defaults_out(folder, capsys):
    write_plan(folder, {"$defaults": {"batch_size": 5, "adapter": "lora"}, "one": {"dataset": "rows.jsonl", "samples": 6, "adapter": None},
                        "two": {"dataset": "rows.jsonl", "samples": 6}})
    run("--out-dir", "out")
    said = capsys.readouterr().out
    assert said.count("adapter lora, rank 16, alpha 32, on 4 layers") == 1
    record = json.loads(Path(f"out/{MODEL}_settings.json").read_text())["stages"]
    assert "adapter" not in record["one"]
    assert record["two"]["adapter"] == {"kind": "lora", "rank": 16, "alpha": 32.0, "dropout": 0.0, "targets": "all", "quantize": None}


def test_a_save_that_is_killed_leaves_a_whole_base_or_none(folder, capsys, monkeypatch):
    from lmplay.checkpoints import base

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(base, "write", full)
        assert "stage 'two': the weights below its adapter could not be written (No space left on device); what was saved is intact" in refused(capsys)[0]
    Path("out/bases").mkdir(exist_ok=True)
    run("--out-dir", "whole")
    (name,) = [file.name for file in Path("whole/bases").iterdir()]
    half, young = (Path("out/bases") / f".{name}.{number}.tmp" for number in (999999999, 999999998))
    half.write_bytes(b"half")
    os.utime(half, (1, 1))
    young.write_bytes(b"of a run on another machine, whose processes are not seen here")
    (Path("out/bases") / name).write_bytes(b"half, as a copy that was broken off")
    run("--out-dir", "out")
    assert sorted(file.name for file in Path("out/bases").iterdir()) == [young.name, name]
    young.unlink()
    assert compare_runs(Path("whole"), Path("out")) == []


@pytest.mark.parametrize("adapter", [{"kind": "lora", "quantize": "nf4"}, {"kind": "dora", "quantize": "int8"}])
def test_weights_below_it_may_be_quantized(folder, capsys, monkeypatch, adapter):
    """A state within the stage, and the end of it, are what was trained: the quantized weights and the adapter; the base is kept as it was."""
    pytest.importorskip("bitsandbytes")
    change(two={"adapter": {**ADAPTER, **adapter}})
    run("--out-dir", "whole")
    assert f"the 8,192 of the model are frozen, 3,072 of them in {adapter['quantize']}" in capsys.readouterr().out
    in_slices("parts", steps=3)
    assert compare_runs(Path("whole"), Path("parts")) == []
    run("--out-dir", "some", "--max-steps", "5", code=75)
    before, (base,) = load(Path(f"some/{MODEL}.one.lmp"))["model"]["state"], Path("some/bases").iterdir()
    assert same(load(base)["model"]["state"], before)
    found = whole_state(f"some/{MODEL}.lmp")
    changed = [name for name in before if not torch.equal(before[name], found[name])]
    assert len(changed) == 4
    for name in changed:
        assert 0 < (before[name] - found[name]).norm() < 0.5 * before[name].norm()
    run("--out-dir", "some", "--check-plan")
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(adapting, "base_file", lambda path, identity: path.parent / "none.lmp")
        run("--out-dir", "some", "--max-steps", "1", code=75)
    assert f"none.lmp, the weights below the adapter, is gone and cannot be written again, as they are kept in {adapter['quantize']} only" in \
        capsys.readouterr().out
    base.unlink()
    run("--out-dir", "some", code=2)
    assert "holds an adapter, and the weights below it" in capsys.readouterr().err


def test_weights_that_cannot_be_quantized_are_refused(folder, capsys, monkeypatch):
    change(two={"adapter": {**ADAPTER, "quantize": "int4"}})
    run("--out-dir", "out", code=2)
    assert "stage 'two', key 'adapter.quantize'" in capsys.readouterr().err
    change(two={"adapter": {**ADAPTER, "quantize": "nf4"}})
    for name in ("bitsandbytes", "bitsandbytes.functional"):
        monkeypatch.setitem(sys.modules, name, None)
    run("--out-dir", "out", code=2)
    assert "stage 'two': adapter.quantize: the package bitsandbytes cannot be imported" in capsys.readouterr().err
    assert not list(Path("out").glob("*.lmp"))


@pytest.mark.slow
def test_a_killed_process_goes_on_exactly(folder, capsys):
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["-m", "lmplay.train", *RUN]
    assert warm.run([*command, "--out-dir", "whole"], timeout=300, env=environment).returncode == 0
    path = Path(f"parts/{MODEL}.lmp")
    killed = 0
    for samples in (12, 20):  # both in the stage with the adapter
        process = warm.Popen([*command, "--out-dir", "parts"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        while process.poll() is None and not (path.exists() and load_samples(path) >= samples):
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
        killed += process.returncode == -signal.SIGKILL
    assert killed
    done = warm.run([*command, "--out-dir", "parts"], timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert compare_runs(Path("whole"), Path("parts")) == []


def load_samples(path):
    try:
        return load(path)["runner"]["state"]["stats"]["total_train_samples"]
    except (RuntimeError, OSError):
        return 0


def test_a_base_that_is_deleted_while_the_run_works_is_written_again(folder, capsys, monkeypatch):
    from lmplay.engine import stage

    begin = stage.begin_adapter

    def gone(*arguments):
        begin(*arguments)
        for file in Path("out/bases").glob("*"):
            file.unlink()

    with monkeypatch.context() as patch:
        patch.setattr(stage, "begin_adapter", gone)
        run("--out-dir", "out", "--max-steps", "6", code=75)
        run("--out-dir", "out", "--max-steps", "1", code=75)
    assert whole_state(f"out/{MODEL}.lmp")
    run("--out-dir", "out")


def test_an_adapter_of_an_earlier_attempt_is_kept_and_not_exported_as_the_present_one(folder, capsys):
    run("--out-dir", "out")
    old = Path(f"out/adapters/{MODEL}.two.lmp").read_bytes()
    run("--out-dir", "out", "--resume", f"out/{MODEL}.one.lmp", "--max-steps", "3", code=75)
    assert [file.read_bytes() for file in Path("out/adapters").iterdir()] == [old]
    assert Path(f"out/adapters/{MODEL}.old-1.two.lmp").read_bytes() == old
    Path(f"out/adapters/{MODEL}.two.lmp").write_bytes(old)
    assert export([MODEL, "--state", "two", "--adapter-only", "adapter", "--out-dir", "out"]) == 0
    assert f"out/{MODEL}.two.lmp is written as adapter" in capsys.readouterr().out


def test_an_adapter_on_random_weights_is_warned_of(folder, capsys):
    said = "WARNING: stage 'two': its adapter is trained on a new model, whose random weights stay as they are."
    run("--out-dir", "out", "--max-steps", "4", code=75)
    assert said not in capsys.readouterr().out
    write_plan(folder, {"$defaults": {"batch_size": 5}, "two": PLAN["two"]})
    run("--out-dir", "fresh", "--max-steps", "1", code=75)
    assert said in capsys.readouterr().out
    run("--out-dir", "filled", "--initial-model", f"out/{MODEL}.one.lmp", "--max-steps", "1", code=75)
    assert said not in capsys.readouterr().out


def test_a_base_that_two_runs_write_at_once_is_enough(folder, capsys, monkeypatch):
    from lmplay.checkpoints import base

    write = base.write

    def second(file, *arguments):
        write(file, *arguments)
        raise FileNotFoundError(2, "the other run has renamed it")

    monkeypatch.setattr(base, "write", second)
    run("--out-dir", "out", "--max-steps", "6", code=75)
