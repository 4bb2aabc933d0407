"""Work ahead of the step: the same batches in the same order whoever makes them, faults in their place, and a clean end."""
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path

import pytest
from cutters import FailingCutter, Pairs
from helpers import ENVIRONMENT, TINY, compare_runs, load, sentences, write_plan, write_rows
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmplay.data.batcher import Batcher
from lmplay.data.continuation import Cutter
from lmplay.data.mixing import Mix
from lmplay.data.prefetch import Prefetch
from lmplay.data.reader import Order, open_reader
from lmplay.data.samples import Sample, choose_reading
from lmplay.data.sources import IndexedSource
from lmplay.data.stream import Length, SampleStream
from lmplay.data.workers import Workers
from lmplay.engine import stage
from lmplay.errors import TrainingError, UserError
from lmplay.report import report
from lmplay.tokenizer import load_tokenizer, train_tokenizer
from lmplay.train.__main__ import main

BYTES = load_tokenizer("bytes")
CUT = Cutter(BYTES, 64).cut
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


class Texts(IndexedSource):
    """Rows of so many sentences; one below 1 is a row that is null."""

    def __init__(self, sizes):
        self.sizes, self.n_rows, self.name, self.columns, self.fingerprint = sizes, len(sizes), "texts", ("text",), {}

    def __getitem__(self, index):
        return {"text": sentences(self.sizes[index], f"cat {index}") if self.sizes[index] > 0 else None}


class Broken(Texts):
    """Has a row that cannot be read."""

    def __getitem__(self, index):
        if self.sizes[index] == 13:
            raise UserError(f"rows.jsonl, line {index}: not valid", "a second fault")
        return super().__getitem__(index)


@pytest.fixture(scope="module")
def workers():
    """Two processes that stay, so that a test need not wait for new ones."""
    with Workers(CUT, 2) as started:
        yield started


def make_stream(corpora, weights, make=Texts, length=None):
    readings = [choose_reading("x", ["text"], None)] * len(corpora)
    return SampleStream(Mix([open_reader(make(sizes), Order(number, True, 10, 0.0)) for number, sizes in enumerate(corpora)], weights), readings,
                        length or Length(epochs=1.5))


def batches_of(stream, batch_size, most_tokens, position=None, ahead=0, cutting=None, prepare=CUT):
    """Make batches in line, in a thread, or in a thread with processes, as a stage does."""
    def make(halted):
        batcher = Batcher(stream, prepare, batch_size, most_tokens, cutting=cutting, halted=halted)
        if position is not None:
            batcher.restore(position)
        for batch in iter(batcher.next, None):
            yield [[(piece.sample, piece.tokens.tolist(), piece.truth, piece.cut, piece.number) for piece in batch.pieces], batch.position,
                   batch.broken, batch.progress, batcher.reached]

    prefetch = Prefetch(make, ahead)
    try:
        yield from iter(prefetch.next, None)
    finally:
        prefetch.close()


CORPORA = st.lists(st.lists(st.integers(0, 12), min_size=4, max_size=40).filter(any), min_size=1, max_size=3)


@given(CORPORA, st.integers(1, 9), st.booleans(), st.sampled_from([None, 1000]), st.integers(0, 20), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2))
@example([[5, 0, 1, 0]], 4, False, None, 1, 1, 0, 0)  # rows without text at the end of the stage
@settings(max_examples=40, deadline=None)
def test_batches_and_positions_are_the_same_whoever_makes_them(workers, corpora, batch_size, weighted, most, stop, ahead, first, second):
    weights = [1.0 + number for number in range(len(corpora))] if weighted else None
    ways = [{"ahead": 0}, {"ahead": ahead}, {"ahead": ahead, "cutting": workers.cut}]
    expected = list(batches_of(make_stream(corpora, weights), batch_size, most))
    assert expected
    for way in ways[1:]:
        assert list(batches_of(make_stream(corpora, weights), batch_size, most, **way)) == expected
    # Stopped after some batch under one number of workers, gone on with under another.
    begun = list(islice(batches_of(make_stream(corpora, weights), batch_size, most, **ways[first]), stop))
    position = json.loads(json.dumps(begun[-1][1])) if begun else None
    assert begun + list(batches_of(make_stream(corpora, weights), batch_size, most, position, **ways[second])) == expected


@pytest.mark.parametrize("way", [0, 1, 2])
def test_a_row_that_cannot_be_read_comes_after_the_batches_before_it(workers, way):
    def stream(make, length):
        return SampleStream(Mix([open_reader(make(sizes), Order(0, False, 10, 0.0))]), [choose_reading("x", ["text"], None)], length)

    sizes = [1 + i % 3 for i in range(300)]
    sizes[200] = 13
    seen = []
    batches = batches_of(stream(Broken, Length(epochs=1)), 7, None, ahead=3 * (way > 0), cutting=workers.cut if way == 2 else None)
    with pytest.raises(UserError) as caught:
        seen.extend(batch[:2] for batch in batches)
    assert caught.value.faults == ("rows.jsonl, line 200: not valid", "a second fault")
    assert any(Path(str(entry.path)).name == "test_prefetch.py" and entry.name == "__getitem__" for entry in caught.traceback)  # its own trace
    good = [batch[:2] for batch in batches_of(stream(Texts, Length(samples=200)), 7, None)]
    assert seen == good[:len(seen)]
    assert 0 <= len(good) - len(seen) <= 2  # those it would have filled up are not trained on


