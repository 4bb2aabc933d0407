"""Saving while training goes on: full and slow disks, and every way to be stopped."""
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import pytest
import torch
import warm
from helpers import ENVIRONMENT, compare_runs, load, trainer
from states import MODEL, Usage, all_but_kept, content, number_of

from lmplay.checkpoints import rotation, writers
from lmplay.checkpoints.copier import Copier
from lmplay.checkpoints.format import verify
from lmplay.checkpoints.saver import Saver
from lmplay.checkpoints.writers import Writers
from lmplay.engine import loop, save, stage


def test_a_copy_is_deep_shares_what_was_shared_and_uses_its_memory_again():
    weight = torch.arange(6.0).reshape(2, 3).t()
    value = {"a": weight, "b": weight.t(), "c": [1, [2.0, "x"], {"d": (torch.ones(()), None)}], "tied": weight, "empty": torch.zeros(0)}
    copier = Copier(None)
    first = copier(value)
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
    assert copier(value)["a"].data_ptr() == place


def test_one_state_is_written_at_a_time_and_what_goes_wrong_arrives(tmp_path):
    saver, go_on, order = Saver(tmp_path / "m.lmp", keep=0), threading.Event(), []

    def slow(record):
        go_on.wait()
        order.append("first")

    def failing(record):
        order.append("second")
        raise ZeroDivisionError

    def save(before):
        saver.save(content(1), "one", None, before, saved=lambda record, seconds: order.append("saved"), failed=order.append)

    save(slow)
    assert saver.busy
    threading.Timer(0.05, go_on.set).start()
    save(failing)
    with pytest.raises(ZeroDivisionError):
        saver.wait()
    assert order == ["first", "saved", "second"]
    assert saver.wait() is True  # the error is raised once


def test_the_record_and_the_state_are_of_one_moment_and_the_record_comes_first(tmp_path):
    """Whatever changes after the call: the functions see the record as it was, sharing its tensors with the state."""
    class Record:
        def __init__(self, total):
            self.total = total
            self.rows = [1, 2]

    path, go_on, seen = tmp_path / "m.lmp", threading.Event(), []
    state, saver = content(4), Saver(tmp_path / "m.lmp", keep=0)
    record = Record(state["model"]["state"]["weight"])

    def before(copied):
        go_on.wait()
        seen.append((copied.rows, copied.total.tolist() == [4] * 50, path.exists()))

    saver.save(state, "one", record, before, lambda copied, seconds: seen.append((copied.rows, 0 <= seconds < 60, path.exists())), seen.append)
    record.total.fill_(5)
    record.rows.append(3)
    state["runner"]["state"]["stats"]["total_train_samples"] = 5
    go_on.set()
    assert saver.wait()
    assert seen == [([1, 2], True, False), ([1, 2], True, True)]
    assert number_of(load(path)) == 4
    assert load(path)["model"]["state"]["weight"].tolist() == [4] * 50
    assert path.samefile(tmp_path / "m.one.lmp")


def test_failed_saves_are_counted_in_a_row(tmp_path):
    saver, errors = Saver(tmp_path / "none" / "m.lmp", keep=0), []

    def save():
        saver.save(content(1), "one", None, lambda record: None, lambda record, seconds: None, errors.append)
        return saver.wait()

    assert [save(), save(), saver.failed, len(errors)] == [False, False, 2, 2]
    assert isinstance(errors[0], FileNotFoundError)
    (tmp_path / "none").mkdir()
    assert [save(), saver.failed] == [True, 0]


def test_a_save_that_is_given_up_leaves_no_file_and_says_nothing(tmp_path, monkeypatch):
    saver, go_on, said = Saver(tmp_path / "m.lmp", keep=0), threading.Event(), []
    saver.save(content(1), "one", None, lambda record: go_on.wait() and None, lambda record, seconds: said.append("saved"), said.append)
    threading.Timer(0.05, go_on.set).start()
    saver.close(give_up=True)
    assert (said, list(tmp_path.iterdir()), saver.wait()) == ([], [], False)


