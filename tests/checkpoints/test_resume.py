"""Which state a run continues from: the newest whole one, the best, or an earlier one."""
import os
import signal
from pathlib import Path

from helpers import load, total, train_plan
from states import MODEL, content

from lmplay.checkpoints.format import write
from lmplay.engine import loop


def test_resume_best_and_a_file(two_stages, capsys):
    flags = ["--validation-interval", 10, "--save-interval", 10]
    train_plan(capsys, *flags, "--max-steps", 8, code=75)
    newest = Path("out_gpt/gpt2ish_model.lmp").read_bytes()
    best = load(Path("out_gpt/gpt2ish_model.best.lmp"))
    at = best["runner"]["state"]["stats"]["total_train_samples"]
    text = train_plan(capsys, *flags, "--resume", "best", "--max-steps", 1, code=75)
    assert f"resumed     at {at:,} samples" in text
    assert "gpt2ish_model.old-1.lmp" in text
    assert Path("out_gpt/gpt2ish_model.old-1.lmp").read_bytes() == newest
    assert "--resume" not in text.splitlines()[-1]
    assert at < total() <= at + 10
    text = train_plan(capsys, *flags, "--resume", "out_gpt/gpt2ish_model.old-1.lmp")
    assert "gpt2ish_model.old-2.lmp" in text
    assert "plan complete" in text
    assert Path("out_gpt/gpt2ish_model.old-1.lmp").read_bytes() == newest
    assert "no file" in train_plan(capsys, "--resume", "missing.lmp", code=2)
    assert "give one of them" in train_plan(capsys, "--resume", "best", "--reset-history", code=2)


def test_a_damaged_file_to_go_back_to_is_not_the_end(two_stages, capsys):
    flags = ["--save-interval", 10, "--validation-interval", 10]
    train_plan(capsys, *flags, "--max-steps", 8, code=75)
    best = Path("out_gpt/gpt2ish_model.best.lmp")
    content = best.read_bytes()
    best.write_bytes(content[:-5])
    assert "without --resume" in train_plan(capsys, *flags, "--resume", "best", code=2)
    best.write_bytes(content)
    for path in Path("out_gpt").glob("*.lmp"):
        if path != best:
            os.truncate(path, 1000)
    assert "--resume best" in train_plan(capsys, *flags, code=2)
    assert "plan complete" in train_plan(capsys, *flags, "--resume", "best")


def test_going_back_to_a_stage_keeps_the_later_ones(two_stages, capsys):
    train_plan(capsys)
    two = Path("out_gpt/gpt2ish_model.two.lmp").read_bytes()
    text = train_plan(capsys, "--resume", "out_gpt/gpt2ish_model.one.lmp", "--lr", "0.1")
    assert "stage 2/2   two (to do)" in text
    assert Path("out_gpt/gpt2ish_model.old-1.two.lmp").read_bytes() == two
    assert Path("out_gpt/gpt2ish_model.two.lmp").read_bytes() != two


def test_an_earlier_state_is_the_newest_at_once(two_stages, capsys, monkeypatch):
    """Killed before its first save, a run that went back must not go on from what it left."""
    train_plan(capsys, "--save-interval", 10, "--validation-interval", 10, "--max-samples-this-run", 40, code=75)
    folder = Path("out_gpt")
    before = {path.name: path.read_bytes() for path in folder.glob("*.lmp")}
    assert {"gpt2ish_model.prev-1.lmp", "gpt2ish_model.prev-2.lmp", "gpt2ish_model.best.lmp"} <= before.keys()
    monkeypatch.setattr(loop, "StageRunner", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    text = train_plan(capsys, "--resume", "best", code=130)
    assert "continues from" in text
    after = {path.name: path.read_bytes() for path in folder.glob("*.lmp")}
    assert after["gpt2ish_model.lmp"] == before["gpt2ish_model.best.lmp"] != before["gpt2ish_model.lmp"]
    assert {name.replace("gpt2ish_model", "gpt2ish_model.old-1"): content for name, content in before.items()}.items() <= after.items()
    assert not [name for name in after if name.startswith("gpt2ish_model.prev-")]  # a damaged file must not lead back to them


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
