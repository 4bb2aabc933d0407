"""Files that cannot be destroyed: every fault that a disk, a user or a kill can bring, and what is left after it."""
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from helpers import ENVIRONMENT, TINY, compare_runs, load, sentences, trainer, write_plan, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from lmplay.checkpoints import format as checkpoint
from lmplay.checkpoints import lock, rotation
from lmplay.checkpoints.best import BestState
from lmplay.checkpoints.lock import Lock
from lmplay.checkpoints.saver import Saver
from lmplay.engine import loop, stage
from lmplay.errors import UserError
from lmplay.files import remove_leftovers
from lmplay.train.__main__ import main

MODEL = "gpt2ish_model"


def content(number: int = 0) -> dict:
    """Something with the shape of a checkpoint, that says which one it is."""
    empty = {"state_args": {}, "state": {}}
    return {"format": checkpoint.FORMAT, **dict.fromkeys(checkpoint.COMPONENTS, empty),
            "model": {"state_args": {}, "state": {"weight": torch.full((50,), number)}},
            "runner": {"state_args": {}, "state": {"stats": {"total_train_samples": number}}}}


def number_of(stored: dict) -> int:
    return stored["runner"]["state"]["stats"]["total_train_samples"]


# --- one file

@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "m.lmp"
    checkpoint.write(path, content(7))
    return path.read_bytes()


def test_others_read_the_file_directly(tmp_path):
    path = tmp_path / "m.lmp"
    checkpoint.write(path, content(7))
    assert checkpoint.verify(path) is True
    assert number_of(torch.load(path, weights_only=True)) == number_of(torch.load(path, weights_only=True, mmap=True)) == 7
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"lmplay xxh3-128 ")
    assert number_of(checkpoint.load(path)) == 7


def test_a_file_without_a_checksum_is_read_too(tmp_path):
    torch.save(content(3), tmp_path / "m.lmp")
    assert checkpoint.verify(tmp_path / "m.lmp") is None
    assert number_of(checkpoint.load(tmp_path / "m.lmp")) == 3


def test_a_lost_checksum_is_not_taken_for_none(whole, tmp_path):
    (tmp_path / "m.lmp").write_bytes(whole[:-48])
    assert checkpoint.verify(tmp_path / "m.lmp") is False


@given(data=st.data())
def test_no_flipped_bit_and_no_lost_end_is_taken_for_whole(whole, tmp_path_factory, data):
    damaged = bytearray(whole)
    if data.draw(st.booleans()):
        damaged[data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) - 100, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del damaged[data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) - 100, len(whole) - 1)):]
    path = tmp_path_factory.getbasetemp() / "flipped.lmp"
    path.write_bytes(damaged)
    assert not checkpoint.verify(path)
    with pytest.raises(checkpoint.Damaged, match=r"flipped\.lmp"):
        checkpoint.load(path)


class _Trap:
    def __init__(self, folder):
        self._folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self._folder),)


def test_code_in_a_file_is_refused_and_not_run(tmp_path):
    torch.save({**content(), "extra": _Trap(tmp_path / "ran")}, tmp_path / "m.lmp")
    with pytest.raises(UserError, match=r"m\.lmp"):
        checkpoint.load(tmp_path / "m.lmp")
    assert not (tmp_path / "ran").exists()
    torch.load(tmp_path / "m.lmp", weights_only=False)
    assert (tmp_path / "ran").exists()  # so it would have


# --- generations

@settings(deadline=None, max_examples=15)
@given(keeps=st.lists(st.integers(0, 4), min_size=1, max_size=7))
def test_the_newest_states_are_kept_in_order(tmp_path_factory, keeps):
    path = tmp_path_factory.mktemp("kept") / "m.lmp"
    states: list[int] = []
    for number, keep in enumerate(keeps):
        rotation.save(path, content(number), "one", keep)
        states = [number, *states][:keep + 1]
        found = [path, *rotation.previous(path).values()]
        assert [number_of(load(file)) for file in found] == states
        assert path.samefile(checkpoint.stage_file(path, "one"))
        assert {file.name for file in path.parent.iterdir()} == {"m.lmp", "m.one.lmp", *(f"m.prev-{n}.lmp" for n in range(1, len(states)))}


