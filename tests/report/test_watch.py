"""Who watches a run sees each step once, with the figures of the statistics, over kills and stops; and watching changes nothing."""
import csv
import json
import os
import sys
from pathlib import Path

import pytest
from helpers import TINY, differences, load, sentences, trainer, write_plan, write_rows

from lmplay.train.__main__ import main

NAME = "gpt2ish_model"
CALLBACKS = '''
import os
from lmplay.track.callback import Callback

HEARD = []

class Kill(Callback):
    def train(self, figures):
        if figures["step"] == int(os.environ.get("KILL_AT", 0)):
            os._exit(9)

class Listen(Callback):
    """Counts steps, over resumes too."""
    steps = 0
    def start(self, run):
        HEARD.append(("start", run.identity, run.step, self.steps, len(run.past["train"])))
        HEARD.append(("past samples", run.past["samples"]))
    def train(self, figures):
        self.steps += 1
    def samples(self, rows):
        HEARD.append(("samples", rows))
    def event(self, kind, figures):
        HEARD.append((kind, figures["step"], figures["stage"]))
    def end(self, status, pictures):
        HEARD.append(("end", status, self.steps))
    def state(self):
        return {"steps": self.steps}
    def restore(self, state):
        self.steps = state["steps"]

class Broken(Callback):
    def train(self, figures):
        raise RuntimeError("no such light")

class Unsafe(Callback):
    def state(self):
        return {"what": object()}
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1)} for i in range(60)])
    write_rows(tmp_path / "more.jsonl", [{"text": sentences(1, "dog")} for i in range(60)])
    write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "samples": 48}, "two": {"dataset": ["rows.jsonl", "more.jsonl"], "samples": 40}})
    (tmp_path / "watching.py").write_text(CALLBACKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("watching", None)
    return tmp_path


def flags(*more):
    return [*TINY, "--training-plan", "plan.json", "--batch-size", "4", "--save-interval", "16", "--validation-interval", "16", "--out-dir", "out",
            "--optimizer-warmup-steps", "2", *map(str, more)]


def train(*more, code=0):
    assert main(flags(*more)) == code


def interrupted(tracker, apart=True):
    """A run that is killed in its third save interval, stopped after some steps more, and done; each `apart`, in a process of its own, as in life."""
    environment = {"KILL_AT": "11", "PYTHONPATH": os.pathsep.join(sys.path), "WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": ""}
    for more, code in ((["--callback", "watching:Kill"], 9), (["--max-steps", "5"], 75), ([], 0)):
        if code != 9 and not apart:
            train("--track", tracker, *more, code=code)
            continue
        done = trainer(*flags("--track", tracker, *more), env=environment, timeout=300)
        assert done.returncode == code, done.stderr
        assert code or "WARNING" not in done.stdout  # a tracker that has not finished when the run is stopped has the rest from the next


def columns(kind, stage=None):
    content = json.loads(Path(f"out/{NAME}{f'_step_{stage}' if stage else ''}_{kind}_stats.json").read_text())
    return content["columns"], content


def check(train_rows, validations, finals):
    """Compare what a tracker holds, as {name: [(step, value)]}, with the statistics: everything once, bit for bit."""
    expected, content = columns("train")
    assert len(expected["step"]) > 20
    for name in set(expected) - {"step"}:
        assert train_rows[name] == [(step, value) for step, value in zip(expected["step"], expected[name], strict=True) if value is not None], name
    expected, _ = columns("validate")
    ends = [content["stages"][0]["to_samples"], content["stages"][1]["to_samples"]]
    for name in ("loss", "accuracy", "bits_per_byte", "samples"):
        regular = [(step, value) for step, value, samples in zip(expected["step"], expected[name], expected["samples"], strict=True) if samples not in ends]
        assert [row for row in validations[name] if row[0] not in dict(finals["loss"])] == regular, name
    assert [value for _, value in finals["loss"]] == [columns("validate", stage)[1]["final"]["loss"] for stage in ("one", "two")]
    assert [value for _, value in finals["samples"]] == ends
    for kind, found in (("train", train_rows), ("validate", validations)):
        expected, content = columns(kind, "two")
        assert list(content["sources"]) == ["rows.jsonl", "more.jsonl"]
        for name, source in content["sources"].items():
            rows = zip(expected["step"], source["columns"]["loss"], expected["samples"], strict=True)
            told = [row for row in found[f"source/{name}/loss"] if kind == "train" or row[0] not in dict(finals["loss"])]
            assert told == [(step, loss) for step, loss, samples in rows if loss is not None and (kind == "train" or samples not in ends)]
            assert told
    assert [step for step, _ in finals["source/more.jsonl/loss"]] == [finals["loss"][1][0]]
    steps = [step for step, _ in validations["loss"]]
    assert steps == sorted(set(steps))
    assert finals["samples"][0][0] in steps  # both validations of this step are there, each by itself


@pytest.mark.parametrize("late", [False, True])
def test_csv_over_a_kill_and_a_stop(folder, late):
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


@pytest.mark.slow
def test_tensorboard_over_a_kill_and_a_stop(folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    interrupted("tensorboard")
    [place] = (folder / "out" / "tensorboard").iterdir()
    read = EventAccumulator(str(place), size_guidance={"tensors": 0, "images": 0}).Reload()
    found = {kind: {} for kind in ("train", "validation", "final_validation")}
    for tag in read.Tags()["tensors"]:
        kind, _, name = tag.partition("/")
        if name:
            found[kind][name] = [(event.step, event.tensor_proto.double_val[0]) for event in read.Tensors(tag)]
    check(*found.values())
    assert f"{NAME}_train_stats" in read.Tags()["images"]


@pytest.mark.slow
def test_mlflow_over_a_kill_and_a_stop(folder):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    interrupted("mlflow")
    client = MlflowClient(f"sqlite:///{folder / 'out' / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("lmplay").experiment_id])
    found = {kind: {} for kind in ("train", "validation", "final_validation")}
    for key in run.data.metrics:
        kind, _, name = key.partition("/")
        found[kind][name] = sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key))
    check(*found.values())
    assert run.data.params["batch_size"] == "4"
    assert f"{NAME}_train_stats.png" in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}


@pytest.mark.slow
def test_wandb_over_a_kill_and_a_stop(folder):
    pytest.importorskip("wandb")
    from wandb_file import wandb_history

    interrupted("wandb")
    found = {kind: {} for kind in ("train", "validation", "final_validation")}
    for key, rows in wandb_history(folder / "out").items():
        kind, _, name = key.partition("/")
        if kind in found:
            found[kind][name] = rows
    check(*found.values())


def test_callbacks_hear_a_run_and_go_on(folder, capsys):
    train("--callback", "watching:Listen", "--max-steps", 5, code=75)
    train("--callback", "watching:Listen,watching:Broken", "--callback", "watching:Unsafe")
    heard = sys.modules["watching"].HEARD
    starts = [entry[1:] for entry in heard if entry[0] == "start"]
    assert starts[0][0] == starts[1][0]
    assert [entry[1:] for entry in starts] == [(0, 0, 0), (5, 5, 5)]
    done = load(folder / "out" / f"{NAME}.lmp")["runner"]["state"]
    steps = done["stats"]["total_train_steps"]
    assert [entry for entry in heard if entry[0] == "end"] == [("end", "stopped", 5), ("end", "done", steps)]
    for event in (("stage", 0, "one"), ("resumed", 5, "one"), ("stage", 5, "one"), ("saved", 5, "one"), ("stage done", steps, "two"), ("saved", steps, "two")):
        assert event in heard
    assert done["clock"]["listeners"]["states"] == {"watching:Listen": {"steps": steps}}
    said = capsys.readouterr().out
    assert said.count("WARNING: --callback watching:Broken failed in train (RuntimeError: no such light); training goes on") == 1
    assert said.count("WARNING: --callback watching:Unsafe failed in state (TypeError: a state holds plain values, and this has a object)") == 1


def test_an_earlier_state_is_gone_on_with_as_another_run(folder):
    train("--callback", "watching:Listen")
    train("--callback", "watching:Listen", "--resume", f"out/{NAME}.one.lmp")
    starts = [entry[1:] for entry in sys.modules["watching"].HEARD if entry[0] == "start"]
    assert starts[0][0] != starts[1][0]
    assert starts[1][1:] == (12, 12, 12)


def test_watching_changes_no_bit(folder):
    train("--dropout", 0.1)
    train("--dropout", 0.1, "--model", "out/watched.lmp", "--track", "csv", "--callback", "watching:Listen", "--callback", "watching:Broken")
    plain, watched = (load(folder / "out" / f"{name}.lmp") for name in (NAME, "watched"))
    assert differences(plain, watched) == []


@pytest.mark.parametrize(("given", "words"), [
    (["--track", "csv,tensorbord"], ["--track tensorbord", "Did you mean 'tensorboard'?"]),
    (["--callback", "watching:Nothing"], ["--callback watching:Nothing", "no attribute"]),
    (["--callback", "watching"], ["--callback watching", "module:Class"]),
])
def test_what_is_not_there_is_refused_before_anything_is_written(folder, capsys, given, words):
    train(*given, code=2)
    [line] = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words)
    assert not (folder / "out").exists()


def test_a_library_that_is_missing_is_named(folder, capsys, monkeypatch):
    from lmplay.track import opening

    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    train("--track", "wandb", code=2)
    assert "pip install 'lmplay[wandb]'" in capsys.readouterr().err


def samples():
    return [json.loads(line) for line in Path(f"out/{NAME}_samples.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]


def test_prompts_are_gone_on_with_at_each_validation_and_no_bit_is_changed(folder):
    (folder / "prompts.txt").write_text("The cat\n\nÀ la \u2028recherche\n", encoding="utf-8")
    more = ["--sample-prompts", "prompts.txt", "--sample-tokens", 12, "--dropout", 0.1]
    train(*more)
    whole = samples()
    plain = load(folder / "out" / f"{NAME}.lmp")
    steps, _ = columns("validate")
    assert [row["step"] for row in whole[::3]] == steps["step"]  # one line a prompt a validation, a step with two of them once
    assert [row["samples"] for row in whole[::3]] == steps["samples"]
    assert {row["stage"] for row in whole} == {"one", "two"}
    assert [row["prompt"] for row in whole] == ["The cat", "", "À la \u2028recherche"] * len(steps["step"])
    assert len({row["text"] for row in whole}) > len(steps["step"])
    assert all(len(row["text"]) <= 12 for row in whole)
    assert len((folder / "out" / f"{NAME}_samples.jsonl").read_text(encoding="utf-8").splitlines()) == len(whole)

    train("--dropout", 0.1, "--reset-history")
    assert differences(plain, load(folder / "out" / f"{NAME}.lmp")) == []
    assert (folder / "out" / f"{NAME}.old-1" / f"{NAME}_samples.jsonl").exists()

    train("--reset-history", *more, "--callback", "watching:Listen", "--max-steps", 6, code=75)
    cut_off = '{"step": 6, "samp'
    with open(f"out/{NAME}_samples.jsonl", "a", encoding="utf-8") as file:  # as after a kill
        file.write(json.dumps({**whole[0], "step": 7}) + "\n" + cut_off)
    train(*more, "--callback", "watching:Listen")
    assert samples() == whole
    heard = sys.modules["watching"].HEARD
    assert [row for kind, *told in heard if kind == "samples" for row in told[0]] == whole
    assert [told[0] for kind, *told in heard if kind == "past samples"] == [[], [row for row in whole if row["step"] <= 6]]


def test_samples_are_what_lmp_generator_writes_from_the_weights_of_the_step(folder, capsys):
    (folder / "prompts.txt").write_text("The cat\n")
    train("--sample-prompts", "prompts.txt", "--sample-tokens", 8)
    from lmplay.data.permutation import hash64
    from lmplay.exp import build_model, get_experiment
    from lmplay.report import completions
    from lmplay.tokenizer import Tokenizer
    from lmplay.writing.generation import generate

    content = load(folder / "out" / f"{NAME}.lmp")["model"]
    tokenizer = Tokenizer(content["state_args"]["tokenizer"])
    model = build_model(get_experiment(content["state_args"]["experiment"]), vocab_size=tokenizer.vocab_size, **content["state_args"]["args"])
    model.load_state_dict(content["state"])
    last = samples()[-1]
    prompt = [tokenizer.end_id, *tokenizer.encode("The cat").ids.tolist()]
    steps = generate(model, [prompt], tokenizer.end_id, 48, completions._SAMPLING, [hash64(0, last["step"], 0) >> 1], 8, use_cache=False)
    assert tokenizer.decode([token for [token] in steps]) == last["text"]


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), (b"", "is empty"), (b"\xff\xfe\xfd", "not UTF-8")])
def test_prompts_that_cannot_be_read_are_refused(folder, capsys, content, words):
    if content is not None:
        (folder / "prompts.txt").write_bytes(content)
    train("--sample-prompts", "prompts.txt", code=2)
    [line] = capsys.readouterr().err.splitlines()
    assert "--sample-prompts prompts.txt" in line
    assert words in line
    assert not (folder / "out").exists()
