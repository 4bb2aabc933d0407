"""When a run saves, and saving on a disk that is full."""
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import ENVIRONMENT, TINY, train, write_plan

from lmplay.engine import save


def test_a_disk_that_is_full_loses_nothing(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    train(capsys, "--training-plan", "plan.json")
    before = Path("out_gpt/gpt2ish_model.lmp").read_bytes()
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl"}})
    program = ("import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
               "import lmplay.engine.loop, lmplay.train.__main__ as door\n"
               f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) // 2}, {len(before) // 2}))\n"
               "sys.exit(door.main(sys.argv[1:]))")
    done = subprocess.run([sys.executable, "-c", program, *TINY, "--batch-size", "5", "--training-plan", "plan.json", "--save-interval", "10"],
                          capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("could not be written (File too large)") >= 3  # at each interval, and at the end
    assert Path("out_gpt/gpt2ish_model.lmp").read_bytes() == before
    assert not list(Path("out_gpt").glob(".*.tmp"))


class FakeRun:
    """A run on a clock of its own, on which a save takes a while."""

    def __init__(self, monkeypatch, interval, pause=0.0, writing=0.0):
        self.now = 0.0
        self.settings, self.record, self.interrupt = SimpleNamespace(save_interval=interval), SimpleNamespace(counts=lambda: self.counts), \
            SimpleNamespace(save_seconds=writing)
        self.counts = {"steps": 0, "samples": 0, "tokens": 0, "seconds": 0.0}
        self.pause, self.saves = pause, []
        monkeypatch.setattr(save, "save", self.save)
        self.clock = save.SaveClock(self, lambda: self.now)

    def save(self, run, stage, wait):
        self.saves.append((self.counts["samples"], self.now))
        self.now += self.pause

    def train(self, steps, samples, seconds):
        for _ in range(steps):
            self.now += seconds
            self.counts = {unit: count + {"steps": 1, "samples": samples, "tokens": 10 * samples}.get(unit, 0) for unit, count in self.counts.items()}
            if self.clock.due():
                self.clock.save("one")
        return self.saves


def test_a_run_over_long_rows_saves_every_five_minutes(monkeypatch):
    assert [now for _, now in FakeRun(monkeypatch, "auto").train(200, samples=1, seconds=7.0)] == [301.0, 602.0, 903.0, 1204.0]
    assert [samples for samples, _ in FakeRun(monkeypatch, "auto").train(30, samples=1000, seconds=1.0)] == [10_000, 20_000, 30_000]


@pytest.mark.parametrize(("pause", "writing"), [(0.0, 20.0), (20.0, 0.0), (5.0, 15.0)])
def test_saves_take_no_more_than_their_share_of_the_time(monkeypatch, pause, writing):
    run = FakeRun(monkeypatch, "auto", pause, writing)
    saves = run.train(40_000, samples=500, seconds=1.0)
    assert len(saves[1:]) * (pause + writing) <= 0.02 * run.now
    assert len(saves) == pytest.approx(run.now / 1000, abs=3)  # they come when they may


def test_a_typed_interval_holds_whatever_it_costs(monkeypatch):
    assert len(FakeRun(monkeypatch, 10, pause=100.0).train(20, samples=5, seconds=1.0)) == 10
    assert len(FakeRun(monkeypatch, "5steps").train(20, samples=5, seconds=1.0)) == 4
    assert len(FakeRun(monkeypatch, "500tokens").train(20, samples=5, seconds=1.0)) == 2
    assert len(FakeRun(monkeypatch, "10s").train(20, samples=5, seconds=1.0)) == 2
    assert FakeRun(monkeypatch, 0).train(20, samples=5, seconds=1000.0) == []