class Killed(BaseException):
    """A kill at a system call."""


@pytest.mark.parametrize("links", [True, False])
def test_a_save_may_be_killed_anywhere(tmp_path, monkeypatch, links):
    """Before each system call that changes names: what is found afterwards is the old state or the new one, and the next save works."""
    calls = ("link", "rename", "replace", "unlink", "fsync")
    originals = {name: getattr(os, name) for name in calls}

    def arm(after: int) -> None:
        left = iter(range(after))
        for name in calls:
            def call(*arguments, _name=name, **options):
                if next(left, None) is None:
                    raise Killed
                if _name == "link" and not links:
                    raise OSError("no links here")
                return originals[_name](*arguments, **options)
            monkeypatch.setattr(os, name, call)

    for after in range(100):
        folder = tmp_path / f"{links}-{after}"
        folder.mkdir()
        path = folder / "m.lmp"
        for number in range(4):
            rotation.save(path, content(number), "one", 2)
        arm(after)
        try:
            rotation.save(path, content(4), "one", 2)
            killed = False
        except Killed:
            killed = True
        monkeypatch.undo()
        found = rotation.find(path, ["one"])
        assert number_of(found.content) in (3, 4)
        if number_of(found.content) == 4:  # at the end of a stage nothing would write it again
            assert number_of(load(checkpoint.stage_file(path, "one"))) == 4
        assert not found.damaged
        rotation.recover(path, found, folder, lambda line: None)
        rotation.save(path, content(5), "one", 2)
        kept = [number_of(load(file)) for file in (path, *rotation.previous(path).values())]
        assert kept[0] == 5
        assert kept == sorted(kept, reverse=True)
        assert len(kept) == 3
        if not killed:
            break
    assert 8 < after < 99


# --- the copy

Pair = namedtuple("Pair", "left right")


def test_a_copy_is_deep_shares_what_was_shared_and_uses_its_memory_again():
    weight = torch.arange(6.0).reshape(2, 3).t()
    value = {"a": weight, "b": weight.t(), "c": [1, [2.0, "x"], {"d": (torch.ones(()), None)}], "tied": weight, "empty": torch.zeros(0)}
    saver = Saver()
    first = saver.copy(value)
    assert torch.equal(first["a"], weight)
    assert first["a"].stride() == weight.stride()
    assert first["a"] is first["tied"]
    place = first["a"].data_ptr()
    assert place != weight.data_ptr()
    weight.fill_(-1)
    value["c"][1][0] = value["c"][2]["d"] = "changed"
    assert first["a"].flatten().tolist() == [0, 3, 1, 4, 2, 5]
    assert first["c"][1] == [2.0, "x"]
    assert first["c"][2]["d"][0] == 1
    assert saver.copy(value)["a"].data_ptr() == place


def test_one_state_is_written_at_a_time_and_what_goes_wrong_arrives():
    saver, go_on, order = Saver(), threading.Event(), []

    def slow(cancelled):
        go_on.wait()
        order.append("first")
        return True

    def failing(cancelled):
        order.append("second")
        raise ZeroDivisionError

    saver.start(slow)
    assert saver.busy
    threading.Timer(0.05, go_on.set).start()
    saver.start(failing)
    with pytest.raises(ZeroDivisionError):
        saver.wait()
    assert order == ["first", "second"]
    assert saver.wait() in (True, False)  # said once


def test_without_a_thread_it_is_written_at_once(monkeypatch):
    def no_more(self):
        raise RuntimeError("can't start new thread")

    saver, written = Saver(), []
    monkeypatch.setattr(threading.Thread, "start", no_more)
    saver.start(lambda cancelled: written.append(1) or True)
    assert not saver.busy
    assert written
    saver.close(give_up=False)


