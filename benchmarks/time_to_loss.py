"""Time to a loss: how long each way to train takes, everything included, to the loss that the references reach in their own time.

    python benchmarks/time_to_loss.py --texts train.jsonl --held-out validation.jsonl --tokenizer gpt2-tokenizer --results results.jsonl

Each run is a process of its own, timed from its start to its end. How many steps fit into a budget of seconds is worked out from two short runs; then whole
runs of that length follow, in turns, so that their schedules end with the budget. All are judged by the same held-out texts, in float32. Runs that the file of
results has already are not done again. Figures in docs/time_to_loss.md.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
BLOCKS, WIDTH, HEADS, CONTEXT, BATCH = 4, 256, 4, 256, 32
# What is compared: flags of lmp_trainer, and keys of its stage.
_SIZES = ["--num-blocks", BLOCKS, "--embed-dim", WIDTH, "--num-heads", HEADS, "--context-len", CONTEXT, "--dropout", 0.0]
_CLASSIC = (["--exp", "gpt2ish", "--lr", 1.5e-3, "--weight-decay", 0.1, "--betas", "0.9,0.95", "--grad-clip", 1.0],
            {"batch_size": BATCH, "lr_schedule": "cosine", "warmup": 0.05})
_MODERN: tuple[list[Any], dict[str, Any]] = (
    ["--exp", "modern", "--lr", 6e-3, "--weight-decay", 0.1, "--grad-clip", 1.0],
    {"batch_size": 8, "optimizer": "muon", "lr_schedule": {"name": "linear", "min_fraction": 0}, "warmup": 0.05})


class Way(NamedTuple):
    """A way to train: flags (None = the transformers Trainer), keys of the stage, whether it is compiled, and keys of the plan's `$model`."""

    flags: list[Any] | None
    stage: dict[str, Any]
    compiled: bool = False
    model: dict[str, Any] | None = None


_SAMPLED = {"settings": {"sampled_tokens": 8192}}
WAYS = {"classic": Way(*_CLASSIC), "classic compiled": Way(*_CLASSIC, True), "Trainer": Way(None, {}), "modern": Way(*_MODERN),
        "modern sampled": Way(*_MODERN, model=_SAMPLED), "modern sampled tied": Way(*_MODERN, model={**_SAMPLED, "tied_head": True}),
        "modern, AdamW": Way(_MODERN[0], {**_MODERN[1], "optimizer": "adamw"}), "gpt2ish, Muon": Way(["--exp", "gpt2ish", *_MODERN[0][2:]], _MODERN[1])}


def train(way: Way, steps: int, seed: int, arguments: argparse.Namespace, folder: Path, name: str = "m") -> tuple[float, Path]:
    """Train for some steps; gives the seconds that the process took, and the model."""
    out = Path(tempfile.mkdtemp(dir=folder))
    if way.flags is None:
        given = {"texts": arguments.texts, "tokenizer": arguments.tokenizer, "steps": steps, "seed": seed, "out": str(out / "trained"), "bf16": arguments.amp,
                 "sizes": [BLOCKS, WIDTH, HEADS, CONTEXT], "batch": BATCH}
        command, model = [sys.executable, str(Path(__file__).with_name("trainer_peer.py")), json.dumps(given)], out / "trained"
    else:
        stage = {"dataset": str(Path(arguments.texts).resolve()), "steps": steps, "validation": 0, **way.stage}
        (out / "plan.json").write_text(json.dumps({"$model": way.model or {}, "train": stage}))
        flags = [*way.flags, *_SIZES, "--tokenizer", arguments.tokenizer, "--training-plan", out / "plan.json", "--out-dir", out,
                 "--model", out / f"{name}.lmp", "--seed", seed, "--save-interval", 0, "--accuracy-pieces", 0, "--mini-batch-size", 16, "--quiet",
                 *["--amp"] * arguments.amp, *["--compile-model"] * way.compiled]
        command, model = [sys.executable, "-m", "lmplay.train", *map(str, flags)], out / f"{name}.lmp"
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.monotonic() - started, model


