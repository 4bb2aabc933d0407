"""Short runs with trackers and callbacks, killed and stopped, and what the statistics say of them."""
import json
import os
import sys
from pathlib import Path

from helpers import TINY, trainer

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


