"""Little text and much time: the lowest held-out loss of `--recipe slow` against that of `--recipe modern`, at any point of runs of the same length.

    python benchmarks/slow.py --texts train.jsonl --held-out validation.jsonl --tokenizer gpt2-tokenizer --results slow.jsonl --seconds 600

How many steps fit into the seconds is worked out from two short runs of each recipe. Then whole runs of that many steps follow, in turns: their schedules end
with the time, and a machine that is busy meanwhile changes nothing but the seconds.
Both have the model of `modern_tiny` and the same held-out texts, judged 40 times in a run. Runs that the file of results has already are not done again.
Figures in docs/recipes.md.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VALIDATIONS = 40


def train(recipe: str, steps: int, seed: int, arguments: argparse.Namespace) -> tuple[float, list[float]]:
    """Train for some steps; returns the seconds that the process took, and the held-out losses in nats a token."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        stage = {"dataset": str(Path(arguments.texts).resolve()), "steps": steps,
                 "validation": {"dataset": str(Path(arguments.held_out).resolve()), "samples": arguments.samples}}
        (out / "plan.json").write_text(json.dumps({"$model": {"settings": {"sampled_tokens": arguments.sampled} if arguments.sampled else {}}, "train": stage}))
        flags = ["--recipe", recipe, "--exp", "modern_tiny", "--tokenizer", arguments.tokenizer, "--training-plan", out / "plan.json", "--out-dir", out,
                 "--model", "m", "--seed", seed, "--save-interval", 0, "--accuracy-pieces", 0, "--validation-interval", f"{max(1, steps // VALIDATIONS)}steps",
                 "--quiet", *["--amp"] * arguments.amp]
        command = [sys.executable, "-m", "lmplay.train", *map(str, flags)]
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return time.monotonic() - started, json.loads((out / "m_validate_stats.json").read_text())["columns"]["loss"]


def steps_for(recipe: str, arguments: argparse.Namespace, rates: dict[str, list[float]]) -> int:
    """Work out how many steps fit into the seconds, from two short runs."""
    if recipe not in rates:
        short, long = (train(recipe, steps, 0, arguments)[0] for steps in (VALIDATIONS, 3 * VALIDATIONS))
        step = (long - short) / (2 * VALIDATIONS)
        # both have as many validations, so their time is in the first number
        rates[recipe] = [short - VALIDATIONS * step, step]
        print(f"{recipe}: {rates[recipe][0]:.1f} s to start, validate and end, {step * 1000:.0f} ms a step", flush=True)
    start, step = rates[recipe]
    return max(1, round((arguments.seconds - start) / step))


def main() -> None:
    """Do the runs that are lacking, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", required=True, help="JSON lines with `text`")
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--tokenizer", required=True, help="a folder, or train:SIZE")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recipes", nargs="+", default=["modern", "slow"])
    parser.add_argument("--samples", type=int, default=4, help="held-out texts of a validation")
    parser.add_argument("--sampled", type=int, default=4096, help="tokens of the vocabulary in the softmax of training (`sampled_tokens`), 0 = all")
    parser.add_argument("--no-amp", dest="amp", action="store_false", help="float32, where the CPU has no instructions for bfloat16")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = [json.loads(line) for line in arguments.results.read_text().splitlines()] if arguments.results.is_file() else []
    rates = {one["rates_of"]: one["rates"] for one in results if "rates_of" in one}
    done = [one for one in results if "lowest" in one]
    with arguments.results.open("a") as file:
        for seed in range(arguments.seeds):
            for recipe in arguments.recipes:
                if any((one["recipe"], one["seed"]) == (recipe, seed) for one in done):
                    continue
                known = recipe in rates
                steps = steps_for(recipe, arguments, rates)
                if not known:
                    print(json.dumps({"rates_of": recipe, "rates": rates[recipe]}), file=file, flush=True)
                seconds, losses = train(recipe, steps, seed, arguments)
                done.append({"recipe": recipe, "seed": seed, "steps": steps, "seconds": seconds, "lowest": min(losses), "last": losses[-1],
                             "at": (losses.index(min(losses)) + 1) / len(losses), "losses": losses})
                print(json.dumps(done[-1]), file=file, flush=True)
                print(f"seed {seed}, {recipe}: {steps} steps in {seconds:.0f} s, lowest {min(losses):.4f}, last {losses[-1]:.4f}", flush=True)
    print("| recipe | seeds | steps | seconds | lowest loss | at | last loss |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for recipe in arguments.recipes:
        mine = [one for one in done if one["recipe"] == recipe]
        error = statistics.stdev(one["lowest"] for one in mine) / len(mine) ** 0.5 if len(mine) > 1 else float("nan")
        middle = {key: statistics.mean(one[key] for one in mine) for key in ("seconds", "lowest", "at", "last")}
        print(f"| {recipe} | {len(mine)} | {mine[0]['steps']} | {middle['seconds']:.0f} | {middle['lowest']:.3f} ± {error:.3f} "
              f"| {middle['at']:.0%} of the run | {middle['last']:.3f} |")


if __name__ == "__main__":
    main()
