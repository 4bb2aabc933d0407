"""When a stage is validated and saved, and what its start says of it."""
import itertools
import re
from pathlib import Path

import pytest
import torch
from helpers import compare_runs, load, sentences, stop_at, train_plan, write_plan, write_rows


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Few long rows, and many short ones."""
    write_rows(tmp_path / "long.jsonl", [{"text": sentences(30)} for _ in range(30)])
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1)} for _ in range(400)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def validations(folder="out_gpt"):
    """Give the samples at which the run was validated (the validation that ends a stage is the regular one, if that is due), how often, the tokens of each
    row, and the tokens trained on since the one before."""
    stats = load(Path(folder) / "gpt2ish_model.lmp")["runner"]["state"]["stats"]
    rows = stats["validate"]["rows"]
    return rows["samples"], stats["total_validations"], rows["n_tokens"], [after - before for before, after in itertools.pairwise([0, *rows["tokens"]])]


def test_a_stage_of_few_samples_is_validated_ten_times(book, capsys):
    write_plan(book, {"one": {"dataset": "rows.jsonl", "samples": 300}})
    text = train_plan(capsys)
    at, count, tokens, trained = validations()
    assert (at, count) == ([30 * number for number in range(1, 11)], 10)
    assert all(before >= cost / 3 / 0.05 for cost, before in zip(tokens[:-1], trained[:-1], strict=True))
    assert "validated every 100 samples or tenth of the stage (about 10 times); at most 5% of the work, and at the end of the stage" in text
    assert "saved every 10,000 samples or 5 minutes; at most 2% of the time, and at the end of the stage" in text


def test_validations_of_long_rows_take_no_more_than_their_share(book, capsys):
    write_plan(book, {"one": {"dataset": "long.jsonl", "validation": {"samples": 1}}})
    text = train_plan(capsys, "--batch-size", 20)
    _, count, tokens, trained = validations()
    assert 2 <= count - 1 <= 5
    assert sum(tokens[:-1]) / 3 <= 0.05 * sum(trained)
    assert re.search(r"\(about [2345] times\); at most 5% of the work", text)


def test_a_run_that_is_stopped_validates_where_one_that_was_not_does(book, capsys, monkeypatch):
    write_plan(book, {"one": {"dataset": "rows.jsonl", "samples": 120}, "two": {"dataset": "rows.jsonl", "tokens": 3000}})
    train_plan(capsys, "--out-dir", "whole")
    stop_at(monkeypatch, [4, 11, 24])
    for _ in range(3):
        train_plan(capsys, "--out-dir", "stopped", code=130)
    train_plan(capsys, "--out-dir", "stopped")
    assert validations(folder="whole")[1] > 6
    assert compare_runs(book / "whole", book / "stopped") == []


@pytest.mark.parametrize(("interval", "at"), [("20", [20, 40, 60]), ("4steps", [20, 40, 60]), ("0.02k", [20, 40, 60]), ("1ksamples", [])])
def test_a_typed_interval_is_taken_as_it_is(book, capsys, interval, at):
    write_plan(book, {"one": {"dataset": "rows.jsonl", "samples": 60}})
    train_plan(capsys, "--validation-interval", interval)
    assert validations()[:2] == (at or [60], len(at or [60]))


def test_an_interval_in_tokens(book, capsys):
    write_plan(book, {"one": {"dataset": "rows.jsonl", "tokens": 5000}})
    assert "validated every 1,000 tokens (about 5 times), and at the end of the stage" in train_plan(capsys, "--validation-interval", "1ktokens")
    rows = load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["validate"]["rows"]["tokens"]
    assert [tokens // 1000 for tokens in rows] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("stage", "flags", "warning"), [
    ({}, ["--validation-interval", 61], "stage 'one' is validated at its end only: --validation-interval 61 is longer than it."),
    ({}, ["--validation-interval", "500steps"], "stage 'one' is validated at its end only: --validation-interval 500steps is longer than it."),
    ({"samples": None, "steps": 8}, ["--validation-interval", "100samples"],
     "stage 'one' is validated at its end only: --validation-interval 100 is longer than it."),
    ({"early_stopping": {"patience": 2}}, ["--validation-interval", 25],
     "early_stopping cannot end stage 'one': it is validated about 2 times before its end, and patience is 2."),
    ({"early_stopping": {"patience": 2}}, ["--validation-interval", 20], None),
    ({}, ["--save-interval", "1k"], "stage 'one' is saved at its end only: --save-interval 1000 is longer than it."),
    ({"samples": 15}, [], "stage 'one' is validated at its end only: the work of one would be more than 5% of its own."),
    ({"early_stopping": {"patience": 2}}, ["--validation-interval", 0],
     "early_stopping cannot end stage 'one', which is not validated before its end: --validation-interval 0."),
    ({"early_stopping": {"patience": 2}, "validation": {"dataset": "empty.jsonl"}}, [],
     "early_stopping cannot end stage 'one', which is not validated before its end: no rows are held out."),
    ({}, ["--validation-interval", 0, "--save-interval", 0], None), ({"validation": 0}, [], None), ({}, [], None)])
def test_the_start_warns_of_what_never_comes(book, capsys, stage, flags, warning):
    write_rows(book / "empty.jsonl", [{"text": None}])
    keys = {"dataset": "rows.jsonl", "samples": 60, **stage}
    write_plan(book, {"one": {key: value for key, value in keys.items() if value is not None}})
    lines = train_plan(capsys, "--quiet", *flags).splitlines()
    said = [line.removeprefix("WARNING: ") for line in lines if line.startswith("WARNING") and "warm-up" not in line]
    assert said[-1:] == ([warning] if warning else [])  # the data may have been warned of before


def test_a_stage_that_began_with_an_older_version_goes_on(book, capsys):
    write_plan(book, {"one": {"dataset": "rows.jsonl", "samples": 300}})
    train_plan(capsys, "--max-steps", 13, code=75)
    path = Path("out_gpt/gpt2ish_model.lmp")
    content = load(path)
    for state in content["curriculum"]["state"]["stages"]:
        del state["validated"]
    content["runner"]["state_args"]["settings"].update(validation_interval=100, save_interval=10000)
    content.pop("checksum", None)
    torch.save(content, "old.lmp")
    text = train_plan(capsys, "--resume", "old.lmp")
    assert "--validation-interval 100 -> auto" in text
    assert "--save-interval 10000 -> auto" in text
    assert validations()[0][:4] == [30, 60, 95, 125]  # it takes the checkpoint for the last validation
