"""What statistics cost: adding a step and writing the files as a run grows, and drawing a million rows.

    python benchmarks/plots.py --rows 1000000 --steps 1000000

First steps are added to the statistics as the trainer does, and the files written: time for each must not grow with the run. Then a file with a million
rows, far more than the trainer keeps, is read, drawn and put into a report, each in a process of its own, and all three in one. The target: all three
in under 10 s and 1 GB.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lmplay.stats.figures import Progress
from lmplay.stats.totals import ModelStats
from lmplay.stats.writing import write_stats


def write_long(folder: Path, rows: int) -> int:
    """Write training statistics with many rows, every value with all its digits; bytes."""
    random, step = np.random.default_rng(0), np.arange(1, rows + 1)
    columns = {"step": step, "samples": 50 * step, "tokens": 12_800 * step, "loss": 2 + 8 * np.exp(-20 * step / rows) + random.normal(0, 0.1, rows),
               "accuracy": 0.4 + random.normal(0, 0.02, rows), "lr": 1e-3 * (1 - step / rows), "grad_norm": 1 + random.random(rows),
               "padding_share": 0.1 * random.random(rows), "skipped_batches": (random.random(rows) < 1e-6).astype(int), "forced_cuts": step % 3}
    clock = {"seconds": 0.3 * step + 0.01 * random.random(rows), "tokens_per_second": 4e4 + random.normal(0, 1e3, rows),
             "data_wait_share": 0.01 * random.random(rows)}
    places = {"samples": 50 * rows, "tokens": 12_800 * rows, "seconds": 0.3 * rows}
    middle = {unit: end // 2 for unit, end in places.items()}
    stages = [{"name": "one", "done": True, "from_samples": 0, "from_tokens": 0, "to_samples": middle["samples"], "to_tokens": middle["tokens"]},
              {"name": "two", "done": True, "from_samples": middle["samples"], "from_tokens": middle["tokens"], "to_samples": places["samples"],
               "to_tokens": places["tokens"]}]
    times = [{"from_seconds": 0, "to_seconds": middle["seconds"]}, {"from_seconds": middle["seconds"], "to_seconds": places["seconds"]}]
    path = folder / "long_train_stats.json"
    path.write_text(json.dumps({
        "format": 1, "kind": "train", "model": "long", "experiment": "none", "stage": None, "totals": {}, "best": None, "final": None, "stages": stages,
        "columns": {name: values.tolist() for name, values in columns.items()}, "sources": {},
        "clock": {**{name: values.tolist() for name, values in clock.items()}, "resumes": [middle], "saves": [middle], "stages": times}}))
    return path.stat().st_size


def grow(folder: Path, steps: int) -> None:
    """Add steps as the trainer does, and say from time to time what a step and the files cost."""
    stats, started, done = ModelStats(), time.perf_counter(), 0
    for step in range(1, steps + 1):
        stats.count_step(50, 12_800, Counter(pieces=50, forced_cuts=1))
        place = Progress(step, 50 * step, 12_800 * step, 0.3 * step)
        stats.add_train(place, {"lr": 0.001, "steps": 1.0, "loss_sum": 25_600.0 / step, "n_tokens": 12_800.0, "words_right": 3.0, "words": 7.0,
                                "grad_norm_sum": 1.1, "grad_norms": 1.0, "padding": 99.0, "places": 13_000.0, "step_seconds": 0.3, "data_seconds": 0.01,
                                "forced_cuts": 1.0})
        if step in (1_000, 10_000, 100_000, steps):
            adding, writing = time.perf_counter() - started, time.perf_counter()
            write_stats(folder, "growing", "none", None, stats, [], [])
            writing = time.perf_counter() - writing
            size = (folder / "growing_train_stats.json").stat().st_size
            print(f"{step:>9,} steps   a step {1e6 * adding / (step - done):5.1f} µs   rows {len(stats.train):>6,}   files {size / 1e6:.2f} MB "
                  f"written in {1e3 * writing:4.0f} ms")
            started, done = time.perf_counter(), step


def draw(folder: Path, picture: bool, report: bool) -> None:
    """Read the folder, and draw what is asked for."""
    from lmplay.plotstats.plot import draw_curve, save
    from lmplay.plotstats.report import write_report
    from lmplay.plotstats.runs import X_NAMES, read_folder

    curves, faults = read_folder(folder)
    assert len(curves) == 1
    assert not faults
    if picture:
        save(draw_curve(curves[0], None, X_NAMES, None), folder / "long_train_stats.png")
    if report:
        write_report(curves, folder, folder / "report.html")


def measure(name: str, work: Callable[..., None], *arguments: object) -> None:
    """Do something in a process of its own, imports included, and print its time and its largest memory."""
    context = multiprocessing.get_context("spawn")
    connection, other = context.Pipe()
    started = time.perf_counter()
    process = context.Process(target=_measured, args=(other, work, arguments))
    process.start()
    other.close()
    memory, seconds = connection.recv()
    process.join()
    print(f"{name:32}{time.perf_counter() - started:6.1f} s ({seconds:.1f} s of a core)   {memory / 1e6:6.0f} MB")


def _measured(connection: multiprocessing.connection.Connection, work: Callable[..., None], arguments: tuple[object, ...]) -> None:
    """Work, and tell the largest memory in bytes and the time of the processor in seconds."""
    work(*arguments)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    connection.send((usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), usage.ru_utime + usage.ru_stime))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the file that is drawn")
    parser.add_argument("--steps", type=int, default=1_000_000, help="that are added to the statistics")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lmplay-plots-") as name:
        grow(Path(name), options.steps)
    with tempfile.TemporaryDirectory(prefix="lmplay-plots-") as name:
        folder = Path(name)
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # a process begins with the largest memory of the one that started it
            size = pool.apply(write_long, (folder, options.rows))
        print(f"\n{options.rows:,} rows, {size / 1e6:,.0f} MB")
        for what in ("read", "read, picture", "read, report", "read, picture, report"):
            measure(what, draw, folder, "picture" in what, "report" in what)
        print("target: read, picture and report in under 10 s and 1000 MB")


if __name__ == "__main__":
    main()
