"""The evaluations of a run: where they are kept, what replaces what, and where they are shown."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from curves import plot
from exported import model_file
from helpers import ENVIRONMENT, ROOT, sentences, train, write_rows

from lmplay.checkpoints.lock import Name, NameLock
from lmplay.errors import UserError
from lmplay.evaluate.command import run
from lmplay.stats.evaluations import add_evaluation, read_evaluations

SHORT = ["--dataset", "rows.jsonl", "--model", "mine.0.1", "--validation-interval", 5]


@pytest.fixture
def trained(tmp_path, monkeypatch, capsys):
    """A run with a dot in its name, stopped after some steps, and a set to judge it by."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1 + i % 3)} for i in range(60)])
    write_rows(tmp_path / "set.jsonl", [{"text": sentences(2, word)} for word in ("dog", "owl", "ant")])
    train(capsys, *SHORT, "--max-steps", 4, code=75)
    return tmp_path


def judge(*arguments, code=0) -> list[dict]:
    assert run([*map(str, arguments), "--device", "cpu"]) == code
    content = json.loads(Path("out_gpt/mine.0.1_eval.json").read_text())
    assert (content["format"], content["model"]) == (1, "mine.0.1")
    return content["evaluations"]


def test_evaluations_accumulate_and_the_same_one_replaces_itself(trained, capsys):
    assert len(judge("mine.0.1", "--set", "set.jsonl")) == 1
    first = judge("mine.0.1", "mine.0.1.best", "--set", "set.jsonl")
    assert [(one["state"], one["samples"]) for one in first] == [("latest", first[0]["samples"]), ("best", first[1]["samples"])]
    assert len(judge("mine.0.1", "--set", "set.jsonl", "--stride", 8)) == 3
    assert len(judge("mine.0.1", "--set", "other=set.jsonl")) == 4
    assert len(judge("out_gpt/mine.0.1.lmp", "--set", "set.jsonl")) == 4
    raw = judge("mine.0.1", "--set", "set.jsonl", "--raw")
    assert (len(raw), raw[-1]["state"]) == (5, "latest raw")
    train(capsys, *SHORT)  # to its end
    more = judge("mine.0.1", "--set", "set.jsonl")
    assert more[:5] == judge("mine.0.1", "--set", "rows.jsonl", "--no-record")[:5]
    assert (len(more), more[-1]["samples"] > more[0]["samples"]) == (6, True)


def test_a_state_of_a_stage_and_an_older_one_belong_to_the_run(trained, capsys):
    train(capsys, *SHORT)
    found = judge("mine.0.1", "mine.0.1.rows", "mine.0.1.prev-1", "--set", "set.jsonl")
    assert [one["state"] for one in found] == ["latest", "rows", "prev-1"]
    assert not list(Path("out_gpt").glob("*rows_eval.json"))


def test_a_new_run_of_the_same_name_begins_its_own(trained, capsys):
    judge("mine.0.1", "--set", "set.jsonl")
    train(capsys, *SHORT, "--max-steps", 2, "--reset-history", code=75)
    assert len(judge("mine.0.1", "--set", "other=set.jsonl")) == 1


def test_the_table_the_json_and_the_report_show_them(trained, capsys):
    judge("mine.0.1", "--set", "set.jsonl")
    loss = read_evaluations(Path("out_gpt"), "mine.0.1")[1][0]["figures"]["loss"]["value"]
    capsys.readouterr()
    pytest.importorskip("plotly")
    code, said, _ = plot(capsys, Path("out_gpt"), "--html", "report.html")
    table = said[said.index("documents"):].split("\n\n")[0].splitlines()
    assert code == 0
    assert "bits_per_byte" in table[0]
    assert table[1].split()[:2] == ["mine.0.1", "latest"]
    assert f"{loss:.4f}" in table[1]
    _, said, _ = plot(capsys, Path("out_gpt"), "--json")
    assert json.loads(said)[0]["evaluations"][0]["figures"]["loss"]["value"] == loss
    page = Path("report.html").read_text()
    assert "<h2>Evaluations</h2>" in page
    assert f"{loss:.4f}" in page


