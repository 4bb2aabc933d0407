"""Weights & Biases holds every step once, over kills and stops."""
import os

import pytest
from tracked import NAMES, expected, heard
from wandb_file import wandb_history
from watched import check, interrupted


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
