"""What watching costs: a step of gpt2ish_tiny with statistics, word accuracy and progress line, against the same step without.

    python benchmarks/overhead.py --rounds 40

Each batch is trained on twice, with and without, in alternating order (A B B A …); the median of the differences is compared with the median step. What
comes in more rarely is measured by itself: writing the statistics files of a long run (every 15 s or less often), and finding the most probable token
rather than only its logit (the loss needs only the latter). The target: all together less than 2 % of a step on a CPU.
"""
from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from lmplay.engine import record
from lmplay.engine.batches import TrainBatch
from lmplay.engine.interrupt import Interrupt
from lmplay.engine.opening import open_run
from lmplay.engine.record import Recorder, try_to_write_stats
from lmplay.engine.stage import StageRunner
from lmplay.engine.telling import stage_start
from lmplay.objectives.linear_cross_entropy import find_largest
from lmplay.plan.load import plan_from_dataset
from lmplay.report.report import Report
from lmplay.stats.histories import MOST_ROWS
from lmplay.track.opening import open_callbacks
from lmplay.train.flags import parse

CLOCK: Callable[[], float] = time.perf_counter


class Terminal(io.StringIO):
    """A terminal that nobody looks at."""

    def isatty(self) -> bool:
        return True


def timed(stage: StageRunner, batch: TrainBatch, recorder: Recorder | None) -> tuple[float, float]:
    """Do a step, and record it if there is a recorder.

    :return: seconds of both, and of recording alone.
    """
    batch = batch if recorder is not None else replace(batch, accuracy_pieces=range(0))
    started = CLOCK()
    sums = stage.step(batch)
    between = CLOCK()
    if recorder is not None:
        assert sums is not None
        recorder.record(batch, sums)
    return CLOCK() - started, CLOCK() - between


def fill(stage: StageRunner) -> None:
    """Fill the histories with as many rows as they can have."""
    for stats in (stage.run.record.stats, stage.stats):
        progress = stage.run.record.progress._asdict()
        figures = {"lr": 0.001, "steps": 1.0, "loss_sum": 1 / 3, "n_tokens": 7.0, "step_seconds": 0.1, "words": 3.0, "words_right": 1.0}
        for step in range(len(stats.train), MOST_ROWS):
            stats.train.add(**{**progress, "step": step}, **figures)


def of_predictions(positions: int, vocabulary: int) -> float:
    """Measure what the index of the largest logit costs beyond its value; seconds."""
    logits = torch.randn(positions, vocabulary)
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(40):
        started = CLOCK()
        find_largest(logits) if number % 2 else logits.amax(1, keepdim=True)
        times[bool(number % 2)].append(CLOCK() - started)
    return max(median(times[True]) - median(times[False]), 0.0)


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Open a run as lmp_trainer does, and print a table."""
    flags = ["--exp", "gpt2ish_tiny", "--dataset", "builtin:tales", "--device", "cpu", "--data-workers", "0", "--out-dir", str(folder), *arguments.flags]
    settings, _ = parse(flags)
    with Interrupt() as interrupt:
        report = Report(["lmp_trainer", *flags], quiet=False)
        run = open_run(settings, plan_from_dataset("builtin:tales"), report, interrupt, open_callbacks(settings.track, settings.callback, print))
        assert run is not None
        with run.closing:
            [open_stage] = run.stages.values()
            stage = StageRunner(run, open_stage)
            stage.begin()
            write_seconds, record._WRITE_SECONDS = record._WRITE_SECONDS, 1e9
            recorder, sys.stderr = Recorder(run, stage), Terminal()
            report.start_stage(stage_start(run, stage))
            batches = [batch for _ in range(arguments.rounds + 2) if (batch := stage.next_batch()) is not None]
            with_, without, recorded = [], [], []
            for number, batch in enumerate(batches):
                for watched in (True, False) if number % 2 else (False, True):
                    seconds, of_record = timed(stage, batch, recorder if watched else None)
                    if number >= 2:  # the first ones find memory and threads
                        (with_ if watched else without).append(seconds)
                        if watched:
                            recorded.append(of_record)
            fill(stage)
            started = CLOCK()
            try_to_write_stats(run, run.record)
            took = CLOCK() - started
            writing = took / max(write_seconds, took / record._WRITE_SHARE)
            sys.stderr = sys.__stderr__
            positions = int(median(batch.batch.n_truth for batch in batches))
            show(with_, without, recorded, writing, of_predictions(positions, run.model.tokenizer.vocab_size))


def show(with_: list[float], without: list[float], recorded: list[float], writing: float, predictions: float) -> None:
    """Print the figures."""
    step = median(without)
    difference = median(a - b for a, b in zip(with_, without, strict=True)) / step
    rows = [("step without", f"{step * 1000:.1f} ms"), ("difference of the pairs", f"{difference:+.2%}"),
            ("  of it, recording the step", f"{median(recorded) / step:.2%}"),
            ("statistics files of a long run", f"{writing:.2%}"), ("the most probable tokens", f"{predictions / step:.2%}"),
            ("all together, by the difference", f"{difference + writing + predictions / step:.2%}"),
            ("all together, by recording", f"{median(recorded) / step + writing + predictions / step:.2%}")]
    for name, value in rows:
        print(f"{name:<45}{value:>10}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--cpu-time", action="store_true", help="count the time of this process on its cores: where other programs are at work")
    parser.add_argument("flags", nargs="*", help="more flags of lmp_trainer, after --")
    arguments = parser.parse_args()
    CLOCK = time.process_time if arguments.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        measure(arguments, Path(folder))