def test_without_a_thread_it_is_written_at_once(tmp_path, monkeypatch):
    def no_more(self):
        raise RuntimeError("can't start new thread")

    saver, written = Saver(tmp_path / "m.lmp", keep=0), []
    monkeypatch.setattr(threading.Thread, "start", no_more)
    saver.save(content(1), "one", None, before=written.append, saved=lambda record, seconds: written.append("saved"), failed=written.append)
    assert not saver.busy
    assert written == [None, "saved"]
    saver.close(give_up=False)


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
    assert verify(out / f"{MODEL}.lmp")
    monkeypatch.undo()
    if full_again:
        run()
    else:
        marked = [json.loads((folder / f"{MODEL}_train_stats.json").read_text())["clock"]["saves"] for folder in (finished, out)]
        assert len(marked[1]) == len(marked[0]) - 1  # what has failed is no save
    assert not all_but_kept(shutil.copytree(finished, tmp_path / "whole"), out)


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
    assert text.count("No space left on device") == save.MOST_FAILED_SAVES
    assert "the last 3 saves have all failed" in text
    assert len(tries) == 1 + save.MOST_FAILED_SAVES
    assert load(out / f"{MODEL}.lmp")["runner"]["state"]["stats"]["total_train_samples"] == tries[0]
    monkeypatch.undo()
    run()
    assert not all_but_kept(shutil.copytree(finished, tmp_path / "whole"), out)


def test_a_stop_at_a_save_that_failed_is_no_success(finished, out, tmp_path, monkeypatch, run):
    """The disk is full at the end of the first stage, and the request to stop comes before the second has begun."""
    original, begin = rotation.save, loop.StageRunner

    def full(path, content, stage, *arguments):
        if content["curriculum"]["state"]["stages"][0]["done"]:
            raise OSError(28, "No space left on device")
        original(path, content, stage, *arguments)

    def stop(run, stage):
        if stage.stage.name == "two":
            os.kill(os.getpid(), signal.SIGTERM)
        return begin(run, stage)

    monkeypatch.setattr(rotation, "save", full)
    monkeypatch.setattr(loop, "StageRunner", stop)
    text = run(code=1)
    assert "the state could not be saved" in text
    monkeypatch.undo()
    run()
    assert not all_but_kept(shutil.copytree(finished, tmp_path / "whole"), out)


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
    assert not all_but_kept(shutil.copytree(finished, tmp_path / "whole"), out)


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
    assert verify(out / f"{MODEL}.lmp")
    assert not [*out.glob(".*")]
    monkeypatch.undo()
    run()
    assert compare_runs(finished, out) == []


