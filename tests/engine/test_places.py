"""What is no file where a run keeps one: a line that names it and exit code 2, no wait, and nothing left behind."""
import os
import socket
from pathlib import Path

import pytest
from helpers import sentences, train, write_rows

from lmplay.documents import read_json_or_yaml
from lmplay.errors import UserError
from lmplay.files import NotAFile, link_atomic, write_text
from lmplay.generate.__main__ import main as generate
from lmplay.report.console import Console

pytestmark = pytest.mark.skipif(os.name == "nt", reason="files of Unix")
NAME = "gpt2ish_model"
FILES = [f"{NAME}.lmp", f"{NAME}.prev-1.lmp", f"{NAME}.one.lmp", f"{NAME}.best.lmp", f"{NAME}_settings.json", f".{NAME}.lock", f"{NAME}.log",
         f"{NAME}_train_stats.json", f"{NAME}_step_two_validate_stats.json", f"{NAME}_samples.jsonl", f"{NAME}_train.csv"]


def listener(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


KINDS = {"folder": Path.mkdir, "named pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero")}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_file_of_a_run(two_stages, capsys, name, kind):
    out = Path("out_gpt")
    out.mkdir()
    KINDS[kind](out / name)
    text = train(capsys, "--training-plan", "plan.json", code=2)
    assert f"out_gpt/{name}" in text
    assert name.endswith(".lock") or f"is a {kind}" in text
    assert text.count("\n") == 1
    assert [path.name for path in out.iterdir()] == [name]


@pytest.mark.parametrize("rest", [".log", "_samples.jsonl", "_train.csv", "_validate.csv", "_evaluate.csv"])
def test_no_link_is_followed_out_of_the_folder(two_stages, capsys, rest):
    Path("out_gpt").mkdir()
    Path("mine.txt").write_text("mine\n")
    Path(f"out_gpt/{NAME}{rest}").symlink_to(Path("mine.txt").absolute())
    text = train(capsys, "--training-plan", "plan.json", "--track", "csv", code=2)
    assert f"out_gpt/{NAME}{rest}: it is a link, and what the run appends to it would be written elsewhere" in text
    assert text.count("\n") == 1
    assert Path("mine.txt").read_text() == "mine\n"


@pytest.mark.parametrize("name", [f"{NAME}.lmp", f"{NAME}.prev-1.lmp", f"{NAME}.one.lmp"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_is_not_taken_for_a_state(two_stages, capsys, name, is_there):
    Path("out_gpt").mkdir()
    if is_there:
        Path("other.lmp").write_text("of another run")
    Path(f"out_gpt/{name}").symlink_to(Path("../other.lmp"))
    text = train(capsys, "--training-plan", "plan.json", "--max-steps", 1, code=2 if is_there or name == f"{NAME}.lmp" else 75)
    if is_there or name == f"{NAME}.lmp":
        assert f"out_gpt/{name}: it is a link to ../other.lmp, which may belong to another run" in text
        assert text.count("\n") == 1
        assert os.listdir("out_gpt") == [name]
    assert Path("other.lmp").exists() == is_there


def test_a_log_that_becomes_a_link_is_given_up(two_stages, capsys, monkeypatch):
    original = Console.open_log
    Path("mine.txt").write_text("mine\n")
    monkeypatch.setattr(Console, "open_log", lambda self, path: (path.symlink_to(Path("mine.txt").absolute()), original(self, path)))
    assert "cannot be written (it is a link); training goes on without it" in train(capsys, "--training-plan", "plan.json", "--max-steps", 1, code=75)
    assert Path("mine.txt").read_text() == "mine\n"


@pytest.mark.parametrize("kind", KINDS)
def test_no_model_that_a_generator_is_given(tmp_path, capsys, kind):
    KINDS[kind](tmp_path / "x.lmp")
    assert generate(["--model", str(tmp_path / "x.lmp"), "--prompt", "a"]) == 2
    assert capsys.readouterr().err == f"lmp_generator: --model {tmp_path}/x.lmp: cannot be read (it is a {kind}, not a file).\n"


@pytest.mark.parametrize(("asked", "near"), [("b", None), ("ideas", "idea.lmp"), ("idea.lm", "idea.lmp"), ("other", None)])
def test_a_model_is_proposed_where_its_name_is_near(tmp_path, capsys, asked, near):
    for name in ("a", "idea"):
        (tmp_path / f"{name}.lmp").touch()
    assert generate(["--model", asked, "--out-dir", str(tmp_path), "--prompt", "a"]) == 2
    said = capsys.readouterr().err
    assert (f"Did you mean '{near}'?" in said) if near else ("Did you mean" not in said)


@pytest.mark.parametrize("flag", ["--training-plan", "--use-config", "--resume", "--initial-model", "--inspect", "--dataset", "--dump-config",
                                  "--save-weights-only"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_file_that_a_flag_names(two_stages, capsys, flag, kind):
    path = Path("x.jsonl" if flag == "--dataset" else "x.lmp" if flag in ("--resume", "--initial-model", "--inspect", "--save-weights-only") else "x.json")
    path = Path.cwd() / path if flag == "--save-weights-only" else path  # a name alone lies in the output folder
    KINDS[kind](path)
    more = [] if flag in ("--training-plan", "--dataset") else ["--training-plan", "plan.json"]
    text = train(capsys, *more, flag, path, code=2)
    assert str(path) in text
    assert text.count("\n") == 1
    assert sorted(found.name for found in Path().iterdir()) == sorted(["plan.json", "rows.jsonl", path.name])


def test_no_file_among_those_of_a_folder(two_stages, capsys):
    Path("data").mkdir()
    write_rows(Path("data/a.jsonl"), [{"text": sentences(2)}] * 9)
    os.mkfifo("data/b.jsonl")
    assert "b.jsonl: it is a named pipe" in train(capsys, "--dataset", "data", code=2)
    assert not Path("out_gpt").exists()


def test_a_socket_is_no_file(tmp_path):
    listener(tmp_path / "x.json")
    with pytest.raises(UserError, match="socket"):
        read_json_or_yaml(tmp_path / "x.json", "plan")


@pytest.mark.parametrize("write", [lambda path: write_text(path, "x"), lambda path: link_atomic(path.with_name("file"), path)])
def test_what_is_written_replaces_files_only(tmp_path, write):
    (tmp_path / "file").write_text("x")
    (tmp_path / "x").mkdir()
    with pytest.raises(NotAFile):
        write(tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "x"]


def test_a_rename_that_fails_leaves_no_temporary_file(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")

    def fail(*_):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fail)
    for write in (lambda: write_text(tmp_path / "x", "x"), lambda: link_atomic(tmp_path / "file", tmp_path / "x")):
        with pytest.raises(OSError, match="no"):
            write()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_log_that_becomes_a_pipe_is_given_up(two_stages, capsys, monkeypatch):
    """Whoever reads it may never come."""
    original = Console.open_log
    monkeypatch.setattr(Console, "open_log", lambda self, path: (os.mkfifo(path), original(self, path)))
    assert "training goes on without it" in train(capsys, "--training-plan", "plan.json", "--max-steps", 1, code=75)
