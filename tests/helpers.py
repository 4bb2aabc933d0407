"""What several tests need: a tiny plan, whole runs, and the comparison of what they leave."""
from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from pathlib import Path

import torch
import warm

from lmplay.checkpoints.format import read
from lmplay.generate.__main__ import main as generator
from lmplay.train.__main__ import main

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"  # real texts, where there are any
TINY = ["--num-blocks", "1", "--embed-dim", "16", "--num-heads", "2", "--context-len", "48", "--tokenizer", "bytes", "--device", "cpu"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
ENVIRONMENT.pop("LMP_DATASETS", None)


def write_rows(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def sentences(n: int, word: str = "cat") -> str:
    return " ".join(f"The {word} number {i} sat down." for i in range(n))


def write_plan(folder: Path, plan: dict) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    return path


def trainer(*arguments, cwd=None, timeout=120, env=None) -> subprocess.CompletedProcess:
    """Run lmp_trainer as a user does, with changes to the environment (None = without)."""
    environment = {name: value for name, value in {**ENVIRONMENT, **(env or {})}.items() if value is not None}
    return warm.run(["-m", "lmplay.train", *map(str, arguments)], timeout=timeout, cwd=cwd, env=environment)


_ASIDE = (".clock", ".settings", ".versions", ".seconds", ".step_seconds", ".data_seconds", "/step_seconds", "/writing_seconds", ".from_seconds", ".to_seconds")


def differences(left, right, where="") -> list[str]:
    """Compare two nested values bit for bit; the clock, settings (they hold paths) and versions aside."""
    if where.endswith(_ASIDE):
        return []
    if isinstance(left, torch.Tensor):
        return [] if torch.equal(left, right) else [f"{where}: tensors differ"]
    if isinstance(left, dict):
        if not isinstance(right, dict) or left.keys() != right.keys():
            return [f"{where}: keys differ"]
        return [line for key in left for line in differences(left[key], right[key], f"{where}.{key}")]
    if isinstance(left, (list, tuple)):
        if len(left) != len(right):
            return [f"{where}: {len(left)} and {len(right)} items"]
        return [line for i, (a, b) in enumerate(zip(left, right, strict=True)) for line in differences(a, b, f"{where}.{i}")]
    return [] if left == right else [f"{where}: {left!r} and {right!r}"]


def load(path: Path | str) -> dict:
    """Read a state: a file with torch alone."""
    return read(Path(path)) if Path(path).is_dir() else torch.load(path, weights_only=True)


def compare_runs(left: Path, right: Path) -> list[str]:
    """Compare all that two runs left in their output folders, but for older states: which there are tells when a run was stopped."""
    def kept(folder):
        return sorted(path.name for path in folder.iterdir() if (path.suffix == ".lmp" and ".prev-" not in path.name) or path.name.endswith("_stats.json"))

    def read(path):
        return load(path) if path.suffix == ".lmp" else json.loads(path.read_text())

    assert len(kept(left)) > 4
    if missing := set(kept(left)) ^ set(kept(right)):
        return [f"{name} is in one of them only" for name in sorted(missing)]
    return [line for name in kept(left) for line in differences(read(left / name), read(right / name), name)]


def stop_at(monkeypatch, steps):
    """Interrupt the next runs after each of these steps, counted from 1 over all runs."""
    from lmplay.engine import stage

    original, count = stage.train_step, itertools.count(1)

    def step_and_signal(*arguments, **options):
        result = original(*arguments, **options)
        if next(count) in steps:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(stage, "train_step", step_and_signal)


def train(capsys, *arguments, code=0):
    """Run lmp_trainer in this process; gives all that it has said."""
    found = main([*TINY, "--batch-size", "5", *map(str, arguments)])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured.out + captured.err


def generate(capsys, *arguments):
    """Run lmp_generator in this process; gives exit code, output and complaints."""
    code = generator([*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def train_two_blocks(capsys, out, *arguments, code=0):
    return train(capsys, "--num-blocks", 2, "--training-plan", "plan.json", "--out-dir", out, "--validation-interval", 12, *arguments, code=code)


def weights(path="out_gpt/gpt2ish_model.lmp"):
    return load(Path(path))["model"]["state"]


def train_plan(capsys, *arguments, code=0):
    return train(capsys, "--training-plan", "plan.json", *arguments, code=code)


def total(name="total_train_samples"):
    return load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"].get(name, 0)