def judge(model: Path, held_out: str, rows: int, context: int = CONTEXT, tokenizer: str | None = None) -> float:
    """Give the loss on the first held-out texts, in nats per token, of texts cut to pieces without prompts.

    :param tokenizer: of a folder of transformers; the model's own where that is a checkpoint.
    """
    import torch

    from lmplay.checkpoints.trained import open_trained
    from lmplay.exp import build_model, get_experiment
    from lmplay.tokenizer import load_tokenizer

    if model.is_dir():
        from lmplay.exp.hf import open_source, read_own_weights

        module = build_model(get_experiment(f"hf:{model}"), vocab_size=8, **{**open_source(str(model)), "context_len": context})
        module.load_state_dict(read_own_weights(str(model)))
        encode = load_tokenizer(str(tokenizer))
    else:
        trained = open_trained(model)
        module, encode = trained.module, trained.tokenizer
    with open(held_out, encoding="utf-8") as lines:
        texts = [json.loads(line) for line, _ in zip(lines, range(rows), strict=False)]
    ids = [token for text in texts for token in [*encode.encode(text["text"]).ids.tolist(), encode.end_id]]
    pieces = torch.tensor(ids[:len(ids) // (context + 1) * (context + 1)]).view(-1, context + 1)
    loss, module = 0.0, module.eval()
    with torch.no_grad():
        for some in pieces.split(8):
            logits = module.head(module(some[:, :-1])).flatten(0, 1)
            loss += float(torch.nn.functional.cross_entropy(logits, some[:, 1:].flatten(), reduction="sum"))
    return loss / pieces[:, 1:].numel()


def steps_for(way: Way, budget: float, arguments: argparse.Namespace, folder: Path, rates: dict[str, Any], name: str) -> int:
    """Work out how many steps fit into a budget, from two short runs."""
    if name not in rates:
        few, many = (8, 28) if way.flags is None else (20, 80) if not way.compiled else (20, 100)
        train(way, few, 0, arguments, folder)  # fills the caches of compiled code and of indices
        short, long = train(way, few, 0, arguments, folder)[0], train(way, many, 0, arguments, folder)[0]
        rates[name] = [short - few * (long - short) / (many - few), (long - short) / (many - few)]
        print(f"{name}: {rates[name][0]:.1f} s to start and end, {rates[name][1] * 1000:.0f} ms a step", flush=True)
    start, step = rates[name]
    return max(1, round((budget - start) / step))


def main() -> None:
    """Do the runs that are lacking, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", required=True, help="JSON lines with `text`")
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--tokenizer", required=True, help="a folder")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--runs", nargs="+", default=["classic@180", "Trainer@180", "modern@36", "modern sampled@36", "modern sampled@18"],
                        help="WAY@SECONDS; ways: " + ", ".join(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20, help="held-out texts")
    parser.add_argument("--keep", type=Path, help="a folder for the statistics of the runs, for lmp_plotstats")
    parser.add_argument("--no-amp", dest="amp", action="store_false", help="float32, where the CPU has no instructions for bfloat16")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    results = [json.loads(line) for line in arguments.results.read_text().splitlines()] if arguments.results.is_file() else []
    rates: dict[str, Any] = {one["rates_of"]: one["rates"] for one in results if "rates_of" in one}
    done = [one for one in results if "loss" in one]
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, arguments.results.open("a") as file:
        for seed in range(arguments.seeds):
            for run in arguments.runs:
                name, _, budget = run.rpartition("@")
                if any((one["run"], one["seed"]) == (run, seed) for one in done):
                    continue
                known = name in rates
                steps = steps_for(WAYS[name], float(budget), arguments, Path(folder), rates, name)
                if not known:
                    print(json.dumps({"rates_of": name, "rates": rates[name]}), file=file, flush=True)
                seconds, model = train(WAYS[name], steps, seed, arguments, Path(folder), f"{run.replace(' ', '-')}-{seed}")
                for statistics_file in model.parent.glob("*@*_stats.json") if arguments.keep else ():
                    shutil.copy(statistics_file, arguments.keep)
                loss = judge(model, arguments.held_out, arguments.rows, tokenizer=arguments.tokenizer)
                done.append({"run": run, "seed": seed, "steps": steps, "seconds": seconds, "loss": loss})
                print(json.dumps(done[-1]), file=file, flush=True)
                print(f"seed {seed}, {run}: {steps} steps in {seconds:.1f} s, loss {done[-1]['loss']:.4f}", flush=True)
    print(f"\n{'run':<24}{'seeds':>6}{'steps':>8}{'seconds':>9}{'loss':>9}{'± error':>9}")
    for run in dict.fromkeys(one["run"] for one in done):
        mine = [one for one in done if one["run"] == run]
        losses = [one["loss"] for one in mine]
        error = statistics.stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else float("nan")
        seconds = statistics.median(one["seconds"] for one in mine)
        print(f"{run:<24}{len(mine):>6}{mine[0]['steps']:>8}{seconds:>9.1f}{statistics.mean(losses):>9.4f}{error:>9.4f}")


if __name__ == "__main__":
    main()