class Part:
    """A component of which only the number matters."""

    def __init__(self, name: str, number: int):
        self.name, self.number = name, number

    def state_args(self) -> dict:
        return {}

    def state(self) -> dict:
        return {"stats": {"total_train_samples": self.number}}


@pytest.mark.parametrize("fails", [False, True])
def test_a_better_state_may_come_while_the_best_one_is_written(tmp_path, monkeypatch, fails):
    """Whether that works out or not, the next save writes it, under the name of its own stage; one that could not be written is tried again."""
    best, path = BestState(), tmp_path / "m.lmp"
    original = checkpoint.write

    def during(*arguments, **options):
        best.keep([Part("runner", 2)], "two")
        monkeypatch.setattr(checkpoint, "write", original)
        if fails:
            raise OSError("full")
        original(*arguments, **options)

    monkeypatch.setattr(checkpoint, "write", during)
    best.keep([Part("runner", 1)], "one")
    best.hand_over()
    if fails:
        with pytest.raises(OSError, match="full"):
            best.write(path)
        best.write(path)
    else:
        best.write(path)
    assert number_of(load(path.with_name("m.one.best.lmp"))) == number_of(load(path.with_name("m.best.lmp"))) == 1
    best.hand_over()
    best.write(path)
    assert [number_of(load(path.with_name(f"m.{name}.lmp"))) for name in ("best", "one.best", "two.best")] == [2, 1, 2]
    best.keep([Part("runner", 3)], None)
    best.hand_over()
    best.write(path)
    assert [number_of(load(path.with_name(f"m.{name}.lmp"))) for name in ("best", "two.best")] == [3, 2]


def test_a_write_that_nobody_waits_for_is_given_up(tmp_path):
    path = tmp_path / "m.lmp"
    checkpoint.write(path, content(1))
    with pytest.raises(checkpoint.Cancelled):
        checkpoint.write(path, content(2), cancelled=lambda: True)
    assert number_of(load(path)) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["m.lmp"]


# --- runs

