"""What a run is called in trackers: flags first, then the tracker's own variables, then lmplay."""
import json

import pytest
from tracked import PICTURE, figures, info

from lmplay.track.callback import Naming
from lmplay.track.opening import open_callbacks

NAMING = Naming("mine", "first try", ("small", "kind=test"))


def hear(name, folder, naming):
    """A run of two steps, with a picture at its end."""
    said = []
    trackers = open_callbacks(name, None, said.append, naming)
    trackers.start(info(folder, 0))
    for step in (1, 2):
        trackers.train(figures(step))
    trackers.end("done", [PICTURE])
    assert not said


@pytest.mark.parametrize(("naming", "environment", "expected"), [
    (NAMING, {"MLFLOW_EXPERIMENT_NAME": "theirs", "MLFLOW_TAGS": '{"a": 1}'}, ("mine", "first try", {"small": "", "kind": "test"})),
    (Naming(), {"MLFLOW_EXPERIMENT_NAME": "theirs", "MLFLOW_TAGS": '{"a": 1}'}, ("theirs", "model", {"a": "1"})),
    (Naming(), {}, ("lmplay", "model", {}))])
def test_mlflow(tmp_path, monkeypatch, naming, environment, expected):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    for variable in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_TAGS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    hear("mlflow", tmp_path, naming)
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    project, name, tags = expected
    [run] = client.search_runs([client.get_experiment_by_name(project).experiment_id])
    assert run.info.run_name == name
    assert {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")} == {**tags, "lmplay": "abc123"}
    assert [artifact.path for artifact in client.list_artifacts(run.info.run_id, "plots/step_000000002")] == ["plots/step_000000002/quickstart.png"]


@pytest.mark.slow
@pytest.mark.parametrize(("naming", "environment", "expected"), [
    (NAMING, {"WANDB_PROJECT": "theirs", "WANDB_NAME": "their run", "WANDB_TAGS": "a,b"}, ("mine", "first try", ["small", "kind=test"])),
    (Naming(), {"WANDB_PROJECT": "theirs", "WANDB_NAME": "their run", "WANDB_TAGS": "a,b"}, ("theirs", "their run", ["a", "b"])),
    (Naming(), {}, ("lmplay", "model", []))])
def test_wandb(tmp_path, monkeypatch, naming, environment, expected):
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb_file import log_records, wandb_history

    for variable in ("WANDB_PROJECT", "WANDB_NAME", "WANDB_TAGS"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in {**environment, "WANDB_MODE": "offline"}.items():
        monkeypatch.setenv(variable, value)
    hear("wandb", tmp_path, naming)
    [path] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    run = next(record.run for record in map(Record.FromString, log_records(path.read_bytes())) if record.WhichOneof("record_type") == "run")
    assert (run.project, run.display_name, list(run.tags)) == expected
    history = wandb_history(tmp_path)
    picture = next(key for key in history if key.startswith("plots/quickstart"))
    assert [step for step, _ in history[picture]] == [2]  # where the newest scalars are
    assert [step for step, _ in history["train/loss"]] == [1, 2]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    hear("tensorboard", tmp_path, NAMING)
    [folder] = (tmp_path / "tensorboard").iterdir()
    assert folder.name == "first try-abc123"
    read = EventAccumulator(str(folder))
    read.Reload()
    assert [image.step for image in read.Images("quickstart")] == [2]
    assert b"small, kind=test" in read.Tensors("tags")[0].tensor_proto.string_val[0]
    assert json.loads(read.Tensors("settings")[0].tensor_proto.string_val[0]) == {"lr": 0.1, "exp": "gpt2ish"}
