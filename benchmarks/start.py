"""How long it takes to begin: `lmp_trainer` to the end of the first step of the quickstart, against importing the usual libraries.

    python benchmarks/start.py --pairs 7

Both are whole programs, run in turns with files that are in the system's cache; the medians are compared. Then, in a run of its own, where the time goes.
The target: at most 1.5 times `python -c "import torch, datasets, transformers"`.
"""
from __future__ import annotations

import argparse
import builtins
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from lmplay.track.callback import Callback

IMPORTS = [sys.executable, "-c", "import torch, datasets, transformers"]


class FirstStep(Callback):
    """Ends the process after the first step (`--callback start:FirstStep`)."""

    def train(self, figures: dict[str, Any]) -> None:
        """See :class:`Callback`."""
        SHARES.show()
        os._exit(0)


class Shares:
    """Counts the time of a program by what it is doing; what is done for something else, an import say, is not counted there as well."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.names = ["other"]
        self._since = time.perf_counter()

    def count(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that is counted under a name; in the main thread, where it is called."""
        def counted(*arguments: Any, **named: Any) -> Any:
            self._turn()
            self.names.append(name)
            try:
                return function(*arguments, **named)
            finally:
                self._turn()
                self.names.pop()

        return counted

    def show(self) -> None:
        """Print the shares, if they have been counted."""
        self._turn()
        for name, seconds in self.seconds.items() if len(self.seconds) > 1 else ():
            print(f"  {name:<22}{seconds:>6.2f} s", flush=True)

    def _turn(self) -> None:
        """Count the time since the last turn."""
        now = time.perf_counter()
        self.seconds[self.names[-1]] += now - self._since
        self._since = now


SHARES = Shares()


def trainer(folder: Path) -> list[str]:
    """Give the flags of a run that ends after its first step."""
    return ["--training-plan", "quickstart", "--device", "cpu", "--quiet", "--callback", "start:FirstStep", "--out-dir", str(folder)]


def timed(command: list[str]) -> float:
    """Run a program; seconds from its start to its end."""
    started = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path[1:]])})
    return time.perf_counter() - started


def measure(pairs: int) -> None:
    """Run both in turns, and print the ratio of the medians."""
    seconds: dict[str, list[float]] = {"imports": [], "trainer": []}
    for number in range(pairs + 1):
        for name in ("imports", "trainer") if number % 2 else ("trainer", "imports"):
            with tempfile.TemporaryDirectory() as folder:
                took = timed(IMPORTS if name == "imports" else [sys.executable, "-m", "lmplay.train", *trainer(Path(folder))])
            if number:  # the first ones bring the files into the cache
                seconds[name].append(took)
    ratios = [a / b for a, b in zip(seconds["trainer"], seconds["imports"], strict=True)]
    for name, values in seconds.items():
        print(f"{name:<24}{median(values):>6.2f} s  ({min(values):.2f} to {max(values):.2f})")
    print(f"{'ratio of the medians':<24}{median(seconds['trainer']) / median(seconds['imports']):>6.2f}    (of pairs {min(ratios):.2f} to {max(ratios):.2f})")


def run_counted(folder: Path) -> None:
    """Be `lmp_trainer`, and count what it does."""
    sys.modules["start"] = sys.modules["__main__"]
    uncounted, main_thread = builtins.__import__, threading.get_ident()
    counted = SHARES.count("imports", uncounted)

    def import_(*arguments: Any, **named: Any) -> Any:
        inner = SHARES.names[-1] == "imports" or threading.get_ident() != main_thread
        return (uncounted if inner else counted)(*arguments, **named)

    builtins.__import__ = import_  # type: ignore[assignment]
    from lmplay.engine import model_spec, opening, stage
    from lmplay.train.__main__ import main

    for owner, function, name in ((opening, "open_stages", "data opened"), (opening, "make_tokenizer", "tokenizer"), (model_spec.ModelSpec, "build", "model"),
                                  (opening, "build_optimizers", "optimizer"), (stage.StageRunner, "begin", "stage begun"),
                                  (stage.StageRunner, "next_batch", "wait for the batch"), (stage.StageRunner, "step", "first step")):
        setattr(owner, function, SHARES.count(name, getattr(owner, function)))
    main(trainer(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--counted", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.counted is not None:
        run_counted(arguments.counted)
    else:
        measure(arguments.pairs)
        with tempfile.TemporaryDirectory() as folder:
            timed([sys.executable, __file__, "--counted", folder])