@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """The command line of a run of two stages, all but its output folder."""
    folder = tmp_path_factory.mktemp("plan")
    write_rows(folder / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(30)])
    plan = write_plan(folder, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl", "lr": 0.01}})
    return [*TINY, "--batch-size", "5", "--dropout", "0.1", "--training-plan", str(plan), "--save-interval", "10", "--validation-interval", "9"]


@pytest.fixture(scope="module")
def finished(arguments, tmp_path_factory):
    """What the run leaves when nobody touches it."""
    out = tmp_path_factory.mktemp("finished") / "out"
    assert main([*arguments, "--out-dir", str(out)]) == 0
    return out


@pytest.fixture
def out(tmp_path):
    """The folder of a new run."""
    return tmp_path / "out"


@pytest.fixture
def again(finished, out):
    """A copy of a finished run, to harm."""
    return shutil.copytree(finished, out)


@pytest.fixture
def run(arguments, out, capsys):
    """Run it into `out`, and give what it says."""
    def start(*more, code=0) -> str:
        found = main([*arguments, "--out-dir", str(out), *map(str, more)])
        captured = capsys.readouterr()
        assert found == code, captured.err
        return captured.out + captured.err
    return start


def same_but_kept(left: Path, right: Path) -> bool:
    """Compare two runs' newest states and statistics: which older states are kept depends on which saves there were."""
    for folder in (left, right):
        for path in (*folder.glob("*.prev-*"), *folder.glob("*.damaged-*"), *folder.glob("*.one.lmp")):
            path.unlink()
    return compare_runs(left, right) == []


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES = {"flipped": flip, "cut": lambda path: os.truncate(path, path.stat().st_size // 2), "empty": lambda path: os.truncate(path, 0),
           "end lost": lambda path: os.truncate(path, path.stat().st_size - 1), "garbage": lambda path: path.write_bytes(random.Random(0).randbytes(5000)),
           "deleted": Path.unlink}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("files", [[f"{MODEL}.lmp"], [f"{MODEL}.lmp", f"{MODEL}.prev-1.lmp"], [f"{MODEL}{part}.lmp" for part in ("", ".prev-1", ".prev-2")]])
def test_a_run_goes_on_from_the_newest_whole_state(finished, again, run, tmp_path, kind, files):
    for name in files:
        DAMAGES[kind](again / name)
    harmed = {(again / name).read_bytes() for name in files if (again / name).exists()}
    text = run()
    assert "the newest state that is whole" in text
    assert "lost, trained on again" in text
    for name in files[:1] if kind == "deleted" else files:
        assert name in text
    assert {path.read_bytes() for path in again.glob("*damaged-*")} == harmed
    assert same_but_kept(shutil.copytree(finished, tmp_path / "whole"), again)


def test_where_none_is_whole_nothing_is_touched(again, run):
    for path in again.glob("*.lmp"):
        os.truncate(path, 1000)
    before = {path.name: path.read_bytes() for path in again.iterdir()}
    text = run(code=2)
    assert "--reset-history" in text
    assert f"{MODEL}.prev-2.lmp: damaged too" in text
    assert {path.name: path.read_bytes() for path in again.iterdir()} == before
    run("--reset-history")
    for name, old in (("", "old-1"), (".prev-1", "old-1.prev-1"), (".one", "old-1.one")):
        assert (again / f"{MODEL}.{old}.lmp").read_bytes() == before[f"{MODEL}{name}.lmp"]


def test_a_file_of_a_later_version_is_no_reason_to_go_back(again, run):
    checkpoint.write(again / f"{MODEL}.lmp", {**content(), "format": 99})
    assert "format 99" in run(code=2)


def test_a_second_run_is_told_who_is_at_work(again, run):
    holder = subprocess.Popen([sys.executable, "-c", "import sys, time; from pathlib import Path; from lmplay.checkpoints.lock import Lock\n"
                               f"Lock(Path({str(again / MODEL)!r} + '.lmp')).take(); print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
    holder.stdout.readline()
    try:
        text = run("--reset-history", code=2)
        assert f"process {holder.pid} on {socket.gethostname()}" in text
        assert main(["--inspect", str(again / f"{MODEL}.lmp")]) == 0
        run("--describe")
    finally:
        holder.kill()
        holder.wait()
    assert (again / f".{MODEL}.lock").exists()
    run("--reset-history")  # who is dead locks nothing
    assert not (again / f".{MODEL}.lock").exists()


def test_what_killed_runs_left_is_removed_and_nothing_else(again, run):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone = [f".{MODEL}.lmp.{dead.pid}.tmp", f".{MODEL}.two.lmp.{dead.pid}.tmp", f".{MODEL}_train_stats.json.{dead.pid}.tmp", f".{MODEL}.lmp.{os.getpid()}.tmp"]
    kept = [f".{MODEL}.lmp.{os.getppid()}.tmp", f".other_model.lmp.{dead.pid}.tmp", f".{MODEL}.lmp.tmp", f"{MODEL}.lmp.{dead.pid}.tmp"]
    for name in gone + kept:
        (again / name).touch()
    (again / f"{MODEL}.lmp").unlink()
    run()
    assert not any((again / name).exists() for name in gone)
    assert all((again / name).exists() for name in kept)
    remove_leftovers(again, lambda name: True)
    assert not (again / kept[1]).exists()


Usage = namedtuple("Usage", "total used free")


def test_a_disk_that_is_too_small_is_said_before_anything_is_done(out, monkeypatch, run):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 12_345))
    text = run(code=2)
    assert "12,345 are free" in text
    assert "--keep" in text
    assert not out.exists()


@pytest.mark.parametrize("full_again", [False, True])
def test_a_save_that_fails_is_tried_again(finished, out, tmp_path, monkeypatch, run, full_again):
    """The disk is full in the middle of the run, and at its end or not."""
    asked = iter(range(1000))

    def usage(path):
        number = next(asked)
        return Usage(0, 0, 100 if number == 2 or (full_again and number >= 5) else 1 << 40)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    text = run(code=int(full_again))
    assert "WARNING" in text
    assert "and 100 are free on the disk" in text
    assert "The next save tries again" in text
    assert checkpoint.verify(out / f"{MODEL}.lmp")
    monkeypatch.undo()
    if full_again:
        run()
    else:
        marked = [json.loads((folder / f"{MODEL}_train_stats.json").read_text())["clock"]["saves"] for folder in (finished, out)]
        assert len(marked[1]) == len(marked[0]) - 1  # what has failed is no save
    assert same_but_kept(shutil.copytree(finished, tmp_path / "whole"), out)


def test_a_disk_that_stays_full_ends_the_run(finished, out, tmp_path, monkeypatch, run):
    """It has been trained for nothing since the last save: here the first, of 10 samples, and no more than three tries after it."""
    original, tries = rotation.save, []

    def full(path, content, *arguments):
        tries.append(content["runner"]["state"]["stats"]["total_train_samples"])
        if len(tries) > 1:
            raise OSError(28, "No space left on device")
        original(path, content, *arguments)

    monkeypatch.setattr(rotation, "save", full)
    text = run("--save-interval", 5, code=1)
    assert text.count("No space left on device") == loop.MOST_FAILED_SAVES
    assert "the last 3 saves have all failed" in text
    assert len(tries) == 1 + loop.MOST_FAILED_SAVES
    assert load(out / f"{MODEL}.lmp")["runner"]["state"]["stats"]["total_train_samples"] == tries[0]
    monkeypatch.undo()
    run()
    assert same_but_kept(shutil.copytree(finished, tmp_path / "whole"), out)


def test_a_stop_after_a_save_that_failed_is_no_success(finished, out, tmp_path, monkeypatch, run):
    """The disk is full at the end of the first stage, and the request to stop comes before the second has begun."""
    original, begin = rotation.save, loop.StageRunner

    def full(path, content, stage, *arguments):
        if content["curriculum"]["state"]["stages"][0]["done"]:
            raise OSError(28, "No space left on device")
        original(path, content, stage, *arguments)

    def stop(run, stage, state):
        if stage.name == "two":
            os.kill(os.getpid(), signal.SIGTERM)
        return begin(run, stage, state)

    monkeypatch.setattr(rotation, "save", full)
    monkeypatch.setattr(loop, "StageRunner", stop)
    text = run(code=1)
    assert "the state could not be saved" in text
    monkeypatch.undo()
    run()
    assert same_but_kept(shutil.copytree(finished, tmp_path / "whole"), out)


def test_data_that_cannot_be_read_in_whatever_way_costs_no_step(finished, out, tmp_path, monkeypatch, run):
    original, calls = stage.StageRunner.next_batch, iter(range(100))

    def lost(self):
        if next(calls) == 3:
            raise OSError(116, "Stale file handle")
        return original(self)

    monkeypatch.setattr(stage.StageRunner, "next_batch", lost)
    with pytest.raises(OSError, match="Stale"):
        run()
    assert load(out / f"{MODEL}.lmp")["runner"]["state"]["stats"]["total_train_steps"] == 3
    monkeypatch.undo()
    run()
    assert same_but_kept(shutil.copytree(finished, tmp_path / "whole"), out)


def test_a_lock_file_that_is_never_the_same_is_no_endless_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_is", lambda handle, path: False)  # a file system that gives out new numbers all the time
    held = Lock(tmp_path / "m.lmp")
    held.take()
    held.release()


def test_a_slow_disk_changes_nothing(finished, out, monkeypatch, run):
    """Each state, also those kept, is that of its moment, however far training has come when it is written."""
    original = torch.save

    def slow(*arguments, **options):
        time.sleep(0.2)
        return original(*arguments, **options)

    monkeypatch.setattr(torch, "save", slow)
    run()
    assert compare_runs(finished, out) == []


def test_a_second_request_to_stop_does_not_wait_for_the_disk(finished, out, monkeypatch, run):
    original = torch.save
    saves = []

    def save_and_stop(*arguments, **options):
        saves.append(1)
        if len(saves) == 3:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.7)  # sooner it counts as the same request
        return original(*arguments, **options)

    monkeypatch.setattr(torch, "save", save_and_stop)
    text = run(code=130)
    assert "stopped at once" in text
    assert checkpoint.verify(out / f"{MODEL}.lmp")
    assert not [*out.glob(".*")]
    monkeypatch.undo()
    run()
    assert compare_runs(finished, out) == []


def test_stages_cannot_take_the_names_of_kept_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "best.jsonl", [{"text": sentences(2)}] * 5)
    write_plan(tmp_path, {name: {"dataset": "best.jsonl"} for name in ("best", "prev-1", "old-2", "damaged-1", "prev")})
    assert main(["--training-plan", "plan.json"]) == 2
    assert capsys.readouterr().err.count("allowed: another one") == 4
    assert main([*TINY, "--dataset", "best.jsonl"]) == 0
    assert Path("out_gpt", f"{MODEL}.best_data.lmp").exists()