@pytest.mark.slow
def test_kills_in_the_middle_of_saves_lose_nothing(arguments, tmp_path, out):
    reference = tmp_path / "reference"
    assert trainer(*arguments, "--out-dir", reference).returncode == 0
    dice = random.Random(1)
    killed = 0
    for _ in range(20):
        process = warm.Popen(["-m", "lmplay.train", *arguments, "--out-dir", str(out)], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
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
    for path in out.glob("*.old-*.best.lmp"):
        path.unlink()  # of a run that was killed between its first best state and its first state: the next run is another
    assert not all_but_kept(reference, out)


class Ranks:
    """Ranks in one process that leave each other texts."""

    def __init__(self, rank, size, texts):
        self.rank, self.size, self.main_pid, self._texts = rank, size, os.getpid(), texts

    def post(self, key, text):
        self._texts[key, self.rank] = text

    def posted(self, key):
        found = [self._texts.get((key, rank)) for rank in range(1, self.size)]
        return None if None in found else found


def test_ranks_write_a_folder_together_or_none(tmp_path, monkeypatch):
    """A rank that fails leaves the state before; the save after that has the best state that was to be written, too."""
    path, texts, failures = tmp_path / "m.lmp", {}, []
    savers = [Saver(path, keep=1, writers=Writers(Ranks(rank, 3, texts))) for rank in range(3)]
    original = writers.write_own

    def state(number):
        made = content(number)
        made["model"]["state"]["weight"] = torch.full((3000, 7), float(number))
        return made

    def save(number, written):
        for saver in savers[1:]:
            saver.save_part({name: state(number)[name] for name in ("model", "optimizers")}, written)
        savers[0].save(state(number), "one", None, lambda record: None, lambda record, seconds: None, failures.append)
        assert [saver.wait() for saver in savers[1:]] == [True, True]
        return savers[0].wait()

    def fail(folder, divided, rank, size, cancelled):
        if rank == failing:
            raise OSError(28, "No space left on device")
        return original(folder, divided, rank, size, cancelled)

    assert save(1, True)
    monkeypatch.setattr(writers, "write_own", fail)
    for saver in savers:
        saver.keep_best(state(2), None)
    for failing, said in ((2, "rank 2: No space left on device"), (0, "No space left on device")):
        assert not save(3, failing == 2)
        assert failures.pop().strerror == said
        assert number_of(load(path)) == 1
        assert sorted(file.name for file in tmp_path.iterdir()) == ["m.lmp", "m.one.lmp"]
    monkeypatch.undo()
    assert save(4, False)
    assert [number_of(load(tmp_path / name)) for name in ("m.lmp", "m.prev-1.lmp", "m.one.lmp", "m.best.lmp")] == [4, 1, 4, 2]
    assert load(tmp_path / "m.best.lmp")["model"]["state"]["weight"].unique().tolist() == [2]
    assert len(list(path.glob("shard-*"))) == 3
    assert save(5, True)
    assert number_of(load(tmp_path / "m.best.lmp")) == 2
    assert not failures


@pytest.mark.parametrize("failing", [0, 1])
def test_without_memory_for_a_part_of_the_best_state_ranks_save_the_newest_alone_and_say_so(tmp_path, monkeypatch, failing):
    texts, said, original = {}, [], Saver._copy_with_best
    savers = [Saver(tmp_path / "m.lmp", keep=0, writers=Writers(Ranks(rank, 2, texts)), say=said.append) for rank in range(2)]

    def short(self, *arguments):
        if self is savers[failing] and self._best is not None:
            raise OSError("the state cannot be copied")
        return original(self, *arguments)

    monkeypatch.setattr(Saver, "_copy_with_best", short)
    for saver in savers:
        saver.keep_best(content(1), None)
    for number in (2, 3):
        savers[1].save_part({name: content(number)[name] for name in ("model", "optimizers")}, True)
        savers[0].save(content(number), "one", None, lambda record: None, lambda record, seconds: None, said.append)
        assert [saver.wait() for saver in savers] == [True, True]
        assert number_of(load(tmp_path / "m.lmp")) == number
    assert not (tmp_path / "m.best.lmp").exists()
    assert len(said) == 1
    assert "WARNING: the best state is not written" in said[0]


@pytest.mark.parametrize("failing", [0, 1])
def test_the_best_state_of_a_folder_is_of_one_step_after_a_failed_save_and_a_failed_copy(tmp_path, monkeypatch, failing):
    texts, said = {}, []
    savers = [Saver(tmp_path / "m.lmp", keep=0, writers=Writers(Ranks(rank, 2, texts)), say=said.append) for rank in range(2)]

    def save(number, written):
        savers[1].save_part({name: content(number)[name] for name in ("model", "optimizers")}, written)
        savers[0].save(content(number), "one", None, lambda record: None, lambda record, seconds: None, said.append)
        return savers[1].wait() and savers[0].wait()

    def full(*_):
        raise OSError(28, "No space left on device")

    def no_memory(work):
        raise OSError("the state cannot be copied")

    for saver in savers:
        saver.keep_best(content(1), None)
    with monkeypatch.context() as patch:
        patch.setattr(writers, "write_own", full)
        assert not save(2, True)
    savers[1 - failing].keep_best(content(3), None)
    with monkeypatch.context() as patch:
        patch.setattr(savers[failing], "_with_memory", no_memory)
        with pytest.raises(OSError, match="cannot be copied"):
            savers[failing].keep_best(content(3), None)
    assert save(4, False)
    assert number_of(load(tmp_path / "m.lmp")) == 4
    assert not (tmp_path / "m.best.lmp").exists()


def test_what_is_no_fault_of_the_disk_is_said_to_rank_0_and_raised_where_it_is(tmp_path, monkeypatch):
    """Rank 0 would wait for a rank that says nothing."""
    texts, failures = {}, []
    savers = [Saver(tmp_path / "m.lmp", keep=0, writers=Writers(Ranks(rank, 2, texts))) for rank in range(2)]
    original = writers.write_own

    def fail(folder, divided, rank, size, cancelled):
        if rank == failing:
            raise ZeroDivisionError("oh")
        return original(folder, divided, rank, size, cancelled)

    monkeypatch.setattr(writers, "write_own", fail)
    for failing in (1, 0):
        savers[1].save_part({name: content(1)[name] for name in ("model", "optimizers")}, True)
        savers[0].save(content(1), "one", None, lambda record: None, lambda record, seconds: None, failures.append)
        with pytest.raises(ZeroDivisionError):
            savers[failing].wait()
        if failing:
            assert not savers[0].wait()
            assert failures.pop().strerror == "rank 1: ZeroDivisionError: oh"
        else:
            assert savers[1].wait()
        assert not list(tmp_path.iterdir())
    assert not failures


def test_a_save_of_folders_that_is_given_up_leaves_none(tmp_path):
    saver = Saver(tmp_path / "m.lmp", keep=0, writers=Writers(Ranks(0, 2, {})))  # rank 1 never comes
    saver.save(content(1), "one", None, lambda record: None, lambda record, seconds: None, lambda error: None)
    saver.close(give_up=True)
    assert not list(tmp_path.iterdir())
