"""The table of runs, for people and for programs."""
import json

import pytest
from curves import make_run, pictures, plot

from lmplay.plotstats.runs import read_curve


def test_settings_that_differ_and_the_table_for_programs(tmp_path, capsys, unpainted):
    for index, model in enumerate(["one", "two", "bare"]):
        make_run(tmp_path, model=model, rows=8, stop=2000 + 500 * index, by_stage=False)
    for model, rate in (("one", 0.1), ("two", 0.2)):
        (tmp_path / f"{model}_settings.json").write_text(json.dumps({
            "lr": rate, "seed": 0, "model": f"out/{model}.lmp", "model_args": {"embed_dim": 8 + len(model)}, "given": [model],
            "plan": {"stages": [{"name": "a", "samples": 5, "dataset": [{"path": f"{model}.txt"}]}, {"name": "b", "tokens": 7}][:1 + (model == "two")]}}))
    (tmp_path / "bare_settings.json").write_text("{")
    code, output, _ = plot(capsys, tmp_path, "--json")
    assert code == 0
    runs = {run["model"]: run for run in json.loads(output)}
    assert pictures(tmp_path) == set()
    assert runs["one"]["settings"] == {"a.lr": 0.1, "b.lr": None, "a.dataset": [{"path": "one.txt"}], "b.tokens": None}
    assert runs["two"]["settings"] == {"a.lr": 0.2, "b.lr": 0.2, "a.dataset": [{"path": "two.txt"}], "b.tokens": 7}
    assert set(runs["bare"]["settings"].values()) == {None}
    train = read_curve(tmp_path / "two_train_stats.json")
    assert (runs["two"]["samples"], runs["two"]["train_loss"]) == (train.last("samples"), train.last("loss"))
    assert runs["two"]["tokens_per_second"] == pytest.approx(1000.0)
    assert [runs[model]["running"] for model in ("one", "two", "bare")] == [False, True, True]
    _, output, _ = plot(capsys, tmp_path, "--x", "samples", "--models", "one", "two")
    assert ["a.lr", "0.1", "0.2"] in [line.split() for line in output.splitlines()]
    assert "seed" not in output
