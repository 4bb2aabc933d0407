"""`--plot-schedule` against what runs do."""
import re
from pathlib import Path

import pytest
from helpers import TINY, load, main, sentences, train_plan, write_plan, write_rows

from lmplay.data.stage import StageData
from lmplay.plan.load import load_plan
from lmplay.preview.plot_schedule import courses_of
from lmplay.train.flags import parse

PARTS = [{"name": "linear", "from": 0, "steps": 3}, {"name": "cosine", "to": 0.1, "steps": "rest"}, {"name": "linear", "to": 0, "samples": "25%"}]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1)} for _ in range(40)])  # a piece each, all equally long
    monkeypatch.chdir(tmp_path)
    return tmp_path


def courses(folder, *flags):
    settings = parse([*flags, "--training-plan", str(folder / "plan.json"), "--tokenizer", "bytes", "--context-len", "48"])[0]
    return courses_of(settings, load_plan(folder / "plan.json"), print)[0]


def test_it_draws_what_a_run_does(folder, capsys):
    write_plan(folder, {"$defaults": {"lr": 0.01},
                        "steps": {"dataset": "rows.jsonl", "steps": 12, "lr_schedule": PARTS},
                        "samples": {"dataset": "rows.jsonl", "samples": 40, "warmup": 3, "lr_schedule": "inverse_sqrt", "weight_decay": 0.5},
                        "epochs": {"dataset": "rows.jsonl", "epochs": 1, "validation": 0, "lr_schedule": PARTS},
                        "tokens": {"dataset": "rows.jsonl", "tokens": 20 * 27 + 20, "lr_schedule": "wsd", "warmup": 0}})
    drawn = courses(folder, "--batch-size", "5")
    train_plan(capsys)
    stats = load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["step_stats"]
    for course in drawn:
        rates = stats[course.name]["train"]["rows"]["lr"]
        assert course.values["learning rate"] == pytest.approx(rates, rel=0.03, abs=1e-4), course.name
    assert [course.length for course in drawn[:3]] == [60, 40, 40]
    assert [course.values["batch size (pieces)"][0] for course in drawn] == [5, 5, 5, 5]
    assert [course.values["weight decay"][0] for course in drawn] == [0.01, 0.5, 0.01, 0.01]


def test_it_draws_sizes_as_a_run_has_them(folder, capsys):
    size = [{"name": "linear", "from": 1, "to": 5, "steps": "50%"}, {"name": "constant", "steps": "rest"}]
    context = [{"name": "constant", "from": 20, "steps": "50%"}, {"name": "constant", "from": 48, "steps": "rest"}]
    write_plan(folder, {"$model": {"context_len": 48}, "steps": {"dataset": "rows.jsonl", "steps": 20, "batch_size": size, "context_len": context},
                        "samples": {"dataset": "rows.jsonl", "samples": 60, "batch_size": size}})
    at = TINY.index("--context-len")
    flags = [*TINY[:at], *TINY[at + 2:]]
    settings = parse([*flags, "--training-plan", str(folder / "plan.json")])[0]
    steps, samples = courses_of(settings, load_plan(folder / "plan.json"), print)[0]
    main([*flags, "--training-plan", "plan.json", "--validation-interval", "0"])
    capsys.readouterr()
    stats = load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["step_stats"]
    assert [round(value) for value in steps.values["batch size (pieces)"]] == [round(1 + 4 * min(1, step / 10)) for step in range(20)]
    assert steps.values["context (tokens)"] == [20] * 10 + [48] * 10
    assert steps.length == pytest.approx(stats["steps"]["total_train_samples"], rel=0.1)
    assert len(samples.samples) == pytest.approx(stats["samples"]["total_train_steps"], rel=0.1)
    assert samples.length == 60


def test_a_picture_with_all_stages_and_nothing_else(folder, capsys):
    write_plan(folder, {"early": {"dataset": "rows.jsonl", "samples": 9, "lr_schedule": PARTS}, "late": {"dataset": "builtin:tales", "steps": 5000}})
    said = train_plan(capsys, "--plot-schedule", "picture.svg")
    assert "picture.svg: 2 stages; a sample is taken to have as many as the first 200 on average: early 1.00 pieces and" in said
    svg = (folder / "picture.svg").read_text()
    drawn = ("early", "late", "samples", "learning rate", "batch size (pieces)", "context (tokens)", "weight decay")
    assert all(re.search(f"<!-- {re.escape(word)} -->", svg) for word in drawn)
    assert {path.name for path in folder.iterdir()} <= {"plan.json", "rows.jsonl", "picture.svg", "out_gpt"}
    assert not list(folder.glob("out_gpt/*.lmp"))
    train_plan(capsys, "--plot-schedule", "picture.png")
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_stage_of_unknown_length(folder, capsys, monkeypatch):
    monkeypatch.setattr(StageData, "length_is_known", False)
    write_plan(folder, {"one": {"dataset": "rows.jsonl", "epochs": 1, "lr": 1.0}, "two": {"dataset": "rows.jsonl", "samples": 9, "warmup": 0}})
    one, _ = courses(folder)
    assert one.length is None
    assert one.values["learning rate"][:41] == pytest.approx([0.1 + 0.9 * step / 40 for step in range(41)])
    train_plan(capsys, "--plot-schedule", "picture.svg")
    assert "the samples of one are not known" in (folder / "picture.svg").read_text()


@pytest.mark.parametrize(("flags", "words"), [
    (["--plot-schedule", "picture.txt"], "a file that ends in .png, .svg or .pdf"),
    (["--plot-schedule", "nowhere/picture.png"], "picture nowhere/picture.png: cannot be written"),
    (["--plot-schedule", "picture.png", "--describe"], "--describe and --plot-schedule together")])
def test_what_cannot_be_drawn_is_refused(folder, capsys, flags, words):
    write_plan(folder, {"one": {"dataset": "rows.jsonl", "steps": 2}})
    assert words in train_plan(capsys, *flags, code=2)
