"""A tracker that fails or hangs never stops training."""
import time

import pytest
from tracked import figures

from lmplay.track.background import Background
from lmplay.track.callback import Callback, Callbacks, RunInfo, Tracker, past_rows


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


def test_an_evaluation_is_logged_under_its_set(tmp_path):
    heard = []

    class Kept(Tracker):
        def start(self, run):
            heard.extend(past_rows(run))

        def _log(self, kind, figures):
            heard.append((kind, figures))

    callbacks = Callbacks({"kept": Background("kept", Kept(), print)})
    callbacks.start(RunInfo("m", "i", tmp_path, {}, {}, 1, {"evaluation": [{"set": "wiki", "step": 1, "loss": 3.0}]}))
    callbacks.evaluation({"set": "held_out", "step": 2, "loss": 2.0})
    callbacks.end("done", [])
    assert heard == [("evaluation/wiki", {"step": 1, "loss": 3.0}), ("evaluation/held_out", {"step": 2, "loss": 2.0})]
