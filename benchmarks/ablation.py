"""What the parts of `modern` are worth: each left out or replaced by another, with the same tokens, several seeds, and the standard error of the difference.

    python benchmarks/ablation.py --texts train.jsonl --held-out validation.jsonl --results ablation.jsonl

All models are trained on the same batches of the same seed, so differences are paired by seed. Runs that the file of results has already are not done again.
The losses do not depend on how busy the machine is. Figures in docs/time_to_loss.md.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
CONTEXT, BATCH = 128, 8


class Variant(NamedTuple):
    """What differs from `modern`: settings of the model, keys of the stage, and flags."""

    settings: dict[str, Any]
    stage: dict[str, Any]
    flags: tuple[Any, ...] = ()


_STAGE = {"batch_size": BATCH, "optimizer": "muon", "lr": 0.006, "lr_schedule": {"name": "linear", "to": 0}, "warmup": 0.05, "weight_decay": 0.1,
          "grad_clip": 1.0}
_ADAMW = {"optimizer": {"name": "adamw", "betas": [0.9, 0.95]}}
_GPT2 = ("--exp", "gpt2ish")
VARIANTS = {
    "modern": Variant({}, {}),
    "AdamW, learning rate 0.003": Variant({}, {**_ADAMW, "lr": 0.003}),
    "GPT-2's model (`gpt2ish`)": Variant({}, {}, _GPT2),
    "no norm of queries and keys": Variant({"query_key_norm": False}, {}),
    "no zero projections": Variant({"zero_projections": False}, {}),
    "no norm of embeddings": Variant({"embedding_norm": False}, {}),
    "SwiGLU": Variant({"mlp": "swiglu"}, {}),
    "tied head": Variant({}, {}, ("--tied-head",)),
    "value residual": Variant({"value_residual": True}, {}),
    "cosine to a tenth": Variant({}, {"lr_schedule": {"name": "cosine", "to": 0.1}}),
    "constant learning rate": Variant({}, {"lr_schedule": "constant"}),
    "batches of 32": Variant({}, {"batch_size": 32}),
    "no weight decay": Variant({}, {"weight_decay": 0.0}),
    "`classic`, learning rate 0.0015": Variant({}, {**_ADAMW, "lr": 0.0015, "lr_schedule": {"name": "cosine", "to": 0.1}, "batch_size": 32}, _GPT2),
    "`classic`, learning rate 0.003": Variant({}, {**_ADAMW, "lr": 0.003, "lr_schedule": {"name": "cosine", "to": 0.1}, "batch_size": 32}, _GPT2),
}


def train(variant: Variant, seed: int, arguments: argparse.Namespace, out: Path) -> Path:
    """Train a model; returns its file."""
    stage = {**_STAGE, **variant.stage}
    stage["steps"] = arguments.steps * BATCH // stage["batch_size"]
    plan, model = out / "plan.json", out / "m.lmp"
    stage |= {"dataset": str(Path(arguments.texts).resolve()), "validation": 0}
    plan.write_text(json.dumps({"$model": {"settings": variant.settings}, "train": stage}))
    flags = ["--exp", "modern", *variant.flags, "--num-blocks", 4, "--embed-dim", 128, "--num-heads", 4, "--context-len", CONTEXT, "--dropout", 0,
             "--tokenizer", f"train:{arguments.vocabulary}", "--training-plan", plan, "--out-dir", out, "--model", model, "--seed", seed, "--save-interval", 0,
             "--accuracy-pieces", 0, "--mini-batch-size", 32, "--quiet", *["--amp"] * arguments.amp]
    command = [sys.executable, "-m", "lmplay.train", *map(str, flags)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return model


def show(done: list[dict[str, Any]]) -> None:
    """Print the table: the mean loss of each variant, and its difference to `modern`, by seed."""
    losses = {name: {one["seed"]: one["loss"] for one in done if one["variant"] == name} for name in VARIANTS}
    print("| variant | loss | against `modern` | standard error | seeds |\n| --- | ---: | ---: | ---: | ---: |")
    for name, by_seed in losses.items():
        differences = [loss - losses["modern"][seed] for seed, loss in by_seed.items() if seed in losses["modern"]]
        if differences:
            error = f"{statistics.stdev(differences) / len(differences)**0.5:.3f}" if len(differences) > 1 and name != "modern" else ""
            against = "" if name == "modern" else f"{statistics.mean(differences):+.3f}"
            print(f"| {name} | {statistics.mean(by_seed.values()):.3f} | {against} | {error} | {len(by_seed)} |")


def main() -> None:
    """Do the runs that are lacking, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", required=True, help="JSON lines with `text`")
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), help=", ".join(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help=f"of {BATCH} pieces")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=30, help="held-out texts")
    parser.add_argument("--no-amp", dest="amp", action="store_false", help="float32, where the CPU has no instructions for bfloat16")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from time_to_loss import judge

    done = [json.loads(line) for line in arguments.results.read_text().splitlines()] if arguments.results.is_file() else []
    with arguments.results.open("a") as file:
        for seed in range(arguments.seeds):
            for name in arguments.variants:
                if any((one["variant"], one["seed"]) == (name, seed) for one in done):
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    model = train(VARIANTS[name], seed, arguments, Path(folder))
                    done.append({"variant": name, "seed": seed, "loss": judge(model, arguments.held_out, arguments.rows, CONTEXT)})
                print(json.dumps(done[-1]), file=file, flush=True)
                print(f"seed {seed}, {name}: {done[-1]['loss']:.4f}", flush=True)
    show(done)


if __name__ == "__main__":
    main()