@pytest.mark.parametrize(("way", "expected"), [("user", UserError), ("stubborn", RuntimeError)])
def test_what_is_raised_in_a_process_arrives_as_itself_with_its_trace(way, expected):
    with Workers(FailingCutter(BYTES, 64, way).cut, 2) as started:
        cutting = started.cut((Sample("", f"This is cat {i} here."), i) for i in range(9))
        assert [tag for _, tag in islice(cutting, 5)] == [0, 1, 2, 3, 4]
        with pytest.raises(expected) as caught:
            next(cutting)
    if way == "user":
        assert caught.value.faults[0] == "cannot be cut"
        assert caught.value.faults[1] != f"in {os.getpid()}"
    else:
        assert "stuck in the mud" in str(caught.value)
    assert "cutters.py" in str(caught.value.__cause__)


def test_a_process_that_dies_is_no_riddle():
    with Workers(FailingCutter(BYTES, 64, "die").cut, 2) as started, pytest.raises(TrainingError, match=r"exit code 9.*fewer --data-workers"):
        list(started.cut((Sample("", f"This is cat {i} here."), i) for i in range(9)))


def test_a_cutter_is_the_same_in_a_process():
    tokenizer = train_tokenizer(iter(["the cat sat on the mat 日本語 🎉 "] * 20), 300)
    for cutter in (Cutter(tokenizer, 20), Cutter(tokenizer, 40, estimate=True)):
        samples = [Sample("A title\n\n", "The cat sat. 日本語 on the mat! 🎉 " * n) for n in (1, 3, 200)]
        with Workers(cutter.cut, 1) as started:
            for sample, (pieces, tag) in zip(samples, started.cut((sample, sample) for sample in samples), strict=True):
                assert tag is sample
                assert all(piece.sample is sample for piece in pieces)
                assert [(p.tokens.tolist(), p.n_prompt, p.truth, p.cut, p.number, p.last) for p in pieces] == \
                    [(p.tokens.tolist(), p.n_prompt, p.truth, p.cut, p.number, p.last) for p in cutter.cut(sample)]


def test_pieces_of_other_samples_than_the_one_prepared_keep_theirs_in_a_process():
    prepare, sample = Pairs(Cutter(BYTES, 30)), Sample("", sentences(3))
    with Workers(prepare, 1) as started:
        [(pieces, _)] = started.cut(iter([(sample, None)]))
    assert [piece.sample for piece in pieces] == [piece.sample for piece in prepare(sample)]
    assert pieces[0].sample is sample
    assert pieces[-1].sample != sample


@LINUX
def test_a_process_is_light_and_deaf_to_the_keyboard(workers):
    list(workers.cut(iter([(Sample("", "A text."), 0)] * 200)))
    for process in workers._processes:
        pid = process._process.pid
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "numpy" in maps
        assert "torch" not in maps
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGUSR1)
    assert len(list(workers.cut(iter([(Sample("", "A text."), 0)] * 200)))) == 200


def test_no_more_is_made_than_was_asked_for():
    made = []

    def count(halted):
        for i in range(100):
            made.append(i)
            yield i

    prefetch = Prefetch(count, 3)
    assert not made  # not before the first is wanted
    assert [prefetch.next() for _ in range(5)] == [0, 1, 2, 3, 4]
    deadline = time.monotonic() + 20
    while len(made) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == list(range(8))
    prefetch.close()
    assert not threads()
    assert prefetch.next() is None


@pytest.mark.parametrize("ahead", [0, 2])
def test_it_can_begin_before_the_first_item_is_asked_for(ahead):
    begun = threading.Event()

    def make(halted):
        begun.set()
        yield from range(3)

    prefetch = Prefetch(make, ahead)
    prefetch.start()
    assert begun.wait(5.0 if ahead else 0.0) is bool(ahead)
    prefetch.start()
    assert [prefetch.next() for _ in range(4)] == [0, 1, 2, None]
    prefetch.close()


def test_who_waits_can_be_told_to_stop_waiting():
    go_on = threading.Event()

    def slow(halted):
        go_on.wait(20)
        yield "late"

    prefetch = Prefetch(slow, 1)
    assert prefetch.next(lambda: True) is None
    go_on.set()
    assert prefetch.next() == "late"  # nothing lost
    assert prefetch.next() is None
    prefetch.close()
    assert not threads()


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_close_in_the_middle_ends_thread_and_processes(ahead, taken):
    ended = []

    def make(halted):
        try:
            with Workers(CUT, 1) as started:
                yield from iter(Batcher(make_stream([[3] * 500], None), CUT, 4, cutting=started.cut, halted=halted).next, None)
        finally:
            ended.append(started._processes)

    prefetch = Prefetch(make, ahead)
    for _ in range(taken):
        assert prefetch.next() is not None
    prefetch.close()
    prefetch.close()
    assert not threads()
    assert all(process._process.poll() is not None for processes in ended for process in processes)
    assert len(ended) == (1 if taken else 0)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


# --- whole runs

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

    steps, original = iter(range(1, 10_000)), stage.train_step

    def step_and_signal(*arguments, **options):
        result = original(*arguments, **options)
        if next(steps) % 12 == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(stage, "train_step", step_and_signal)
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
    write_plan(tmp_path, {"one": {"dataset": {"path": "rows.jsonl", "on_bad_row": "stop"}, "shuffle": False, "validation": 0}})
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
