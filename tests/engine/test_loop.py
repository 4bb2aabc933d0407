"""Whole runs, as a user starts them: trained, stopped, gone on with, and compared bit for bit with runs that nobody touched."""
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import warm
from helpers import ENVIRONMENT, TINY, compare_runs, load, sentences, stop_at, trainer, write_plan, write_rows

from lmplay.train.__main__ import main


def flags(out: Path, plan: Path) -> list[str]:
    return [*TINY, "--dropout", "0.1", "--training-plan", str(plan), "--out-dir", str(out), "--batch-size", "7", "--mini-batch-size", "3",
            "--validation-interval", "30", "--save-interval", "25", "--grad-clip", "1", "--optimizer-warmup-steps", "5"]


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory):
    """A plan of three stages: the built-in corpus, a weighted mix read for part of an epoch, a text file for a number of tokens."""
    folder = tmp_path_factory.mktemp("plan")
    write_rows(folder / "a.jsonl", [{"title": f"T{i}", "text": sentences(1 + i % 9)} for i in range(60)])
    write_rows(folder / "b.jsonl", [{"prompt": f"Q{i}?", "truth": sentences(1 + i % 3, "dog")} for i in range(40)])
    (folder / "c.txt").write_text("\n\n".join(sentences(40, f"fox {i}") for i in range(60)))
    return write_plan(folder, {
        "$defaults": {"lr": 0.01, "lr_schedule": "cosine", "validation": {"samples": 3}},
        "tales": {"dataset": "builtin:tales", "samples": 60},
        "mix": {"dataset": [{"path": "a.jsonl", "weight": 2}, {"path": "b.jsonl", "weight": 1}], "epochs": 1.5, "batch_size": 11, "freeze": ["blocks.0.mlp*"]},
        "book": {"dataset": "c.txt", "tokens": 9000, "context_len": 32, "weight_decay": 0.1},
    })


@pytest.fixture(scope="module")
def untouched(curriculum, tmp_path_factory):
    out = tmp_path_factory.mktemp("untouched")
    done = trainer(*flags(out, curriculum))
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_a_plan_is_followed_to_its_end(untouched):
    out, text = untouched
    assert "plan complete" in text
    for word in ("Prompt", "Truth", "Predicted", "floor", "== stage mix", "lmp_plotstats"):
        assert word in text
    names = {path.name for path in out.iterdir()}
    for stage in ("tales", "mix", "book"):
        assert {f"gpt2ish_model.{stage}.lmp", f"gpt2ish_model_step_{stage}_train_stats.json", f"gpt2ish_model_step_{stage}_validate_stats.json"} <= names
    content = load(out / "gpt2ish_model.lmp")
    assert list(content) == ["format", "versions", "curriculum", "model", "runner", "optimizers", "lr_schedulers"]
    assert all(set(content[name]) == {"state_args", "state"} for name in ("curriculum", "model", "runner", "optimizers", "lr_schedulers"))
    stats = content["runner"]["state"]["stats"]
    assert stats["total_train_samples"] == 60 + content["runner"]["state"]["step_stats"]["mix"]["total_train_samples"] + \
        content["runner"]["state"]["step_stats"]["book"]["total_train_samples"]
    assert stats["train_loss_total"] > 0
    train = json.loads((out / "gpt2ish_model_train_stats.json").read_text())
    assert train["totals"]["total_train_samples"] == stats["total_train_samples"]
    assert [stage["done"] for stage in train["stages"]] == [True] * 3
    assert train["stages"][0]["floor_nats_per_token"] > 0
    assert train["stages"][1]["floor_nats_per_token"] is None
    losses = train["columns"]["loss"]
    assert sum(losses[-5:]) < sum(losses[:5])
    settings = json.loads((out / "gpt2ish_model_settings.json").read_text())
    assert [(stage["lr"], stage["batch_size"]) for stage in settings["stages"].values()] == [(0.01, 7)] * 3
    assert settings["precision"] == "float32"


def test_the_same_command_gives_the_same_bits(untouched, curriculum, tmp_path):
    assert trainer(*flags(tmp_path, curriculum)).returncode == 0
    assert compare_runs(untouched[0], tmp_path) == []


def test_a_plan_that_is_done_says_so(untouched, curriculum):
    before = {path.name: path.read_bytes() for path in untouched[0].iterdir()}
    again = trainer(*flags(untouched[0], curriculum))
    assert again.returncode == 0
    assert "complete" in again.stdout
    assert {path.name: path.read_bytes() for path in untouched[0].iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_run_that_is_stopped_and_gone_on_with_ends_as_one_that_was_not(untouched, curriculum, tmp_path, number, code):
    dice = random.Random(number)
    stops = []
    for _ in range(30):
        run = warm.Popen(["-m", "lmplay.train", *flags(tmp_path, curriculum)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        for line in run.stdout:
            if line.startswith("== stage"):
                break
        time.sleep(dice.uniform(0.0, 0.5))
        if len(stops) < 4:
            run.send_signal(number)
        output, complaints = run.communicate(timeout=120)
        if run.returncode == 0:
            break
        stops.append(run.returncode)
        assert run.returncode == code, complaints
        assert "Traceback" not in complaints
        if number != signal.SIGKILL:
            assert "To go on:" in output
    assert len(stops) >= 2
    assert run.returncode == 0
    assert compare_runs(untouched[0], tmp_path) == []
    resumes = json.loads((tmp_path / "gpt2ish_model_train_stats.json").read_text())["clock"]["resumes"]
    assert len(resumes) <= len(stops)


def test_a_stop_before_training_ends_at_once(curriculum, tmp_path):
    run = subprocess.Popen([sys.executable, "-m", "lmplay.train", *flags(tmp_path / "out", curriculum)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, env=ENVIRONMENT)
    time.sleep(0.7)
    run.send_signal(signal.SIGINT)
    _, complaints = run.communicate(timeout=60)
    assert run.returncode in (130, -signal.SIGINT)
    assert not (tmp_path / "out").exists() or run.returncode == 130
    assert complaints.count("Traceback") <= (run.returncode != 130)


@pytest.fixture
def one_thread():
    """As many threads as the runs in processes of their own have: sums in another order have other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(int(ENVIRONMENT["OMP_NUM_THREADS"]))
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_stop_at_every_few_steps_changes_nothing(untouched, curriculum, tmp_path, monkeypatch, capsys):
    stop_at(monkeypatch, range(9, 10_000, 9))
    codes = []
    while not codes or codes[-1] != 0:
        codes.append(main(flags(tmp_path, curriculum)))
    assert set(codes) == {0, 130}
    assert len(codes) > 20
    assert compare_runs(untouched[0], tmp_path) == []
