"""Exact resume: a run stopped at any place, in any way, as often as one likes, leaves the bits of a run that nobody touched, and saw the same samples."""
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import warm
from helpers import ENVIRONMENT, TINY, compare_runs, differences, load, sentences, write_plan, write_rows

from lmplay.data.sources import Stream, StreamedSource
from lmplay.train.__main__ import main

ROWS = 50


class LocalStream(StreamedSource):
    """Rows in order only, as the hub gives them, without a network."""

    def __init__(self, name: str):
        self.name, self.columns, self.n_rows, self.fingerprint = name, ("text",), ROWS, {"kind": "test"}

    def open(self, state=None):
        return _Reading(state or 0)


class _Reading(Stream):
    def __init__(self, row: int):
        self._row = row

    def __next__(self):
        if self._row == ROWS:
            raise StopIteration
        self._row += 1
        return {"text": sentences(1 + self._row % 7, f"owl {self._row}")}

    def state(self):
        return self._row


def patched() -> None:
    """Let the names of the hub give local streams, and write down the samples of each step in the file named by SAMPLES_LOG."""
    from lmplay.data.sources import Opener, hub
    from lmplay.engine import stage

    hub.HUB = Opener(lambda spec, split, folder: LocalStream(spec.path) if split == "train" else None, remote=True)
    step = stage.StageRunner.step

    def logged(self, batch):
        number = self.run.record.stats.totals["total_train_steps"]
        result = step(self, batch)
        if result is not None:
            with open(os.environ["SAMPLES_LOG"], "a") as file:
                file.write(json.dumps([number, self.stage.name, [[sample.source, sample.row, sample.truth] for sample in batch.batch.samples]]) + "\n")
        return result

    stage.StageRunner.step = logged


def command(out: Path, plan: Path) -> list[str]:
    return [*TINY, "--dropout", "0.1", "--training-plan", str(plan), "--out-dir", str(out), "--batch-size", "7", "--mini-batch-size", "3",
            "--validation-interval", "20", "--save-interval", "25", "--grad-clip", "1", "--optimizer-warmup-steps", "5"]


