"""Statistics files of runs that never were, and what is drawn of them."""
import json
import math
import struct

import numpy as np

from lmplay.plotstats.__main__ import main
from lmplay.plotstats.runs import read_folder

STAGES = [("short", 2000, 75), ("long", 2000, 130)]


def make_run(folder, model="tiny", experiment="gpt2ish_tiny", stages=STAGES, rows=80, stop=None, floor=None, resumes=(), level=2.0, rate=1000.0,
             by_stage=True):
    """Write the files of a run; `stages` are (name, samples, tokens a sample), `stop` is the sample it has got to, `by_stage` asks for those of stages."""
    total = sum(samples for _, samples, _ in stages)
    stop = total if stop is None else stop
    places, reached, tokens = [], 0, 0
    for name, samples, length in stages:
        end = min(reached + samples, stop)
        if end > reached or not places:
            places.append({"name": name, "from_samples": reached, "to_samples": end, "from_tokens": tokens, "to_tokens": tokens + (end - reached) * length,
                           "done": end == reached + samples, "floor_nats_per_token": floor, "floor_bits_per_byte": None})
        reached, tokens = end, places[-1]["to_tokens"]
    corners = ([0, *(place["to_samples"] for place in places)], [0, *(place["to_tokens"] for place in places)])
    train = [row for row in np.linspace(total / rows, total, rows) if row <= stop] if rows else []
    for kind, samples in (("train", train), ("validate", train[3::4])):
        for stage in [None, *(place["name"] for place in places if by_stage)]:
            mine = [place for place in places if stage in (None, place["name"])]
            within = [row for row in samples if mine[0]["from_samples"] < row <= mine[-1]["to_samples"]]
            write_curve(folder, kind, model, experiment, stage, mine, within, np.interp(within, *corners).tolist(), resumes, level, rate, floor)


def write_curve(folder, kind, model, experiment, stage, stages, samples, tokens, resumes, level, rate, floor):
    """Write one file: a loss that falls from 10 to `level`."""
    noise = np.random.default_rng(len(samples)).normal(0, 0.05, len(samples))
    loss = (level + (10 - level) * np.exp(-np.array(samples) / 300) + noise).tolist()
    columns = {"step": list(range(len(samples))), "samples": samples, "tokens": tokens, "loss": loss, "accuracy": [0.5 - value / 30 for value in loss],
               "lr": [0.001] * len(samples), "something_new": ["?"] * len(samples)}
    if kind == "validate":
        columns |= {"perplexity": np.exp(loss).tolist(), "bits_per_byte": [value / 2 for value in loss], "floor": [floor and floor + 0.01] * len(samples)}
    clock = {"seconds": [place / rate for place in tokens], "tokens_per_second": [rate] * len(samples),
             "resumes": [{"samples": place, "tokens": place * 75, "seconds": place * 75 / rate} for place in resumes],
             "stages": [{"from_seconds": place["from_tokens"] / rate, "to_seconds": place["to_tokens"] / rate} for place in stages]}
    name = f"{model}_{kind}_stats.json" if stage is None else f"{model}_step_{stage}_{kind}_stats.json"
    content = {"format": 1, "kind": kind, "model": model, "experiment": experiment, "stage": stage, "totals": {}, "stages": stages, "columns": columns,
               "clock": clock}
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def edit(path, change):
    """Change the content of a file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def plot(capsys, folder, *arguments):
    """Run the door in this process; gives exit code, output and complaints."""
    code = main(["--out-dir", str(folder), *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def picture_size(path):
    """Check that a file is a PNG, and give its width and height."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:])


def pictures(folder):
    return {path.name for path in folder.glob("*.png")}


def curves_of(folder, kind="train"):
    curves, faults = read_folder(folder)
    assert not faults
    return [curve for curve in curves if curve.kind == kind and curve.stage is None]


def add_bits(folder, model, bytes_of_token):
    """Say how long the tokens of a run's validation are."""
    edit(folder / f"{model}_validate_stats.json", lambda content: content["columns"].update(
        bits_per_byte=[value / math.log(2) / bytes_of_token for value in content["columns"]["loss"]]))


def words_in(figure):
    """Collect everything that is written in a figure."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


DAMAGE = {
    "cut off": lambda text: text[: len(text) // 2],
    "a list": lambda text: "[1, 2]",
    "no text": lambda text: "",
    "another format": lambda text: text.replace('"format": 1', '"format": 2'),
    "another kind": lambda text: text.replace('"kind": "train"', '"kind": "test"'),
    "no model": lambda text: text.replace('"model"', '"mode"'),
    "no loss": lambda text: text.replace('"loss"', '"los"'),
    "a shorter column": lambda text: text.replace('"accuracy": [', '"accuracy": [0.1, '),
    "text for numbers": lambda text: text.replace('"loss": [', '"loss": ["high", '),
    "columns that are no lists": lambda text: text.replace('"samples": [', '"samples": 7, "x": ['),
    "no clock": lambda text: text.replace('"clock": {', '"clock": null, "x": {'),
    "deep": lambda text: "[" * 100_000,
}


def add_sources(path, names):
    """Give a file losses of sources: the whole loss, each a little higher than the one before."""
    def change(content):
        losses = content["columns"]["loss"]
        content["sources"] = {name: {"samples": 10, "tokens": 1000 - index, "epochs": None, "train_loss": 1.0, "validate_loss": None,
                                     "columns": {"loss": [None, *(value + index / 10 for value in losses[1:])]}} for index, name in enumerate(names)}

    edit(path, change)