# --- --inspect

def test_inspect_says_what_a_file_holds(again, capsys):
    path = again / f"{MODEL}.lmp"
    stored = load(path)
    assert main(["--inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stats = stored["runner"]["state"]["stats"]
    assert (found["checksum"], found["format"], found["bytes"]) == ("right", 1, path.stat().st_size)
    assert found["versions"] == stored["versions"]
    assert found["model"]["parameters"] == sum(tensor.numel() for name, tensor in stored["model"]["state"].items() if name != "head.weight")
    assert (found["model"]["experiment"], found["model"]["tokenizer"]) == ("gpt2ish", "bytes")
    assert (found["run"]["samples"], found["run"]["tokens"], found["run"]["best_validation"]) == (
        stats["total_train_samples"], stats["total_train_tokens"], stats["best"])
    assert [(stage["name"], stage["is"]) for stage in found["stages"]] == [("one", "done"), ("two", "done")]
    assert {"batch_size": 5, "save_interval": 10}.items() <= found["settings"].items()
    assert "lr" not in found["settings"]
    assert found["bytes_by_component"]["model"] == 4 * found["model"]["parameters"]
    assert main(["--inspect", str(path)]) == 0
    text = capsys.readouterr().out
    for word in ("checksum right", "gpt2ish", "two (done)", "save_interval 10", "best validation", "optimizers"):
        assert word in text


def test_inspect_of_weights_alone_and_of_damaged_files(again, run, capsys):
    stored = load(again / f"{MODEL}.lmp")
    checkpoint.write(again / "export.lmp", {"format": 1, "versions": stored["versions"], "model": stored["model"]})
    assert main(["--inspect", str(again / "export.lmp"), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"file", "bytes", "checksum", "format", "versions", "model", "bytes_by_component"}
    run("--initial-model", again / "export.lmp", "--model", again.parent / "new.lmp")
    weights = next(path for path in again.glob("*.lmp"))
    data = bytearray(weights.read_bytes())
    data[-60] ^= 1  # in the last record of the archive, which torch.load does not look at in full
    weights.write_bytes(data)
    assert main(["--inspect", str(weights)]) == 2
    os.truncate(weights, 1000)
    assert main(["--inspect", str(weights)]) == 2
    assert "Traceback" not in capsys.readouterr().err


# --- killed for good

@pytest.mark.slow
def test_kills_in_the_middle_of_saves_lose_nothing(arguments, tmp_path, out):
    reference = tmp_path / "reference"
    assert trainer(*arguments, "--out-dir", reference).returncode == 0
    dice = random.Random(1)
    killed = 0
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-m", "lmplay.train", *arguments, "--out-dir", str(out)], env=ENVIRONMENT, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE)
        saves = dice.randint(0, 3)
        while process.poll() is None and saves >= 0 and killed < 6:
            if list(out.glob(f".{MODEL}.lmp.*.tmp")):
                saves -= 1
                time.sleep(dice.uniform(0, 0.01))
        if killed < 6 and process.poll() is None:
            process.kill()
        complaints = process.communicate()[1]
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, complaints
        killed += 1
    assert killed >= 3
    assert not list(out.glob(".*"))
    assert same_but_kept(reference, out)
