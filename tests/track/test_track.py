"""Trackers: what they hold is what they were told, over interruptions, and they never stop training."""
import csv
import glob
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import ROOT
from wandb_file import wandb_history

from lmplay.errors import UserError
from lmplay.track.background import Background
from lmplay.track.callback import Callback, RunInfo, samples_by_step
from lmplay.track.opening import open_callbacks

SOURCE = "source//data/a,b (2).jsonl/loss"
NAMES = ("loss", "accuracy", "samples", SOURCE)
PICTURE = ROOT / "docs" / "quickstart.png"


def figures(step: int) -> dict:
    """Of a step; a second source comes in at step 12, when the first checkpoint has been written."""
    of_source = {SOURCE: step / 7} if step > 12 else {}
    return {"step": step, "samples": 4 * step, "loss": 1 / 3 + step, "accuracy": None if step % 2 else 0.1 * step, **of_source}


def written(step: int) -> list[dict]:
    return [{"step": step, "samples": 4 * step, "stage": "a", "prompt": prompt, "text": f"{prompt} <b>at</b>\n```{step}"} for prompt in ("Once", "")]


def info(folder: Path, step: int) -> RunInfo:
    return RunInfo("model", "abc123", folder, {"lr": 0.1, "exp": "gpt2ish"}, {"stages": [{"name": "a"}]}, step,
                   {"train": [figures(i) for i in range(1, step + 1)], "validation": [figures(i) for i in range(5, step + 1, 5)],
                    "samples": [row for i in range(5, step + 1, 5) for row in written(i)]})


def phase(name: str, folder: Path, begin: int, end: int, status: str) -> None:
    """A part of a run: every fifth step is validated; "killed" ends it without a word."""
    trackers = open_callbacks(name, None, sys.exit)
    trackers.start(info(folder, begin))
    for step in range(begin + 1, end + 1):
        trackers.train(figures(step))
        if step % 5 == 0:
            trackers.samples(written(step))
            trackers.validation(figures(step), final=False)
    if status == "killed":  # what has been heard may have been written or not
        while not trackers.members[name]._calls.empty():
            time.sleep(0.01)
        os._exit(9)
    trackers.end(status, [PICTURE] if status == "done" else [])


def heard(name: str, folder: Path) -> None:
    """A run of 30 steps that is killed at 20 and goes on from 12, is stopped at 25, and goes on."""
    for begin, end, status in ((0, 20, "killed"), (12, 25, "stopped"), (25, 30, "done")):
        program = f"from pathlib import Path; from test_track import phase; phase({name!r}, Path({str(folder)!r}), {begin}, {end}, {status!r})"
        done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])})
        assert done.returncode == (9 if status == "killed" else 0), done.stderr


def expected(name: str, every: int) -> list[tuple[int, float]]:
    return [(step, figures(step)[name]) for step in range(every, 31, every) if figures(step).get(name) is not None]


def test_csv_holds_every_step_once(tmp_path):
    heard("csv", tmp_path)
    for kind, every in (("train", 1), ("validate", 5)):
        with open(tmp_path / f"model_{kind}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        for name in NAMES:
            assert [(int(row["step"]), float(row[name])) for row in rows if row[name]] == expected(name, every)
    open_callbacks("csv", None, print).members["csv"]._tracker.start(info(tmp_path, 0))  # a run that starts anew
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


def test_tensorboard_reads_every_step_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    heard("tensorboard", tmp_path)
    [folder] = glob.glob(str(tmp_path / "tensorboard" / "*"))
    read = EventAccumulator(folder, size_guidance={"tensors": 0, "images": 0}).Reload()
    for kind, every in (("train", 1), ("validation", 5)):
        for name in NAMES:
            found = [(event.step, event.tensor_proto.double_val[0]) for event in read.Tensors(f"{kind}/{name}")]
            assert found == expected(name, every)
    assert read.Images("quickstart")
    assert [event.step for event in read.Tensors("samples")] == list(range(5, 31, 5))
    assert b"Once <b>at</b>\n    ```15" in read.Tensors("samples")[2].tensor_proto.string_val[0]
    assert b"0.1" in read.Tensors("settings")[0].tensor_proto.string_val[0]


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
    assert {artifact.path for artifact in client.list_artifacts(run.info.run_id)} == {"plan.json", "quickstart.png", "samples"}
    texts = {artifact.path for artifact in client.list_artifacts(run.info.run_id, "samples")}
    assert texts == {f"samples/step_{step:09}.txt" for step in range(5, 31, 5)}
    assert Path(client.download_artifacts(run.info.run_id, "samples/step_000000015.txt")).read_text() == samples_by_step(written(15))[15]


@pytest.mark.slow
def test_wandb_holds_every_step_once(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    heard("wandb", tmp_path)
    assert all("abc123" in name for name in os.listdir(tmp_path / "wandb") if name.startswith("offline"))
    found = wandb_history(tmp_path)
    for kind, every in (("train", 1), ("validation", 5)):
        for name in NAMES:
            assert found[f"{kind}/{name}"] == expected(name, every)
    pages = dict(found["samples/textpath"])
    assert list(pages) == list(range(5, 31, 5))
    [page] = tmp_path.glob(f"wandb/offline-run-*/files/{pages[15]}")
    assert "Once &lt;b&gt;at&lt;/b&gt;\n```15" in page.read_text()


class Failing(Callback):
    def train(self, figures):
        raise RuntimeError("the server said no")


class Hanging(Callback):
    def train(self, figures):
        time.sleep(60)


@pytest.mark.parametrize(("tracker", "most_waiting", "reason"), [
    (Failing(), 100, "the server said no"), (Hanging(), 5, "hangs"), (Hanging(), 100, "has not finished")])
def test_a_tracker_that_fails_or_hangs_is_given_up(tracker, most_waiting, reason):
    said = []
    heard_by = Background("mine", tracker, said.append, patience=0.3, most_waiting=most_waiting)
    for step in range(20):
        heard_by.train(figures(step))
    heard_by.end("done", [])
    assert len(said) == 1
    assert "--track mine" in said[0]
    assert reason in said[0]


def test_what_is_not_there_is_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "broken_callbacks", None)
    with pytest.raises(UserError) as caught:
        open_callbacks("csv,tensorbord", "nonsense,json:JSONDecoder,broken_callbacks:A", print)
    text = "\n".join(caught.value.faults)
    for words in ("Did you mean 'tensorboard'?", "allowed is module:Class", "json:JSONDecoder: is no lmplay", "broken_callbacks:A: cannot be made"):
        assert words in text
    assert len(caught.value.faults) == 4
