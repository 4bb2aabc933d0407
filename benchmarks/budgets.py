"""`modern` against `classic` with three budgets: equal tuning runs, equal tokens, equal time; paired by seed and order of the data.

    python benchmarks/budgets.py --texts train.jsonl --held-out validation.jsonl --results budgets.jsonl

Each way tries the same number of settings (batch and learning rate) with the first seed and equal tokens. Its best one is then trained with all seeds: with
equal tokens, and with as many as fit into the time that `classic` takes for them. Speeds are measured in turns. Runs that the file of results has already are
not done again. Model sizes, texts and the judge are those of `ablation.py`. Figures in docs/time_to_loss.md.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ablation import BATCH, CONTEXT, VARIANTS, Variant, train

# The batch and learning rates to try: as many for both.
TRIES = {"classic": [(batch, lr) for batch in (8, 32) for lr in (0.00075, 0.0015, 0.003)],
         "modern": [(batch, lr) for batch in (8, 16) for lr in (0.003, 0.006, 0.012)]}
_RECIPES = {"classic": (32, 0.0015), "modern": (16, 0.003)}
_ROWS = {"classic": VARIANTS["`classic`, learning rate 0.0015"], "modern": VARIANTS["modern"]}


class Results:
    """The results of runs, in a file that grows by one line for each run."""

    def __init__(self, arguments: argparse.Namespace):
        self._arguments = arguments
        self._done = [json.loads(line) for line in arguments.results.read_text().splitlines()] if arguments.results.is_file() else []

    def loss(self, way: str, batch: int, lr: float, steps: int, seed: int) -> float:
        """Return the held-out loss of a run, which is made if it is not there; `steps` are of 8 pieces, whatever the batch."""
        return self._get("loss", way, batch, lr, steps, seed)

    def seconds(self, way: str, batch: int, lr: float, steps: int, number: int) -> float:
        """Return the seconds that the process of a run takes."""
        return self._get("seconds", way, batch, lr, steps, number)

    def _get(self, what: str, *run: Any) -> float:
        found = [one[what] for one in self._done if one["run"] == [what, *run]]
        if found:
            return float(found[0])
        way, batch, lr, steps, seed = run
        variant = Variant(_ROWS[way].settings, {**_ROWS[way].stage, "lr": lr, "batch_size": batch}, _ROWS[way].flags)
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            model = train(variant, seed, argparse.Namespace(**{**vars(self._arguments), "steps": steps}), Path(folder))
            one = {"run": [what, *run], "seconds": time.monotonic() - started}
            if what == "loss":
                from time_to_loss import judge

                one["loss"] = judge(model, self._arguments.held_out, self._arguments.rows, CONTEXT)
        self._done.append(one)
        with self._arguments.results.open("a") as file:
            file.write(json.dumps(one) + "\n")
        print(f"{way}, batches of {batch}, learning rate {lr}, {steps} x {BATCH} pieces, seed {seed}: {what} {one[what]:.4f}", flush=True)
        return float(one[what])


def equal_time(results: Results, best: dict[str, tuple[int, float]], steps: int, rounds: int) -> int:
    """Return how many steps `modern` has in the time that `classic` takes for its steps: start and step of both are measured in turns."""
    few = steps // 4
    times: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        for way in TRIES:
            for length in (few, steps):
                times.setdefault((way, length), []).append(results.seconds(way, *best[way], length, number))
    middle = {key: statistics.median(values) for key, values in times.items()}
    step = (middle["modern", steps] - middle["modern", few]) / (steps - few)
    return max(1, round((middle["classic", steps] - middle["modern", few]) / step + few))


def main() -> None:
    """Do the runs that are lacking, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", required=True, help="JSON lines with `text`")
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help=f"of {BATCH} pieces")
    parser.add_argument("--rounds", type=int, default=2, help="of measuring the speed")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=30, help="held-out texts")
    parser.add_argument("--no-amp", dest="amp", action="store_false", help="float32, where the CPU has no instructions for bfloat16")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    results, steps = Results(arguments), arguments.steps
    tried = {way: [results.loss(way, batch, lr, steps, 0) for batch, lr in tries] for way, tries in TRIES.items()}
    best = {way: min(zip(losses, TRIES[way], strict=True))[1] for way, losses in tried.items()}
    more = equal_time(results, best, steps, arguments.rounds)
    print("| budget | `classic` | `modern` | difference, by seed |\n| --- | ---: | ---: | --- |")
    untuned = {way: tried[way][TRIES[way].index(row)] for way, row in _RECIPES.items()}
    print(f"| one run each, batch and learning rate of the recipes | {untuned['classic']:.3f} | {untuned['modern']:.3f} | one seed |")
    print(f"| {len(tried['modern'])} tuning runs each | {min(tried['classic']):.3f} | {min(tried['modern']):.3f} | one seed |")
    for title, length in ((f"equal tokens, {steps} x {BATCH} pieces", steps), (f"equal time, {more} x {BATCH} pieces for `modern`", more)):
        pairs = [(results.loss("classic", *best["classic"], steps, seed), results.loss("modern", *best["modern"], length, seed))
                 for seed in range(arguments.seeds)]
        differences = [modern - classic for classic, modern in pairs]
        error = f" (mean {statistics.mean(differences):+.3f} ± {statistics.stdev(differences) / len(pairs) ** 0.5:.3f})" if len(pairs) > 1 else ""
        means = [statistics.mean(losses) for losses in zip(*pairs, strict=True)]
        print(f"| {title} | {means[0]:.3f} | {means[1]:.3f} | {', '.join(f'{one:+.3f}' for one in differences)}{error} |")
    print("best: " + ", ".join(f"{way}: batches of {batch}, learning rate {lr}" for way, (batch, lr) in best.items()))


if __name__ == "__main__":
    main()
