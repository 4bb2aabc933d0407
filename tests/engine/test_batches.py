"""Batches and their mini-batches, made ahead of the steps; whole runs with threads and processes."""
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ahead import threads
from helpers import ENVIRONMENT, TINY, compare_runs, load, sentences, stop_at, write_plan, write_rows
from hypothesis import given
from hypothesis import strategies as st
from rows import rows
from stages import open_stage
from texts import BYTES
from units import CUT, SIZES, Given

from lmplay.data.batcher import Batcher
from lmplay.data.continuation import Cutter
from lmplay.engine.batches import Batches, Grouping, TrainBatch
from lmplay.objectives.next_token import NextToken
from lmplay.plan.curriculum import StageState
from lmplay.report import report
from lmplay.train.__main__ import main

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    write_rows(folder / "a.jsonl", [{"title": f"T{i}", "text": sentences(1 + i % 9) if i % 8 else None} for i in range(24)])
    write_rows(folder / "b.jsonl", [{"prompt": f"Q{i}?", "truth": sentences(1 + i % 3, "dog")} for i in range(16)])
    return write_plan(folder, {"$defaults": {"lr": 0.01, "lr_schedule": "cosine", "validation": {"samples": 3}},
                               "mix": {"dataset": [{"path": "a.jsonl", "weight": 2}, {"path": "b.jsonl", "weight": 1}], "epochs": 1.5},
                               "tales": {"dataset": "builtin:tales", "tokens": 1500, "context_len": 32}})


def flags(out, plan, workers):
    return [*TINY, "--dropout", "0.1", "--training-plan", str(plan), "--out-dir", str(out), "--batch-size", "7", "--mini-batch-size", "3",
            "--validation-interval", "20", "--save-interval", "25", "--data-workers", str(workers)]


def test_a_run_is_the_same_whoever_makes_its_batches(plan, tmp_path, monkeypatch, capsys):
    for workers in (0, 2):
        assert main(flags(tmp_path / str(workers), plan, workers)) == 0
        assert not threads()
    said = re.findall(r"\d+ rows skipped: null.*", capsys.readouterr().out)
    assert len(said) == 2
    assert said[0] == said[1]
    assert compare_runs(tmp_path / "0", tmp_path / "2") == []

    stop_at(monkeypatch, range(12, 10_000, 12))
    codes = []
    while not codes or codes[-1] == 130:
        codes.append(main(flags(tmp_path / "stopped", plan, (2, 1, 0)[len(codes) % 3])))
        assert not threads()
    assert codes[-1] == 0
    assert len(codes) > 3
    assert compare_runs(tmp_path / "0", tmp_path / "stopped") == []


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_damaged_row_ends_a_run_with_one_line_and_the_state_saved(tmp_path, monkeypatch, capsys, workers):
    monkeypatch.chdir(tmp_path)
    path = write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2)}] * 58)
    path.write_text(path.read_text() + "{broken\n")
    write_plan(tmp_path, {"one": {"dataset": {"path": "rows.jsonl", "on_bad_row": "stop"}, "shuffle": False, "validation": 0, "pieces": "together"}})
    assert main([*TINY, "--training-plan", "plan.json", "--batch-size", "6", "--data-workers", str(workers)]) == 2
    line, = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("lmp_trainer: ")
    assert "rows.jsonl, line 59: not valid JSON" in line
    assert load(tmp_path / "out_gpt" / "gpt2ish_model.lmp")["runner"]["state"]["stats"]["total_train_samples"] == 57  # 19 batches of 3
    assert not threads()


@pytest.mark.parametrize("length", [{"samples": 40}, {"tokens": 4000}], ids=str)
def test_the_progress_says_how_much_time_is_left(tmp_path, monkeypatch, capsys, length):
    monkeypatch.setattr(report, "_PLAIN_SECONDS", 0.0)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2)}] * 60)
    plan = write_plan(tmp_path, {"one": {"dataset": str(tmp_path / "rows.jsonl"), "validation": 0, **length}})
    assert main([*TINY, "--training-plan", str(plan), "--out-dir", str(tmp_path / "out"), "--batch-size", "8"]) == 0
    first, *lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("one: ")]
    assert "left" not in first  # one step says nothing yet
    assert len(lines) > 5
    assert all(re.search(r"\d:\d\d:\d\d left$", line) for line in lines)
    assert "(100%)" in lines[-1]
    assert lines[-1].endswith("0:00:00 left")


