"""Which state a run resumes from, and what is kept of the others."""
import os

from states import MODEL, content

from lmplay.checkpoints.format import write


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
    write(again / f"{MODEL}.lmp", {**content(), "format": 99})
    assert "format 99" in run(code=2)
