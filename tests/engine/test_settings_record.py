"""NAME_settings.json: what a run used, and that it can be repeated from it."""
import itertools
import json
import subprocess
from pathlib import Path

import pytest
from helpers import TINY, compare_runs, load, sentences, train_plan, write_plan, write_rows

from lmplay.device.runtime import Runtime
from lmplay.engine import settings_record
from lmplay.train.__main__ import main

PLAN = {"$defaults": {"lr": 0.01}, "$model": {"num_blocks": 1, "embed_dim": 32, "num_heads": 2},
        "one": {"dataset": "rows.jsonl", "epochs": 1, "lr": 0.002, "lr_schedule": "cosine", "context_len": 32},
        "two": {"dataset": "rows.jsonl", "samples": 10, "weight_decay": 0.5, "batch_size": 3}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(30)])
    write_plan(tmp_path, PLAN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    return tmp_path


def settings(name: str = "out_gpt/gpt2ish_model") -> dict:
    return json.loads(Path(f"{name}_settings.json").read_text())


def test_it_holds_what_each_stage_and_the_model_used(folder, capsys):
    arguments = ["--training-plan", "plan.json", "--tokenizer", "bytes", "--context-len", "48", "--device", "cpu", "--grad-clip", "1"]
    assert main(arguments) == 0
    found = settings()
    one, two = found["stages"]["one"], found["stages"]["two"]
    # A typed --context-len is that of all stages.
    assert [(stage["lr"], stage["schedule"], stage["min_fraction"], stage["weight_decay"], stage["batch_size"], stage["context_len"], stage["grad_clip"])
            for stage in (one, two)] == [(0.002, "cosine", 0.1, 0.01, 50, 48, 1.0), (0.01, "constant", 1.0, 0.5, 3, 48, 1.0)]
    assert (one["epochs"], two["samples"]) == (1.0, 10)
    assert [(stage["betas"], stage["eps"]) for stage in (one, two)] == [([0.9, 0.999], 1e-8)] * 2
    assert "momentum" not in one
    assert [(stage["validation_samples"], stage["validated"]) for stage in (one, two)] == [(3, "every 100 samples or tenth of the stage")] * 2
    assert one["validation_tokens"] > 3
    assert found["model_args"] == {"num_blocks": 1, "embed_dim": 32, "num_heads": 2, "context_len": 48, "dropout": 0.1, "tied_head": True}
    assert not {"lr", "batch_size", "num_blocks", "embed_dim", "context_len", "dropout"} & found.keys()
    assert (found["seed"], found["tokenizer"], found["device"], found["exp"]) == (0, "bytes", "cpu", "gpt2ish")
    assert found["command"] == ["lmp_trainer", *arguments]
    assert found["folder"] == str(folder)
    assert {"lmplay", "torch", "python", "numpy"} <= found["versions"].keys()
    [data] = found["data"]["one"]
    assert (data["name"], data["rows"], len(data["digest"])) == ("rows.jsonl", 30, 32)
    assert "listed" not in data


def test_it_holds_the_processes_that_prepared_data_and_not_the_default_of_the_flag(folder, monkeypatch):
    monkeypatch.setattr(Runtime, "data_workers", property(lambda self: 0))  # as a GPU has others than a CPU
    assert main(["--training-plan", "plan.json", "--tokenizer", "bytes", "--device", "cpu", "--max-steps", "1"]) == 75
    assert (settings()["data_workers"], settings()["defaults"]["data_workers"]) == (0, 1)


def test_a_stage_that_is_done_keeps_what_it_used(folder, capsys):
    train_plan(capsys, "--lr", "0.003", "--max-samples-this-run", "29", code=75)
    assert load(Path("out_gpt/gpt2ish_model.lmp"))["curriculum"]["state"]["stages"][0]["done"]
    train_plan(capsys, "--lr", "0.004")
    found = settings()
    assert [found["stages"][name]["lr"] for name in ("one", "two")] == [0.003, 0.004]
    assert list(found["data"]) == ["one", "two"]


def test_use_config_repeats_the_run_bit_for_bit_whatever_has_become_of_plan_and_defaults(folder, capsys):
    train_plan(capsys, "--lr", "0.003", "--seed", "5", "--dropout", "0.2", "--reset-history")
    write_plan(folder, {"other": {"dataset": "rows.jsonl", "samples": 5}})
    assert main(["--use-config", "out_gpt/gpt2ish_model_settings.json", "--out-dir", "again"]) == 0
    assert compare_runs(Path("out_gpt"), Path("again")) == []
    one, two = settings(), settings("again/gpt2ish_model")
    for name in ("stages", "model_args", "plan", "seed", "data", "versions"):
        assert one[name] == two[name]
    assert main(["--use-config", "again/gpt2ish_model_settings.json", "--out-dir", "third", "--seed", "6"]) == 0  # what is typed wins
    assert compare_runs(Path("again"), Path("third")) != []
    assert settings("third/gpt2ish_model")["seed"] == 6


def test_a_stopped_run_goes_on_with_its_own_record(folder, capsys):
    train_plan(capsys, "--lr", "0.003")
    train_plan(capsys, "--lr", "0.003", "--out-dir", "stopped", "--max-steps", "3", code=75)
    assert main(["--use-config", "stopped/gpt2ish_model_settings.json", "--max-steps", "0"]) == 0
    assert compare_runs(Path("out_gpt"), Path("stopped")) == []


def test_the_commit_of_the_folder_is_in_it(folder, capsys):
    train_plan(capsys, "--max-steps", "1", code=75)
    assert settings()["git"] is None
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "plan.json"], ["commit", "-q", "-m", "plan"]):
        subprocess.run([*git, *command], check=True, cwd=folder)
    train_plan(capsys, "--max-steps", "1", code=75)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
    assert settings()["git"] == commit
    write_plan(folder, {**PLAN, "three": {"dataset": "rows.jsonl", "samples": 1}})
    train_plan(capsys, "--max-steps", "1", code=75)
    assert settings()["git"] == f"{commit}-dirty"


def test_a_record_that_was_edited_wrongly_is_refused_with_all_its_faults(folder, capsys):
    train_plan(capsys, "--lr", "0.003", "--max-steps", "1", code=75)
    record = settings()
    record["typed"]["lr"], record["defaults"]["keep"], record["typed"]["sped"] = -1, "x", 3
    Path("edited.json").write_text(json.dumps(record))
    assert main([*TINY, "--use-config", "edited.json"]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("'lr': found -1", "'keep': found \"x\"", "'sped': there is no such flag"))


def test_it_is_made_once_and_a_disk_that_is_full_when_a_stage_begins_ends_nothing(folder, capsys, monkeypatch):
    written, clock = [], itertools.count()

    def write(path, text):
        written.append(json.loads(text))
        if len(written) > 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(settings_record, "write_text", write)
    monkeypatch.setattr(settings_record.time, "strftime", lambda *_: str(next(clock)))
    said = train_plan(capsys)
    assert len(written) == 3  # at the start, and when each of two stages begins
    assert len({record["time"] for record in written}) == 1
    assert "validated" in written[1]["stages"]["one"]
    assert "validated" not in written[1]["stages"]["two"]
    assert said.count("No space left on device") == 2
