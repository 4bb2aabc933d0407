"""What `torture.py` and `torture_faults.py` share: a plan, the command that runs it, and the comparison of what runs leave."""
from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import warm
from helpers import ENVIRONMENT, TINY, compare_runs, sentences, write_plan, write_rows

from lmplay.checkpoints.format import verify

NAME = "gpt2ish_model"

# Runs the trainer and says, in lines that begin with @, when it enters what kills are aimed at.
MARKED = """
import functools, sys
from lmplay.checkpoints import rotation, saver
from lmplay.engine import record, save, stage
from lmplay.stats import run_record
from lmplay.train.__main__ import main

def marked(module, name, word):
    original = getattr(module, name)
    @functools.wraps(original)
    def call(*arguments, **options):
        print(f"@{word}", flush=True)
        return original(*arguments, **options)
    setattr(module, name, call)

for module, name, word in ((stage, "evaluate", "validation"), (rotation, "save", "save"), (rotation, "_rotate", "rotation"), (saver, "write_best", "best"),
                           (run_record, "write_stats", "statistics"), (rotation, "link_atomic", "stage link")):
    marked(module, name, word)
sys.exit(main())
"""
WINDOWS = ("validation", "save", "rotation", "best", "statistics", "stage link")


@dataclass
class Row:
    """A line of the table."""

    what: str
    tries: int = 0
    lost: int = 0
    codes: Counter = field(default_factory=Counter)
    message: str = ""

    def print(self) -> None:
        """Print it."""
        codes = " ".join(f"{code}×{count}" for code, count in sorted(self.codes.items()))
        print(f"{self.what:<34}{self.tries:>6}{self.tries - self.lost:>10}{self.lost:>6}   {codes:<28} {self.message[:150]}", flush=True)


class Torture:
    """A plan, and the command that runs it."""

    def __init__(self, folder: Path, samples: int):
        folder.mkdir(exist_ok=True)
        write_rows(folder / "rows.jsonl", [{"title": f"T{i}", "text": sentences(1 + i % 9)} for i in range(200)])
        plan = {"tales": {"dataset": "builtin:tales", "samples": samples // 3},
                "mix": {"dataset": [{"path": "rows.jsonl", "weight": 2}, {"path": "builtin:tales", "weight": 1}], "samples": samples // 3,
                        "freeze": ["blocks.0.mlp*"]},
                "rows": {"dataset": "rows.jsonl", "epochs": samples / 3 / 180}}
        self.plan = write_plan(folder, plan)
        (folder / "plan.json").write_text(json.dumps({"$defaults": {"lr": 0.01, "lr_schedule": "cosine", "validation": {"samples": 3}}, **plan}))
        self.environment = dict(ENVIRONMENT)

    def flags(self, out: Path, *more: str) -> list[str]:
        """The flags of a run."""
        return [*TINY, "--dropout", "0.1", "--training-plan", str(self.plan), "--out-dir", str(out), "--batch-size", "7", "--mini-batch-size", "3",
                "--save-interval", "10", "--validation-interval", "40", *map(str, more)]

    def start(self, out: Path, *more: str, cold: bool = False, marked: bool = False, **options) -> subprocess.Popen:
        """Start a run: forked from a process that has imported torch, or `cold`, as a user does; `marked` says what it enters."""
        program = ["-c", MARKED] if marked else ["-m", "lmplay.train"]
        keys = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": self.environment, **options}
        if cold:
            return subprocess.Popen([sys.executable, *program, *self.flags(out, *more)], **keys)
        return warm.Popen([*program, *self.flags(out, *more)], **keys)

    def finish(self, out: Path, row: Row | None = None, *more: str, **options) -> tuple[int, str]:
        """Run to the end."""
        process = self.start(out, *more, **options)
        output = process.communicate(timeout=1800)[0]
        if row is not None:
            row.codes[process.returncode] += 1
        return process.returncode, output


def untouched(folder: Path, samples: int) -> tuple[Torture, Path]:
    """Make a plan, and run it undisturbed for comparison."""
    torture, reference = Torture(folder, samples), folder / "reference"
    code, output = torture.finish(reference)
    assert code == 0, output
    return torture, reference


def wait_for(moment: str, lines: Iterable[str], dice: random.Random) -> None:
    """Read what a run says until one of the first four times that it is at a moment, and a little longer."""
    left = dice.randint(1, 4)
    for line in lines:
        left -= line.strip() == f"@{moment}"
        if not left:
            break
    time.sleep(dice.uniform(0, 0.01))


def whole(out: Path, name: str = NAME) -> bool:
    """Tell whether the newest file is whole, if there has been a save."""
    path = out / f"{name}.lmp"
    return verify(path) is True if path.exists() else not any(file for file in out.glob(f"{name}*.lmp") if ".best" not in file.name)


def same(reference: Path, out: Path) -> bool:
    """Compare all files but older states and damaged ones."""
    if not out.exists() or any(out.glob(".*.tmp")):
        return False
    with tempfile.TemporaryDirectory() as folder:
        ignored = shutil.ignore_patterns("*.prev-*", "*.damaged-*", "*.old-*", ".*")
        left, right = (shutil.copytree(source, Path(folder) / name, ignore=ignored) for name, source in (("left", reference), ("right", out)))
        try:
            return compare_runs(left, right) == []
        except AssertionError:  # other files
            return False
