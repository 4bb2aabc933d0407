"""The notifier: callbacks hear the figures of the statistics files, with those that an objective has declared."""
from pathlib import Path

import pytest

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
                       "skipped_batches": 0, "forced_cuts": 0, "entropy": 0.5, "late": 3.0, "seconds": 0.5, "tokens_per_second": None,
                       "data_wait_share": None, "source/a/loss": 2.0}
    assert (validated["late"], validated["loss"], "entropy" in validated) == (4.0, 2.0, False)
    _, again = started(stats)
    assert again.past["train"] == [{key: value for key, value in trained.items() if key != "source/a/loss"}]


def test_a_figure_that_nobody_declared_is_an_error():
    notifier, _ = started(ModelStats())
    with pytest.raises(ValueError, match="unknown figure entropy_sum"):
        notifier.train(Progress(1, 4, 10, 0.5), {**RAW, "entropy_sum": 5.0})