def samples(log: Path) -> list:
    """Give the samples of each step in order; a step that was done again must have had the same ones."""
    steps: dict = {}
    for line in log.read_text().splitlines():
        number, *found = json.loads(line)
        assert steps.setdefault(number, found) == found
    assert sorted(steps) == list(range(len(steps)))
    return [steps[number] for number in sorted(steps)]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Three stages: the built-in corpus; a weighted mix with a shuffled stream, part of an epoch long; a file, until validation gets no better."""
    folder = tmp_path_factory.mktemp("plan")
    write_rows(folder / "a.jsonl", [{"title": f"T{i}", "text": sentences(1 + i % 9)} for i in range(40)])
    write_rows(folder / "c.jsonl", [{"text": sentences(4, f"fox {i}")} for i in range(60)])
    return write_plan(folder, {
        "$defaults": {"lr": 0.01, "lr_schedule": "cosine", "validation": {"samples": 3}},
        "tales": {"dataset": "builtin:tales", "samples": 30},
        "mix": {"dataset": [{"path": "nobody/stream", "weight": 2}, {"path": "a.jsonl", "weight": 1}], "epochs": 0.7, "batch_size": 11,
                "shuffle": {"buffer": 16}},
        "book": {"dataset": "c.jsonl", "tokens": 9000, "context_len": 32, "early_stopping": {"patience": 2, "min_delta": 1}},
    })


@pytest.fixture(scope="module")
def untouched(plan, tmp_path_factory):
    """What an untouched run leaves, in a process of its own with one thread, and the samples of its steps."""
    out = tmp_path_factory.mktemp("untouched")
    done = start(out, plan)
    text, complaints = done.communicate(timeout=300)
    assert done.returncode == 0, complaints
    assert "ended early" in text
    return out, samples(log_of(out))


def log_of(out: Path) -> Path:
    return out.parent / f"{out.name}.samples"


def start(out: Path, plan: Path, *more: str) -> subprocess.Popen:
    program = "import sys, test_resume; test_resume.patched(); sys.exit(test_resume.main(sys.argv[1:]))"
    environment = {**ENVIRONMENT, "SAMPLES_LOG": str(log_of(out)), "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return warm.Popen(["-c", program, *command(out, plan), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def steps_in(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.slow
def test_stopped_at_random_places_by_everything(untouched, plan, tmp_path):
    reference, steps = untouched
    dice = random.Random(1)
    out = tmp_path / "out"
    stages = [name for name, _ in steps]
    edges = [number for number in range(1, len(stages)) if stages[number] != stages[number - 1]]
    ways = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR2, 75), (signal.SIGKILL, -signal.SIGKILL)]
    dice.shuffle(ways)
    places = sorted([dice.choice(edges), *dice.sample(range(1, len(steps) - 3), len(ways) - 1)])
    codes = []
    for place, (number, _) in zip(places, ways, strict=True):
        run = start(out, plan, *(["--max-steps", "2"] if len(codes) == 2 else []))
        before = steps_in(log_of(out))
        deadline = time.monotonic() + 300
        while run.poll() is None and steps_in(log_of(out)) < max(place, before + 1):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(dice.uniform(0, 0.03))
        run.send_signal(number)
        text, complaints = run.communicate(timeout=300)
        codes.append(run.returncode)
        assert run.returncode in (0, 75, dict(ways)[number]), complaints
        assert "Traceback" not in complaints
        assert run.returncode in (0, -signal.SIGKILL) or "To go on:" in text
    assert len(set(codes)) > 2
    last = start(out, plan)
    _, complaints = last.communicate(timeout=300)
    assert last.returncode == 0, complaints
    assert compare_runs(reference, out) == []
    assert samples(log_of(out)) == steps


# --- in this process: quicker, and aimed

@pytest.fixture
def here(tmp_path, monkeypatch, plan):
    """Run in this process, with one thread as the untouched run had; gives the exit code."""
    from lmplay.data.sources import hub
    from lmplay.engine import stage

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(hub, "HUB", hub.HUB)
    monkeypatch.setattr(stage.StageRunner, "step", stage.StageRunner.step)
    monkeypatch.setenv("SAMPLES_LOG", str(log_of(tmp_path / "out")))
    patched()
    yield lambda *more: main([*command(tmp_path / "out", plan), *more])
    torch.set_num_threads(threads)


def go_on_until_done(here, *more: str) -> list[int]:
    codes = []
    while not codes or codes[-1] != 0:
        codes.append(here(*more))
        assert len(codes) < 100
    return codes[:-1]


def check(untouched, tmp_path):
    assert compare_runs(untouched[0], tmp_path / "out") == []
    assert samples(log_of(tmp_path / "out")) == untouched[1]


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "limit"), [("--max-steps", 7), ("--max-samples-this-run", 43)])
def test_in_slices(untouched, here, tmp_path, capsys, flag, limit):
    codes = go_on_until_done(here, flag, str(limit))
    assert set(codes) == {75}
    assert len(codes) > 2
    check(untouched, tmp_path)


@pytest.mark.slow
def test_in_the_middle_of_validations(untouched, here, tmp_path, capsys, monkeypatch):
    from lmplay.objectives.next_token import NextToken

    original, dice, due = NextToken.loss, random.Random(2), []
    left = apart = 3

    def judged(*arguments, **options):
        nonlocal left, apart
        if torch.is_grad_enabled():
            return original(*arguments, **options)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            apart *= 1.5  # a stop further and further on, or the longest validation would never be finished
            left = dice.randint(2, int(apart))
        return original(*arguments, **options)

    monkeypatch.setattr(NextToken, "loss", judged)
    codes = []
    while not codes or codes[-1] != 0:
        assert len(codes) < 30
        codes.append(here())
        due += [state["validation_due"] for state in load(tmp_path / "out" / "gpt2ish_model.lmp")["curriculum"]["state"]["stages"]]
    assert set(codes[:-1]) == {143}
    assert True in due  # it has been done by the run that went on
    check(untouched, tmp_path)


@pytest.mark.slow
def test_while_saving(untouched, here, tmp_path, capsys, monkeypatch):
    from lmplay.engine import save

    original, count = save.try_to_write_stats, 0

    def write(run, record):
        nonlocal count
        count += 1
        if count % 2 == 1:
            os.kill(os.getpid(), signal.SIGUSR2)
        original(run, record)

    monkeypatch.setattr(save, "try_to_write_stats", write)
    codes = go_on_until_done(here)
    assert set(codes) <= {75}
    assert len(codes) > 1
    check(untouched, tmp_path)


@pytest.mark.slow
def test_an_extra_save_changes_nothing(untouched, here, tmp_path, capsys, monkeypatch):
    from lmplay.engine import stage

    original, count = stage.train_step, 0

    def step(*arguments, **options):
        nonlocal count
        count += 1
        if count % 3 == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
        return original(*arguments, **options)

    monkeypatch.setattr(stage, "train_step", step)
    assert here() == 0
    assert capsys.readouterr().out.count("saved ") >= len(untouched[1]) // 3
    check(untouched, tmp_path)


@pytest.mark.slow
def test_the_best_state_is_that_of_the_lowest_validation(untouched, here, tmp_path, capsys):
    """Against the statistics, the longer validation that ends the stage aside, and against a run that was stopped there."""
    out, _ = untouched
    best = load(out / "gpt2ish_model.book.best.lmp")
    assert (out / "gpt2ish_model.best.lmp").samefile(out / "gpt2ish_model.book.best.lmp")
    state = best["curriculum"]["state"]["stages"][2]
    curve = json.loads((out / "gpt2ish_model_step_book_validate_stats.json").read_text())["columns"]
    regular = list(zip(curve["loss"], curve["samples"], strict=True))[:-1]
    # The last row is that of the final validation, or holds it together with a regular one at the same step.
    assert min(*regular, (state["lowest_loss"], state["lowest_samples"])) == (state["lowest_loss"], state["lowest_samples"])
    assert best["runner"]["state"]["stats"]["total_train_samples"] == state["lowest_samples"]
    assert here("--max-samples-this-run", str(state["lowest_samples"])) == 75
    there = load(tmp_path / "out" / "gpt2ish_model.lmp")
    assert not [line for part in ("model", "optimizers", "lr_schedulers", "runner", "curriculum")
                for line in differences(best[part]["state"], there[part]["state"], f".{part}")]
