"""The notifier: callbacks hear everything once, over resumes, with the figures of the statistics files; and they change nothing."""
import sys
from pathlib import Path

import pytest
from helpers import differences, load
from watched import NAME, train

from lmplay.report.callbacks import Notifier
from lmplay.stats.figures import Figure, Progress, SourceLoss
from lmplay.stats.totals import ModelStats
from lmplay.track.callback import Callback, Callbacks

ENTROPY = Figure("entropy", "entropy", "mean", "entropy_sum", "n_tokens", "nats per token", validate=False)
RAW = {"loss_sum": 20.0, "n_tokens": 10.0, "nats_sum": 0.0, "nats_tokens": 0.0, "lr": 0.1}


class Listen(Callback):
    def start(self, run):
        self.past, self.heard = run.past, []

    def train(self, figures):
        self.heard.append(figures)

    def validation(self, figures, final):
        self.heard.append(figures)


def started(stats, by_stage=()):
    listener = Listen()
    notifier = Notifier(Callbacks({"listen": listener}))
    notifier.start("m", Path(), {}, {}, stats, by_stage, [])
    return notifier, listener


def test_callbacks_hear_declared_figures_now_and_of_the_past():
    stats = ModelStats([ENTROPY])
    notifier, listener = started(stats)
    stats.declare([Figure("late", "late", "newest")])  # by a stage that begins later
    place = Progress(1, 4, 10, 0.5)
    raw = {**RAW, "entropy_sum": 5.0, "late": 3.0}
    stats.add_train(place, raw)
    notifier.train(place, raw, {"a": SourceLoss(20.0, 10.0)})
    notifier.validation(place, {**RAW, "late": 4.0}, False)
    trained, validated = listener.heard
    assert trained == {"step": 1, "samples": 4, "tokens": 10, "loss": 2.0, "accuracy": None, "lr": 0.1, "grad_norm": None, "padding_share": None,
                       "skipped_batches": 0, "forced_cuts": 0, "bytes_lost": 0, "entropy": 0.5, "late": 3.0, "seconds": 0.5, "tokens_per_second": None,
                       "data_wait_share": None, "source/a/loss": 2.0}
    assert (validated["late"], validated["loss"], "entropy" in validated) == (4.0, 2.0, False)
    _, again = started(stats)
    assert again.past["train"] == [{key: value for key, value in trained.items() if key != "source/a/loss"}]


def test_a_figure_that_nobody_declared_is_an_error():
    notifier, _ = started(ModelStats())
    with pytest.raises(ValueError, match="unknown figure entropy_sum"):
        notifier.train(Progress(1, 4, 10, 0.5), {**RAW, "entropy_sum": 5.0})


def test_callbacks_hear_a_run_and_go_on(watched_folder, capsys):
    train("--callback", "watching:Listen", "--max-steps", 5, code=75)
    train("--callback", "watching:Listen,watching:Broken", "--callback", "watching:Unsafe")
    heard = sys.modules["watching"].HEARD
    starts = [entry[1:] for entry in heard if entry[0] == "start"]
    assert starts[0][0] == starts[1][0]
    assert [entry[1:] for entry in starts] == [(0, 0, 0), (5, 5, 5)]
    done = load(watched_folder / "out" / f"{NAME}.lmp")["runner"]["state"]
    steps = done["stats"]["total_train_steps"]
    assert [entry for entry in heard if entry[0] == "end"] == [("end", "stopped", 5), ("end", "done", steps)]
    for event in (("stage", 0, "one"), ("resumed", 5, "one"), ("stage", 5, "one"), ("saved", 5, "one"), ("stage done", steps, "two"), ("saved", steps, "two")):
        assert event in heard
    assert done["clock"]["listeners"]["states"] == {"watching:Listen": {"steps": steps}}
    said = capsys.readouterr().out
    assert said.count("WARNING: --callback watching:Broken failed in train (RuntimeError: no such light); training goes on") == 1
    assert said.count("WARNING: --callback watching:Unsafe failed in state (TypeError: a state holds plain values, and this has a object)") == 1


def test_an_earlier_state_is_gone_on_with_as_another_run(watched_folder):
    train("--callback", "watching:Listen")
    train("--callback", "watching:Listen", "--resume", f"out/{NAME}.one.lmp")
    starts = [entry[1:] for entry in sys.modules["watching"].HEARD if entry[0] == "start"]
    assert starts[0][0] != starts[1][0]
    assert starts[1][1:] == (12, 12, 12)


def test_watching_changes_no_bit(watched_folder):
    train("--dropout", 0.1)
    train("--dropout", 0.1, "--model", "out/watched.lmp", "--track", "csv", "--callback", "watching:Listen", "--callback", "watching:Broken")
    plain, watched = (load(watched_folder / "out" / f"{name}.lmp") for name in (NAME, "watched"))
    assert differences(plain, watched) == []
