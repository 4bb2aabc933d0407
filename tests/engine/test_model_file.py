"""Where a model file without a folder lies, and who finds it by its name."""
from pathlib import Path

import pytest
from helpers import ROOT, load, sentences, train, write_rows

from lmplay.generate.__main__ import main as generate
from lmplay.plotstats.__main__ import main as plot


@pytest.fixture
def rows(tmp_path, monkeypatch):
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2)} for _ in range(12)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)


def begin(capsys, *arguments):
    return train(capsys, "--dataset", "rows.jsonl", "--max-steps", "1", *arguments, code=75)


@pytest.mark.parametrize("name", ["idea", "idea.lmp"])
def test_a_name_without_a_folder_lies_in_the_output_folder_and_is_found_by_name(rows, capsys, name):
    begin(capsys, "--model", name, "--out-dir", "out")
    assert Path("out/idea.lmp").exists()
    assert not Path("idea.lmp").exists()
    assert generate(["--model", name, "--out-dir", "out", "--prompt", "The", "--max-tokens", "2"]) == 0
    assert plot(["--out-dir", "out", "--models", name, "--json"]) == 0
    assert plot(["--out-dir", "out", "--models", f"out/{name}", "--json"]) == 0
    begin(capsys, "--initial-model", "idea.lmp", "--model", "next", "--out-dir", "out")
    begin(capsys, "--resume", "idea.lmp", "--model", "third", "--out-dir", "out")
    assert "idea" in train(capsys, "--inspect", "idea.lmp", "--out-dir", "out")
    assert sorted(Path().glob("*.lmp")) == []


def test_a_file_of_an_older_run_in_the_current_folder_is_found_and_said(rows, capsys):
    begin(capsys, "--model", "./idea.lmp")
    assert load(Path("idea.lmp"))["runner"]["state"]["stats"]["total_train_steps"] == 1
    said = begin(capsys, "--model", "idea.lmp")
    assert "idea.lmp is in the current folder" in said
    assert load(Path("idea.lmp"))["runner"]["state"]["stats"]["total_train_steps"] == 2
    assert not Path("out_gpt/idea.lmp").exists()
    assert generate(["--model", "idea", "--prompt", "The", "--max-tokens", "2"]) == 0
    begin(capsys, "--model", "./other.lmp")
    assert Path("other.lmp").exists()


def test_weights_alone_lie_there_too(rows, capsys):
    train(capsys, "--dataset", "rows.jsonl", "--model", "idea", "--save-weights-only", "weights.lmp")
    assert Path("out_gpt/weights.lmp").exists()


def test_a_name_that_is_not_there_is_refused_with_the_nearest(rows, capsys):
    begin(capsys, "--model", "idea")
    assert generate(["--model", "idaa", "--prompt", "The"]) == 2
    assert "Did you mean 'idea.lmp'?" in capsys.readouterr().err


def test_the_output_folder_of_the_checkout_says_what_it_is_for():
    text = (ROOT / "out_gpt" / "README.md").read_text()
    assert "NAME.lmp" in text
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert ignored.index("out_gpt/*") < ignored.index("!out_gpt/README.md")
