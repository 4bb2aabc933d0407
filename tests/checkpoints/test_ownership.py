"""No run takes or replaces the file of another, even where their names meet."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import load, total, train_plan, weights, write_plan, write_rows

OUT = Path("out_gpt")
FLAGS = ["--validation-interval", 10, "--save-interval", 10]


def contents(folder=OUT):
    return {path.name: path.read_bytes() for path in folder.glob("*.lmp")}


def strip(path):
    """Make of a file what a version without ids has written."""
    content = load(path)
    content["runner"]["state"]["clock"] = {key: value for key, value in content["runner"]["state"]["clock"].items() if key not in ("run", "model")}
    torch.save(content, path)


def holder(name):
    """Start a process that holds the lock of a model of this name."""
    code = (f"import time; from pathlib import Path; from lmplay.checkpoints.lock import Lock; "
            f"Lock(Path({str(OUT / name)!r}), None, ['one', 'two']).take(); print(flush=True); time.sleep(60)")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


@pytest.mark.parametrize("flag", [(), ("--reset-history",), ("--resume", "out_gpt/other.lmp")])
def test_another_model_is_not_taken_for_a_stage(two_stages, capsys, flag):
    train_plan(capsys, "--model", OUT / "m.one.lmp", "--max-steps", 2, code=75)
    shutil.copy(OUT / "m.one.lmp", OUT / "other.lmp")
    before = contents()
    assert "m.one.lmp" in train_plan(capsys, "--model", OUT / "m.lmp", *flag, code=2)
    assert contents() == before


@pytest.mark.parametrize("flag", [(), ("--reset-history",), ("--resume", "out_gpt/m.two.lmp")])
def test_the_state_of_a_stage_is_no_model_of_its_own(two_stages, capsys, flag):
    train_plan(capsys, "--model", OUT / "m.lmp")
    before = contents()
    text = train_plan(capsys, "--model", OUT / "m.one.lmp", *flag, code=2)
    assert "is a file of the model m" in text
    assert contents() == before


def test_a_state_of_a_stage_goes_on_under_another_name(two_stages, capsys):
    train_plan(capsys, "--model", OUT / "m.lmp")
    one = (OUT / "m.one.lmp").read_bytes()
    assert "plan complete" in train_plan(capsys, "--model", OUT / "n.lmp", "--resume", OUT / "m.one.lmp")
    assert (OUT / "m.one.lmp").read_bytes() == one
    assert "is complete" in train_plan(capsys, "--model", OUT / "n.lmp")


def test_a_model_that_came_after_the_start_is_not_replaced_by_a_stage(two_stages, capsys):
    train_plan(capsys, "--model", OUT / "m.lmp", "--max-steps", 2, code=75)
    write_plan(Path(), {"other": {"dataset": "rows.jsonl", "samples": 5}})
    train_plan(capsys, "--model", OUT / "m.two.lmp")
    write_plan(Path(), {"one": {"dataset": "rows.jsonl", "epochs": 2}, "two": {"dataset": "rows.jsonl", "samples": 5}})
    before = contents()
    assert "m.two.lmp is a model of its own" in train_plan(capsys, "--model", OUT / "m.lmp", code=2)
    assert contents() == before


def test_starting_anew_leaves_a_model_with_the_name_of_a_former_stage(two_stages, capsys):
    train_plan(capsys, "--model", OUT / "m.lmp", "--max-steps", 2, code=75)
    shutil.move(OUT / "m.one.lmp", OUT / "gone.lmp")
    write_plan(Path(), {"other": {"dataset": "rows.jsonl", "samples": 5}})
    train_plan(capsys, "--model", OUT / "m.one.lmp")
    before = (OUT / "m.one.lmp").read_bytes()
    train_plan(capsys, "--model", OUT / "m.lmp", "--reset-history")
    assert (OUT / "m.one.lmp").read_bytes() == before
    assert (OUT / "m.old-1.lmp").exists()


def test_files_without_an_id_still_go_on(two_stages, capsys):
    train_plan(capsys, *FLAGS, "--max-steps", 8, code=75)
    for path in OUT.glob("*.lmp"):
        strip(path)
    before = total()
    train_plan(capsys, *FLAGS, "--max-steps", 2, code=75)
    assert total() > before
    assert len(load(OUT / "gpt2ish_model.lmp")["runner"]["state"]["clock"]["run"]) == 12
    os.truncate(OUT / "gpt2ish_model.lmp", 1000)
    assert "the newest intact state" in train_plan(capsys, *FLAGS)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_model_may_be_renamed_with_all_its_files(two_stages, capsys, damaged):
    train_plan(capsys, *FLAGS, "--model", OUT / "m.lmp", "--max-steps", 8, code=75)
    run = load(OUT / "m.lmp")["runner"]["state"]["clock"]["run"]
    for path in OUT.glob("m.*lmp"):
        path.rename(OUT / ("renamed" + path.name[1:]))
    if damaged:
        os.truncate(OUT / "renamed.lmp", 1000)
    text = train_plan(capsys, *FLAGS, "--model", OUT / "renamed.lmp")
    assert "resumed     at" in text
    clock = load(OUT / "renamed.lmp")["runner"]["state"]["clock"]
    assert (clock["run"], clock["model"]) == (run, "renamed")


def test_the_files_of_another_run_are_refused_by_name(two_stages, capsys):
    train_plan(capsys, "--out-dir", "a")
    train_plan(capsys, "--out-dir", "b", "--max-steps", 3, code=75)
    Path("a/gpt2ish_model.lmp").unlink()  # two.lmp was a link to it
    shutil.copy("b/gpt2ish_model.lmp", "a/gpt2ish_model.lmp")
    before = contents(Path("a"))
    text = train_plan(capsys, "--out-dir", "a", code=2)
    assert "gpt2ish_model.one.lmp belongs to another run" in text
    assert "gpt2ish_model.two.lmp belongs to another run" in text
    assert contents(Path("a")) == before
    train_plan(capsys, "--out-dir", "a", "--reset-history")
    assert Path("a/gpt2ish_model.old-1.two.lmp").read_bytes() == before["gpt2ish_model.two.lmp"]
    assert "is complete" in train_plan(capsys, "--out-dir", "a")


def test_going_on_from_another_run_keeps_all_that_was_there(two_stages, capsys):
    train_plan(capsys, *FLAGS, "--out-dir", "a")
    train_plan(capsys, *FLAGS, "--out-dir", "b", "--seed", 1, "--max-steps", 3, code=75)
    before = contents(Path("a"))
    train_plan(capsys, *FLAGS, "--out-dir", "a", "--seed", 1, "--resume", "b/gpt2ish_model.lmp", "--max-steps", 1, code=75)
    after = contents(Path("a"))
    assert {name.replace("gpt2ish_model", "gpt2ish_model.old-1"): content for name, content in before.items()}.items() <= after.items()
    assert not set(before.values()) & {content for name, content in after.items() if ".old-1" not in name}
    train_plan(capsys, *FLAGS, "--out-dir", "a", "--seed", 1)
    train_plan(capsys, *FLAGS, "--out-dir", "b", "--seed", 1)
    left, right = weights("a/gpt2ish_model.lmp"), weights("b/gpt2ish_model.lmp")
    assert all(torch.equal(left[key], right[key]) for key in left)


def test_the_best_state_of_a_run_whose_newest_is_gone_is_kept(two_stages, capsys):
    train_plan(capsys, *FLAGS, "--max-steps", 8, code=75)
    best = OUT / "gpt2ish_model.best.lmp"
    content = best.read_bytes()
    for path in OUT.glob("*.lmp"):
        if path != best:
            path.unlink()
    assert "gpt2ish_model.old-1.best.lmp" in train_plan(capsys, *FLAGS)
    assert (OUT / "gpt2ish_model.old-1.best.lmp").read_bytes() == content


def test_a_run_that_was_killed_in_its_first_save_starts_again(two_stages, capsys, monkeypatch):
    from lmplay.checkpoints import rotation

    def fail(*_):
        raise OSError("as a kill here")

    with monkeypatch.context() as context:
        context.setattr(rotation, "save", fail)
        train_plan(capsys, *FLAGS, code=1)
    assert list(contents()) == ["gpt2ish_model.best.lmp"]
    assert "plan complete" in train_plan(capsys, *FLAGS)


@pytest.mark.parametrize("name", ["m.best", "m.prev-1", "m.old-12", "m.damaged-1", "m.two.Best"])
def test_a_model_cannot_have_the_name_of_a_kept_file(two_stages, capsys, name):
    assert "rename the file" in train_plan(capsys, "--model", OUT / f"{name}.lmp", code=2)
    assert not OUT.exists()


def test_numbers_of_kept_files_are_not_used_twice(two_stages, capsys):
    train_plan(capsys, "--max-steps", 3, code=75)
    train_plan(capsys, "--reset-history", "--max-steps", 3, code=75)
    (OUT / "gpt2ish_model.old-1.lmp").unlink()
    before = (OUT / "gpt2ish_model.old-1.one.lmp").read_bytes()
    train_plan(capsys, "--reset-history", "--max-steps", 3, code=75)
    assert (OUT / "gpt2ish_model.old-1.one.lmp").read_bytes() == before
    assert (OUT / "gpt2ish_model.old-2.lmp").exists()


@pytest.mark.parametrize(("first", "second"), [("m.lmp", "m.one.lmp"), ("m.one.lmp", "m.lmp")])
def test_the_names_of_stages_are_locked_with_the_model(two_stages, capsys, first, second):
    OUT.mkdir()
    process = holder(first)
    try:
        text = train_plan(capsys, "--model", OUT / second, code=2)
        assert f"process {process.pid} on" in text
    finally:
        process.kill()
        process.wait()
    train_plan(capsys, "--model", OUT / second, "--max-steps", 1, code=75)


def test_rows_of_a_stage_with_a_reserved_ending_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [{"text": "a cat"}] * 9)
    write_plan(tmp_path, {name: {"dataset": "rows.jsonl"} for name in ("x", "x.best", "x.prev-1", "x.OLD-1", "x.best.y")})
    assert train_plan(capsys, code=2).count("an ending that is kept") == 3
