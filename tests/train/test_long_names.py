"""Names that are longer than a file system takes are bad input, wherever they are given."""
import pytest

from lmplay.generate.__main__ import main as generate
from lmplay.plotstats.__main__ import main as plotstats
from lmplay.train.__main__ import main as train

LONG = "y" * 300
DATA = ["--dataset", "builtin:tales", "--tokenizer", "bytes"]


@pytest.mark.parametrize(("program", "arguments"), [
    (train, [*DATA, "--model", LONG]), (train, [*DATA, "--model", LONG, "--check-plan"]), (train, [*DATA, "--out-dir", LONG]),
    (train, ["--dataset", f"{LONG}/", "--tokenizer", "bytes"]), (train, [*DATA, "--initial-model", LONG]), (train, ["--inspect", LONG]),
    (train, ["--dataset", "builtin:tales", "--tokenizer", LONG]), (train, ["--training-plan", f"{LONG}.json"]),
    (generate, ["--model", LONG, "--prompt", "x"]), (generate, ["--prompts", LONG]), (plotstats, ["--out-dir", LONG])])
def test_a_name_that_is_too_long_is_refused_in_a_line(tmp_path, monkeypatch, capsys, program, arguments):
    monkeypatch.chdir(tmp_path)
    assert program(arguments) == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert "Traceback" not in said
    assert not list(tmp_path.rglob(".*"))
