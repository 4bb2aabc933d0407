"""A run as a tracker hears it, in parts: killed, stopped, done."""
import os
import subprocess
import sys
import time
from pathlib import Path

from helpers import ROOT

from lmplay.track.callback import RunInfo
from lmplay.track.opening import open_callbacks

SOURCE = "source//data/a,b (2).jsonl/loss"
NAMES = ("loss", "accuracy", "samples", SOURCE)
PICTURE = ROOT / "docs" / "quickstart.png"


def figures(step: int) -> dict:
    """Of a step; a second source comes in at step 12, when the first checkpoint has been written."""
    of_source = {SOURCE: step / 7} if step > 12 else {}
    return {"step": step, "samples": 4 * step, "loss": 1 / 3 + step, "accuracy": None if step % 2 else 0.1 * step, **of_source}


def written(step: int) -> list[dict]:
    return [{"step": step, "samples": 4 * step, "stage": "a", "prompt": prompt, "text": f"{prompt} <b>at</b>\n```{step}"} for prompt in ("Once", "")]


def info(folder: Path, step: int) -> RunInfo:
    return RunInfo("model", "abc123", folder, {"lr": 0.1, "exp": "gpt2ish"}, {"stages": [{"name": "a"}]}, step,
                   {"train": [figures(i) for i in range(1, step + 1)], "validation": [figures(i) for i in range(5, step + 1, 5)],
                    "samples": [row for i in range(5, step + 1, 5) for row in written(i)]})


def phase(name: str, folder: Path, begin: int, end: int, status: str) -> None:
    """A part of a run: every fifth step is validated; "killed" ends it without a word."""
    trackers = open_callbacks(name, None, sys.exit)
    trackers.start(info(folder, begin))
    for step in range(begin + 1, end + 1):
        trackers.train(figures(step))
        if step % 5 == 0:
            trackers.samples(written(step))
            trackers.validation(figures(step), final=False)
    if status == "killed":  # what has been heard may have been written or not
        while not trackers.members[name]._calls.empty():
            time.sleep(0.01)
        os._exit(9)
    trackers.end(status, [PICTURE] if status == "done" else [])


def heard(name: str, folder: Path) -> None:
    """A run of 30 steps that is killed at 20 and continues from 12, is stopped at 25, and goes on."""
    for begin, end, status in ((0, 20, "killed"), (12, 25, "stopped"), (25, 30, "done")):
        program = f"from pathlib import Path; from tracked import phase; phase({name!r}, Path({str(folder)!r}), {begin}, {end}, {status!r})"
        done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])})
        assert done.returncode == (9 if status == "killed" else 0), done.stderr


def expected(name: str, every: int) -> list[tuple[int, float]]:
    return [(step, figures(step)[name]) for step in range(every, 31, every) if figures(step).get(name) is not None]
