"""Made-up checkpoints, ways to damage a file, and the comparison of what runs leave."""
import os
import random
from collections import namedtuple
from pathlib import Path

import torch
from helpers import compare_runs

from lmplay.checkpoints.format import FORMAT

MODEL = "gpt2ish_model"


Usage = namedtuple("Usage", "total used free")


def content(number: int = 0) -> dict:
    """Something with the shape of a checkpoint, that says which one it is."""
    history = {"stride": 1, "open": 0, "rows": {name: [] for name in ("step", "loss_sum", "n_tokens")}}
    stats = {"total_train_samples": number, "train": history, "validate": history, "best": None, "final": None}
    return {"format": FORMAT, "versions": {}, "curriculum": {"state_args": {"plan": {"stages": []}}, "state": {"stages": []}},
            "model": {"state_args": {"experiment": "x", "args": {"context_len": 16}, "tokenizer": {"kind": "bytes", "name": "bytes"}},
                      "state": {"weight": torch.full((50,), number)}},
            "runner": {"state_args": {"settings": {"continuation": "exact", "seed": 0, "optimizer": "adamw", "given": []}},
                       "state": {"stats": stats, "step_stats": {}, "stages": [], "clock": {"seconds": 0.0, "resumes": []}, "scaler": {},
                                 "random": {"python": [], "numpy": [], "torch": torch.zeros(1)}}},
            "optimizers": {"state_args": {}, "state": {}}, "lr_schedulers": {"state_args": {}, "state": {}}}


def number_of(stored: dict) -> int:
    return stored["runner"]["state"]["stats"]["total_train_samples"]


def all_but_kept(left: Path, right: Path) -> list[str]:
    """List how two runs' newest states and statistics differ: which older states are kept depends on which saves there were."""
    for folder in (left, right):
        for path in (*folder.glob("*.prev-*"), *folder.glob("*.damaged-*"), *folder.glob("*.one.lmp")):
            path.unlink()
    return compare_runs(left, right)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES = {"flipped": flip, "cut": lambda path: os.truncate(path, path.stat().st_size // 2), "empty": lambda path: os.truncate(path, 0),
           "end lost": lambda path: os.truncate(path, path.stat().st_size - 1), "garbage": lambda path: path.write_bytes(random.Random(0).randbytes(5000)),
           "deleted": Path.unlink}
