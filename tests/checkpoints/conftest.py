"""A run of two stages, finished, to be damaged, or to be started."""
import shutil

import pytest
from helpers import TINY, sentences, write_plan, write_rows

from lmplay.train.__main__ import main


@pytest.fixture(scope="session")
def arguments(tmp_path_factory):
    """The command line of a run of two stages, all but its output folder."""
    folder = tmp_path_factory.mktemp("plan")
    write_rows(folder / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(30)])
    plan = write_plan(folder, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl", "lr": 0.01}})
    return [*TINY, "--batch-size", "5", "--dropout", "0.1", "--training-plan", str(plan), "--save-interval", "10", "--validation-interval", "9"]


@pytest.fixture(scope="session")
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