def children(pid):
    """The processes that a run has started, as seen from outside."""
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def gone(pid):
    """Wait until a process has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@LINUX
@pytest.mark.parametrize(("start", "ends"), [("-m", [signal.SIGKILL]), ("-c", [signal.SIGINT, signal.SIGINT])], ids=["killed", "stopped twice"])
def test_no_process_outlives_a_run(tmp_path, start, ends):
    """Killed, as well as stopped by Ctrl+C at once, which a terminal sends to all processes; started in ways that a process could not repeat."""
    door = ["-m", "lmplay.train"] if start == "-m" else ["-c", "import sys; from lmplay.train.__main__ import main; sys.exit(main())"]
    run = subprocess.Popen([sys.executable, *door, *TINY, "--dataset", "builtin:tales/4", "--out-dir", str(tmp_path), "--data-workers", "3", "--batch-size",
                            "50000", "--validation-interval", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
                           start_new_session=True)
    for line in run.stdout:
        if line.startswith("== stage"):
            break
    deadline = time.monotonic() + 60
    while len(children(run.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    started = children(run.pid)
    assert len(started) == 3
    for number in ends:
        time.sleep(0.3)
        os.killpg(run.pid, number) if number == signal.SIGINT else run.send_signal(number)
    _, complaints = run.communicate(timeout=60)
    assert run.returncode == (130 if signal.SIGINT in ends else -signal.SIGKILL)
    assert all(gone(child) for child in started)
    assert "Exception ignored" not in complaints
    assert "Traceback" not in complaints
    assert "leaked" not in complaints


@given(SIZES.filter(bool), st.booleans(), st.lists(st.just(0) | st.integers(1, 200), min_size=1, max_size=4))
def test_regrouping_changes_the_mini_batches_and_nothing_else(sizes, packed, budgets):
    grouping = Grouping(3, 4, 29, packed)
    batch = Batcher(Given(sizes), CUT, 20).next()
    made = TrainBatch(batch, grouping.mini_batches(batch.pieces, 0), 0, [], range(4))
    assert made.regrouped(0, grouping) is made
    for budget in budgets:
        again = made.regrouped(budget, grouping)
        assert (again.batch, again.token_budget, again.sources, again.accuracy_pieces) == (batch, budget, [], range(4))
        assert sorted(number for mini in again.mini_batches for number, _ in mini.rows) == list(range(len(batch.pieces)))
        assert again.n_slots - again.n_padding == sum(len(piece.tokens) - 1 for piece in batch.pieces)
        assert again.longest == max(len(piece.tokens) for piece in batch.pieces) - 1
        largest = max(mini.n_slots for mini in again.mini_batches)
        assert largest <= budget or not budget or all(len(mini.rows) == 1 for mini in again.mini_batches if mini.n_slots > budget)
        expected, found = made.regrouped(budget, grouping).mini_batches, again.regrouped(0, grouping).regrouped(budget, grouping).mini_batches
        assert [mini.tokens_BT.tolist() for mini in found] == [mini.tokens_BT.tolist() for mini in expected]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_come_with_their_mini_batches_and_end_with_the_position_behind_them(tmp_path, workers):
    write_rows(tmp_path / "a.jsonl", rows(10, "a"))
    write_rows(tmp_path / "b.jsonl", rows(6, "b"))
    data = open_stage(tmp_path, {"dataset": [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], "validation": 0})

    def batches(position=None):
        sizes = SimpleNamespace(batch_size=5, batch_size_schedule=None, context_len_schedule=None)
        stage = SimpleNamespace(data=data, stage=SimpleNamespace(name="s", tokens=None, steps=None), settings=sizes,
                                state=StageState("s", position=position), objective=NextToken())
        return Batches(stage, Cutter(BYTES, 16), Grouping(2, 1, 15, False), iter([0, 7, 7, 0]).__next__, workers, accuracy_pieces=4)

    made = batches()
    found = list(iter(lambda: made.next(lambda: False), None))
    made.close()
    assert [batch.token_budget for batch in found] == [0, 7, 7, 0]  # that of the time at which a batch is made
    for batch in found:
        assert batch.sources == [piece.sample.source for piece in batch.batch.pieces]
        assert len(batch.mini_batches) == -(-len(batch.batch.pieces) // 2)
    assert sorted(sample.truth for batch in found for sample in batch.batch.samples) == sorted(row["text"] for row in [*rows(10, "a"), *rows(6, "b")])
    assert (made.end.reached["samples"], made.end.empty) == (16, 0)
    again = batches(found[1].batch.position)
    assert [batch.batch.position for batch in iter(lambda: again.next(lambda: False), None)] == [batch.batch.position for batch in found[2:]]
    again.close()
