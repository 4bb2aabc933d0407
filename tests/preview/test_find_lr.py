"""`--find-lr`: the search and its suggestion against losses that are known, and short runs of a real model that leave nothing behind."""
import itertools
import math
import os
import re
import signal
from pathlib import Path

import pytest
from helpers import sentences, train, train_plan, write_plan, write_rows
from hypothesis import given
from hypothesis import strategies as st

from lmplay.preview import find_lr
from lmplay.preview.find_lr import ShortRun, search, suggest, table


def bowl(best, limit=math.inf):
    """A loss that is lowest at a learning rate, by the square of the distance in powers of 2, and diverges above a limit."""
    return lambda lr: ShortRun(lr, [5.0] * 12 if lr > limit else [5 - 4 / (1 + 0.1 * math.log2(lr / best) ** 2)] * 12, lr > limit)


@given(st.floats(-6, 6), st.floats(1e-5, 1e-1))
def test_the_suggestion_is_near_the_best_wherever_the_search_begins(away, best):
    runs = search(bowl(best), best * 2 ** away)
    assert [one.lr for one in runs] == sorted({one.lr for one in runs})
    assert suggest(runs) == pytest.approx(best, rel=0.15)


@given(st.floats(0, 5), st.floats(-2, 6))
def test_what_diverges_is_not_suggested(limit, away):
    runs = search(bowl(1.0, 2 ** limit), 2 ** away)
    assert suggest(runs) <= 2 ** limit
    assert sum(one.diverged for one in runs) <= 3 + max(0, away - limit)


def test_where_all_diverge_nothing_is_suggested():
    runs = search(bowl(1.0, 0.0), 1.0)
    assert suggest(runs) is None
    assert "all of them diverged" in table(runs, None, 1.0, "what", Path("a.png"))
    assert len(runs) <= 10


def test_the_end_of_the_grid_is_told():
    runs = search(lambda lr: ShortRun(lr, [1 / lr] * 12), 1.0)
    assert runs[-1].lr == suggest(runs) == 2 ** 8
    assert "at the end of what was tried" in table(runs, suggest(runs), 1.0, "what", Path("a.png"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(40)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_short_runs_find_a_better_rate_and_leave_nothing_behind(folder, capsys):
    write_plan(folder, {"one": {"dataset": "rows.jsonl", "samples": 80}})
    said = train_plan(capsys, "--find-lr", "lr.png", "--lr", 1e-3, "--seed", 3)
    rows = {float(lr): float(loss) for lr, loss in re.findall(r"^ +([\d.e-]+) +(\d\.\d{4})", said, re.M)}
    assert len(rows) >= 5
    assert 1e-3 in rows
    best = min(rows, key=rows.get)
    suggested = float(re.search(r"suggested: --lr ([\d.e-]+)\.", said).group(1))
    assert best / 2 <= suggested <= best * 2
    assert rows[best] < rows[1e-3] or best == 1e-3
    assert "gpt2ish with adamw, batch 5" in said
    assert (folder / "lr.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in folder.iterdir()} <= {"plan.json", "rows.jsonl", "lr.png", "out_gpt"}
    assert not [path for path in folder.glob("out_gpt/**/*") if path.is_file()]
    again = train_plan(capsys, "--find-lr", "lr.svg", "--lr", 2e-3, "--seed", 3)
    others = {float(lr): float(loss) for lr, loss in re.findall(r"^ +([\d.e-]+) +(\d\.\d{4})", again, re.M)}
    common = rows.keys() & others.keys()
    assert len(common) >= 3
    assert [rows[lr] for lr in common] == [others[lr] for lr in common]


def test_every_try_begins_with_the_same_scale_of_gradients(folder, capsys, monkeypatch):
    write_plan(folder, {"one": {"dataset": "rows.jsonl", "samples": 80}})
    train_it, scales = find_lr._train, []

    def note(model, *others):
        scales.append(model.runtime.scaler.get_scale())
        return train_it(model, *others)

    monkeypatch.setattr(find_lr, "_train", note)
    monkeypatch.setattr(find_lr, "_MOST_AWAY", 1)
    train_plan(capsys, "--find-lr", "lr.png", "--amp", "float16", "--amp-init-scale", 2.0 ** 40)
    assert scales == [2.0 ** 40] * 3


def test_a_rate_that_diverges_ends_its_run(folder, capsys):
    write_plan(folder, {"one": {"dataset": "rows.jsonl", "samples": 80, "optimizer": "sgd"}})
    said = train_plan(capsys, "--find-lr", "lr.png", "--lr", 1000)
    steps = [int(number) for number in re.findall(r"lr [\d.e+]+: diverged after (\d+) steps", said)]
    assert steps
    assert min(steps) < 15


def test_a_stop_in_the_middle_leaves_nothing(folder, capsys, monkeypatch):
    original, count = find_lr.train_step, itertools.count(1)

    def step_and_signal(*arguments):
        if next(count) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(find_lr, "train_step", step_and_signal)
    write_plan(folder, {"one": {"dataset": "rows.jsonl", "samples": 80}})
    train_plan(capsys, "--find-lr", "lr.png", code=130)
    assert {path.name for path in folder.iterdir()} <= {"plan.json", "rows.jsonl", "out_gpt"}
    assert not [path for path in folder.glob("out_gpt/**/*") if path.is_file()]


@pytest.mark.parametrize(("flags", "words"), [
    (["--find-lr", "lr.txt"], "--find-lr lr.txt: allowed is a file that ends in .png, .svg or .pdf"),
    (["--find-lr", "lr.png", "--batch-size", 50], "--find-lr: stage 'one' has 3 batches, and a short run needs 12; give a smaller --batch-size, or more text."),
    (["--find-lr", "lr.png", "--describe"], "--describe and --find-lr together"),
    (["--find-lr", "rows.jsonl/lr.png"], "folder of --find-lr"),
    (["--find-lr", "lr.png", "--optimizer", "adamv"], "--optimizer adamv")])
def test_what_cannot_be_tried_is_refused_in_a_line(folder, capsys, flags, words):
    write_plan(folder, {"one": {"dataset": "rows.jsonl", "samples": 36}})
    said = train(capsys, "--training-plan", "plan.json", *flags, code=2)
    assert words in said
    assert said.count("lmp_trainer: ") == 1
