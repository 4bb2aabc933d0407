"""The files of a model: which states are kept, which are found, and what happens to damaged ones."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import TINY, load, sentences, write_plan, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from states import DAMAGES, MODEL, Usage, all_but_kept, content, number_of

from lmplay import files
from lmplay.checkpoints import rotation
from lmplay.checkpoints.converting import write_state
from lmplay.checkpoints.format import stage_file
from lmplay.checkpoints.saver import Saver
from lmplay.checkpoints.writers import Writers
from lmplay.device.ranks import Ranks
from lmplay.errors import UserError
from lmplay.files import put, remove_leftovers, temporary_name
from lmplay.train.__main__ import main


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
        assert path.samefile(stage_file(path, "one"))
        assert {file.name for file in path.parent.iterdir()} == {"m.lmp", "m.one.lmp", *(f"m.prev-{n}.lmp" for n in range(1, len(states)))}


class Killed(BaseException):
    """A kill at a system call."""


def save_folder(path, content, stage, keep):
    """Save as a folder of shards, as a run of one process does."""
    saver = Saver(path, keep, writers=Writers(Ranks()))
    saver.save(content, stage, None, lambda record: None, lambda record, seconds: None, refuse)
    saver.wait()


def refuse(error):
    raise error


SAVES = {"file": rotation.save, "folder": save_folder,
         "in turn": lambda path, state, *more: (rotation.save, save_folder)[number_of(state) % 2](path, state, *more)}


@pytest.mark.parametrize("keep", [2, 0])
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize(("links", "exchange"), [(True, True), (False, False)])
def test_a_save_may_be_killed_anywhere(tmp_path, monkeypatch, links, exchange, save, keep):
    """Before each system call that changes names: what is found afterwards is the old state or the new one, and the next save works."""
    if exchange and files._renameat2() is None:
        pytest.skip("names cannot be exchanged here")
    calls = ("link", "rename", "replace", "unlink", "fsync", "mkdir", "rmdir")
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
            save(path, content(number), "one", keep)
        if not exchange:
            monkeypatch.setattr(files, "_renameat2", lambda: None)
        arm(after)
        try:
            save(path, content(4), "one", keep)
            killed = False
        except Killed:
            killed = True
        monkeypatch.undo()
        found = rotation.find(path, ["one"])
        assert number_of(found.content) in (3, 4)
        if number_of(found.content) == 4:  # at the end of a stage nothing would write it again
            assert number_of(load(stage_file(path, "one"))) == 4
        assert not found.damaged
        try:
            rotation.clean_up(path, folder)
        except UserError:  # the older state has its name again, and is what the next run finds
            assert not exchange
            found = rotation.find(path, ["one"])
        rotation.recover(path, found, folder, lambda line: None)
        save(path, content(5), "one", keep)
        kept = [number_of(load(file)) for file in (path, *rotation.previous(path).values())]
        assert kept[0] == 5
        assert kept == sorted(kept, reverse=True)
        assert len(kept) == keep + 1
        if not killed:
            break
    assert (8 if keep else 3) < after < 99


@pytest.mark.parametrize("name", ["m.lmp", "m.best.lmp", "m.one.best.lmp"])
def test_a_folder_that_has_no_name_while_it_is_replaced_is_not_lost(tmp_path, monkeypatch, name):
    """Where names cannot be exchanged there is an instant without the old one: an error gives it back at once, and after a kill the next run does."""
    path = tmp_path / name
    for number in (1, 2):
        write_state(path if number == 1 else tmp_path / "new.lmp", content(number), 1)
    new = (tmp_path / "new.lmp").rename(temporary_name(path))
    monkeypatch.setattr(files, "_renameat2", lambda: None)
    original = os.replace

    def replace(old, other):
        if old == new:
            raise KeyboardInterrupt
        if Path(other) == path and killed:
            raise Killed
        original(old, other)

    monkeypatch.setattr(os, "replace", replace)
    killed = False
    with pytest.raises(KeyboardInterrupt):
        put(new, path)
    assert number_of(load(path)) == 1
    killed = True
    with pytest.raises(Killed):
        put(new, path)
    assert not path.exists()
    monkeypatch.undo()
    if name == "m.lmp":
        with pytest.raises(UserError, match=r"m\.lmp: a process was killed .* run the same command again"):
            rotation.clean_up(tmp_path / "m.lmp", tmp_path)
    else:
        rotation.clean_up(tmp_path / "m.lmp", tmp_path)
    assert number_of(load(path)) == 1
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_two_folders_that_are_written_at_once_need_room_for_both(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 399))
    rotation.check_free_space(tmp_path / "m.lmp", 100, ["one"], 1)
    with pytest.raises(UserError, match="up to 4 states"):
        rotation.check_free_space(tmp_path / "m.lmp", 100, ["one"], 1, at_once=2)


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("files", [[f"{MODEL}.lmp"], [f"{MODEL}.lmp", f"{MODEL}.prev-1.lmp"], [f"{MODEL}{part}.lmp" for part in ("", ".prev-1", ".prev-2")]])
def test_a_run_goes_on_from_the_newest_whole_state(finished, again, run, tmp_path, kind, files):
    for name in files:
        DAMAGES[kind](again / name)
    harmed = {(again / name).read_bytes() for name in files if (again / name).exists()}
    text = run()
    assert "the newest intact state" in text
    assert "lost, trained on again" in text
    for name in files[:1] if kind == "deleted" else files:
        assert name in text
    assert {path.read_bytes() for path in again.glob("*damaged-*")} == harmed
    assert not all_but_kept(shutil.copytree(finished, tmp_path / "whole"), again)


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


def test_a_disk_that_is_too_small_is_said_before_anything_is_done(out, monkeypatch, run):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 12_345))
    text = run(code=2)
    assert "12,345 are free" in text
    assert "--keep" in text
    assert not out.exists()


def test_stages_cannot_take_the_names_of_kept_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "best.jsonl", [{"text": sentences(2)}] * 5)
    write_plan(tmp_path, {name: {"dataset": "best.jsonl"} for name in ("best", "prev-1", "old-2", "damaged-1", "prev")})
    assert main(["--training-plan", "plan.json"]) == 2
    assert capsys.readouterr().err.count("allowed: another one") == 4
    assert main([*TINY, "--dataset", "best.jsonl"]) == 0
    assert Path("out_gpt", f"{MODEL}.best_data.lmp").exists()
