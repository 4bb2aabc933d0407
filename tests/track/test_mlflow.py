"""MLflow holds every step once, over kills and stops."""
from pathlib import Path

import pytest
from tracked import NAMES, SOURCE, expected, heard, written
from watched import NAME, check, interrupted

from lmplay.track.callback import samples_by_step


@pytest.mark.slow
def test_mlflow_over_a_kill_and_a_stop(watched_folder):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    interrupted("mlflow")
    client = MlflowClient(f"sqlite:///{watched_folder / 'out' / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("lmplay").experiment_id])
    found = {kind: {} for kind in ("train", "validation", "final_validation")}
    for key in run.data.metrics:
        kind, _, name = key.partition("/")
        found[kind][name] = sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key))
    check(*found.values())
    assert run.data.params["batch_size"] == "4"
    assert f"{NAME}_train_stats.png" in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}


def test_mlflow_holds_every_step_once(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    heard("mlflow", tmp_path)
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("lmplay").experiment_id])
    for kind, every in (("train", 1), ("validation", 5)):
        for name in NAMES:
            key = f"{kind}/{name if name != SOURCE else 'source/data/a_b _2_.jsonl/loss'}"
            found = sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key))
            assert found == expected(name, every)
    assert run.data.params["lr"] == "0.1"
    assert run.info.status == "FINISHED"
    [rewind] = run.data.tags["lmplay.rewinds"].splitlines()  # killed at 20, and gone on from 12; a stop is none
    assert "went on from step 12; steps 13 to 20 are of the attempt before" in rewind
    assert {artifact.path for artifact in client.list_artifacts(run.info.run_id)} == {"plan.json", "quickstart.png", "samples"}
    texts = {artifact.path for artifact in client.list_artifacts(run.info.run_id, "samples")}
    assert texts == {f"samples/step_{step:09}.txt" for step in range(5, 31, 5)}
    assert Path(client.download_artifacts(run.info.run_id, "samples/step_000000015.txt")).read_text() == samples_by_step(written(15))[15]
