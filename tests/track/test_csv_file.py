"""The CSV files: every step once, over kills and stops."""
import csv

import pytest
from tracked import NAMES, SOURCE, expected, figures, heard, info, phase
from watched import NAME, check, interrupted, train

from lmplay.track.opening import open_callbacks


@pytest.mark.parametrize("late", [False, True])
def test_csv_over_a_kill_and_a_stop(watched_folder, late):
    if late:  # asked for when the run has done more than a stage
        train("--max-steps", 14, code=75)
        train("--track", "csv")
    else:
        interrupted("csv", apart=False)
    with open(f"out/{NAME}_train.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    with open(f"out/{NAME}_validate.csv", newline="") as file:
        validations = list(csv.DictReader(file))

    def read(rows):
        return {name: [(int(row["step"]), float(row[name])) for row in rows if row[name]] for name in rows[0]}

    check(read(rows), *(read([row for row in validations if row["final"] == final]) for final in "01"))


def test_csv_holds_every_step_once(tmp_path):
    heard("csv", tmp_path)
    for kind, every in (("train", 1), ("validate", 5)):
        with open(tmp_path / f"model_{kind}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        for name in NAMES:
            assert [(int(row["step"]), float(row[name])) for row in rows if row[name]] == expected(name, every)
    open_callbacks("csv", None, print).members["csv"]._tracker.start(info(tmp_path, 0))  # a run that starts over
    assert not list(tmp_path.glob("*.csv"))


def test_a_csv_file_gets_the_columns_that_it_lacks(tmp_path):
    begun = "step,gone,loss\n" + "".join(f"{step},7,{step / 2}\n" for step in range(1, 16)) + "16,7,8."  # by an older version, and killed
    (tmp_path / "model_train.csv").write_text(begun)
    phase("csv", tmp_path, 12, 30, "done")
    with open(tmp_path / "model_train.csv", newline="") as file:
        header, *rows = list(csv.reader(file))
    assert header == ["step", "gone", "loss", "samples", "accuracy", SOURCE]
    assert rows[:12] == [[str(step), "7", str(step / 2), "", "", ""] for step in range(1, 13)]
    for step, row in enumerate(rows[12:], 13):
        assert row == ["" if value is None else str(value) for value in (figures(step).get(name) for name in header)]
