"""Weights & Biases holds every step once, over kills and stops."""
import os
import sys
from types import SimpleNamespace

import pytest
from tracked import NAMES, expected, figures, heard, info
from wandb_file import wandb_history
from watched import check, interrupted

from lmplay.track.wandb import WandbTracker


@pytest.mark.slow
def test_wandb_over_a_kill_and_a_stop(watched_folder):
    pytest.importorskip("wandb")
    from wandb_file import wandb_history

    interrupted("wandb")
    found = {kind: {} for kind in ("train", "validation", "final_validation")}
    for key, rows in wandb_history(watched_folder / "out").items():
        kind, _, name = key.partition("/")
        if kind in found:
            found[kind][name] = rows
    check(*found.values())


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


class Config(dict):
    def update(self, values, allow_val_change):
        assert allow_val_change
        super().update(values)


def test_a_store_that_is_ahead_of_the_checkpoint_says_so(tmp_path, monkeypatch):
    """As a server is when a run was killed; what has been sent cannot be taken back."""
    logged = []
    run = SimpleNamespace(step=21, config=Config(rewinds=["before"]), log=lambda row, step: logged.append(step), finish=lambda exit_code: None)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: run, Settings=lambda **_: None))
    tracker = WandbTracker()
    tracker.start(info(tmp_path, 12))
    for step in range(13, 24):
        tracker.train(figures(step))
    tracker.end("stopped", [])
    assert logged == [21, 22, 23]
    assert run.config["rewinds"][0] == "before"
    assert "went on from step 12; steps 13 to 20 are of the attempt before" in run.config["rewinds"][1]
    run.step = 24
    WandbTracker().start(info(tmp_path, 23))
    assert len(run.config["rewinds"]) == 2
