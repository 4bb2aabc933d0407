"""One number is called validation loss: what is said, the statistics, the table, the trackers and the best state agree."""
import csv
import json
import re
from pathlib import Path

import pytest
from helpers import load, train, write_plan
from plotstats_table import table_of

STATS = Path("out_gpt/gpt2ish_model_validate_stats.json")


@pytest.fixture
def run(corpus, capsys):
    """A run of two stages; gives what was said."""
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "epochs": 3}, "two": {"dataset": "builtin:tales/1", "samples": 40}})
    return train(capsys, "--training-plan", "plan.json", "--validation-interval", 15, "--track", "csv")


def test_final_and_best_are_the_same_everywhere(run, capsys):
    content = json.loads(STATS.read_text())
    final, best, columns = content["final"], content["best"], content["columns"]
    second = [loss for loss, samples in zip(columns["loss"], columns["samples"], strict=True) if samples > content["stages"][0]["to_samples"]]
    assert len(second) >= 2
    assert final["loss"] == columns["loss"][-1] == second[-1]
    assert best["loss"] == min(second)
    assert final["floor"] == best["floor"] == pytest.approx(content["stages"][1]["floor_nats_per_token"])
    assert f"final validation loss {final['loss']:.3f} ± {final['standard_error']:.3f} nats" in run
    assert f"best validation loss {best['loss']:.3f} ± {best['standard_error']:.3f} nats" in run
    [row] = table_of(capsys, "out_gpt")
    assert (row["validation_loss"], row["best_validation_loss"]) == (final["loss"], best["loss"])
    assert row["standard_error"] == pytest.approx(final["standard_error"])
    with open("out_gpt/gpt2ish_model_validate.csv", encoding="utf-8") as file:
        tracked = list(csv.DictReader(file))
    assert float([row for row in tracked if row["final"] == "1"][-1]["loss"]) == final["loss"]
    state = load(Path("out_gpt/gpt2ish_model.best.lmp"))
    assert state["runner"]["state"]["stats"]["best"]["loss"] == best["loss"]
    assert state["curriculum"]["state"]["stages"][1]["lowest_loss"] == best["loss"]


def test_the_end_of_a_stage_judges_the_same_samples_and_more(run):
    judged = json.loads(STATS.read_text())["judged"]
    regular, more = judged["validation"], judged["held_out"]
    assert more["identity"][:regular["n_samples"]] == regular["identity"]
    assert len(more["identity"]) > len(regular["identity"])
    loss = sum(more["loss_sum"][:regular["n_samples"]]) / sum(more["tokens"][:regular["n_samples"]])
    assert loss == pytest.approx(regular["loss"], rel=1e-5)
    assert re.search(rf"held out +{more['n_samples']} +{more['n_tokens']:,} +{more['loss']:.4f} +{more['standard_error']:.4f}", run)