ADD = """
import sys
from pathlib import Path
from lmplay.evaluate.command import _record
from lmplay.evaluate.models import Place
from lmplay.evaluate.results import Result
place = Place(Path("."), "mine", "run", "latest", 10)
print(flush=True)
sys.stdin.readline()
for number in range(25):
    _record(place, Result("texts", f"{sys.argv[1]} {number}", "mine", "set.jsonl", {}, {"documents": 1}, ()))
"""


def test_figures_that_cannot_be_recorded_are_printed(trained, capsys, monkeypatch):
    def full(*_, **__):
        raise UserError("evaluations: cannot be written (No space left on device).")

    monkeypatch.setattr("lmplay.stats.evaluations.write_text", full)
    assert run(["mine.0.1", "mine.0.1.best", "--set", "set.jsonl", "--device", "cpu", "--json", "figures.json"]) == 2
    said = capsys.readouterr()
    assert "mine.0.1.best " in said.out
    assert len(json.loads(Path("figures.json").read_text())["evaluations"]) == 2
    assert said.err.count("No space left on device") == 1


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_judged(trained, capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    assert run(["mine.0.1", "--set", "set.jsonl", "--device", "cpu"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "lmp_eval: evaluations out_gpt/mine.0.1_eval.json: the folder is not writable; --no-record leaves the file out." in said.err
    assert run(["mine.0.1", "--set", "set.jsonl", "--device", "cpu", "--no-record"]) == 0


def test_a_model_of_that_name_may_be_trained_meanwhile(trained, capsys):
    with NameLock([Name(Path("out_gpt/mine.0.1_eval.lmp"), "a model", "is being trained by", "Wait.")]).held():
        assert len(judge("mine.0.1", "--set", "set.jsonl")) == 1


def test_several_programs_at_once_lose_nothing(tmp_path):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    programs = [subprocess.Popen([sys.executable, "-c", ADD, name], cwd=tmp_path, text=True, env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)}, **pipes)
                for name in ("one", "two", "three")]
    for program in programs:
        assert program.stdout is not None
        program.stdout.readline()  # all of them are ready
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    for program in programs:
        assert program.communicate(timeout=120)[1] == ""
    sets = [one["set"] for one in read_evaluations(tmp_path, "mine")[1]]
    assert sorted(sets) == sorted(f"{name} {number}" for name in ("one", "two", "three") for number in range(25))
    assert [path.name for path in tmp_path.iterdir()] == ["mine_eval.json"]


def test_a_damaged_file_is_named_and_kept(trained, capsys):
    path = Path("out_gpt/mine.0.1_eval.json")
    path.write_text('{"format": 1, "kind": "evalu')
    assert run(["mine.0.1", "--set", "set.jsonl", "--device", "cpu"]) == 2
    assert f"evaluations {path}: damaged" in capsys.readouterr().err
    assert path.read_text().endswith("evalu")
    code, said, complaint = plot(capsys, Path("out_gpt"), "--json")
    assert (code, "mine.0.1" in said) == (2, True)
    assert "mine.0.1_eval.json: damaged" in complaint
    assert run(["mine.0.1", "--set", "set.jsonl", "--device", "cpu", "--no-record"]) == 0


def test_weights_alone_and_exports_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "set.jsonl", [{"text": "a"}])
    model_file(tmp_path / "m.lmp", "gpt2ish")
    assert run(["./m.lmp", "--set", "set.jsonl", "--device", "cpu"]) == 0
    assert not list(tmp_path.glob("*_eval.json"))


def test_a_number_that_json_does_not_have_is_no_part_of_the_file(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        add_evaluation(tmp_path, "m", None, {"kind": "texts", "set": "a", "figures": {"loss": {"value": float("nan")}}})
    assert not list(tmp_path.iterdir())
