"""Training speed side by side with the transformers Trainer and litgpt: the same model, texts, pieces, optimizer and precision.

    python benchmarks/step.py --quick                                                  # anywhere: built-in texts, a tokenizer trained on them
    python benchmarks/step.py --texts train.jsonl --tokenizer FOLDER --models small,base --ways float32,bf16,bf16+compile --litgpt LITGPT/bin/python

Each way trains in a process of its own, `lmp_trainer` with everything on (statistics, accuracy, data, saves at the end); they take turns, and the medians
over the rounds are compared. What counts is real tokens a second, given ones too (titles, ends of pieces before), without padding, from the third step on.
"pieces" are texts of a length that fills the context, 8 a step; "short" are paragraphs, 50 a step by mini-batches of 4. litgpt, which needs other versions of
some packages, runs in an environment of its own (pip install litgpt), on rows that are cut out of one long text. The last figure of a line is the share of
the machine's matrix products: the operations of the model's products for these tokens, over the time and over the rate that the same products reach alone,
forward and backward, in this process.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from peers import SKIPPED

from lmplay.data.tales import Tales

MODELS = {"tiny": (4, 192, 6, 256), "small": (6, 384, 6, 256), "base": (6, 768, 12, 512)}  # blocks, width, heads, context
SHAPES = {"pieces": (8, 8), "short": (50, 4)}  # batch, mini-batch
WAYS = ("float32", "bf16", "float32+compile", "bf16+compile")


def write_texts(folder: Path, texts: Path | None) -> None:
    """Write the rows: whole articles, and their paragraphs."""
    if texts is None:
        rows, short = [Tales(4)[index].text for index in range(200)], [Tales(1)[index].text for index in range(2000)]
    else:
        rows = [json.loads(line)["text"] for line in texts.read_text(encoding="utf-8").splitlines()]
        short = [part for row in rows for part in row.split("\n") if len(part) > 20]
    for kind, lines in (("pieces", rows), ("short", short)):
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")


def run_ours(model: str, way: str, steps: int, folder: Path, kind: str) -> float:
    """Train with lmp_trainer; real tokens a second. It counts those that are learned itself; the given ones of the same pieces are added."""
    blocks, width, heads, context = MODELS[model]
    batch, mini_batch = SHAPES[kind]
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"bench": {"dataset": str(folder / f"{kind}.jsonl"), "shuffle": False, "validation": 0, "batch_size": batch}}), encoding="utf-8")
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "lmplay.train", "--training-plan", str(plan), "--out-dir", out, "--num-blocks", str(blocks), "--embed-dim", str(width),
                   "--num-heads", str(heads), "--context-len", str(context), "--dropout", "0", "--tokenizer", str(folder / "tokenizer.json"), "--max-steps",
                   str(steps + SKIPPED), "--disable-optimizer-warmup", "--keep", "0"]
        command += ["--mini-batch-size", str(mini_batch)] if kind == "pieces" else []  # else the default: a token budget of 4 full ones
        command += ["--amp"] * ("bf16" in way) + ["--compile-model"] * ("compile" in way)
        _run(command, allowed=(0, 75))
        stats = json.loads((Path(out) / "gpt2ish_model_train_stats.json").read_text(encoding="utf-8"))
    tokens, seconds = stats["columns"]["tokens"], stats["clock"]["seconds"]
    pieces = json.loads((folder / f"{kind}-{model}.json").read_text(encoding="utf-8"))
    measured = slice(SKIPPED * batch, (SKIPPED + steps) * batch)
    given = sum(len(ids) - 1 for ids in pieces["ids"][measured]) / sum(pieces["learned"][measured])
    return float((tokens[-1] - tokens[SKIPPED - 1]) / (seconds[-1] - seconds[SKIPPED - 1]) * given)


def run_peer(python: str, peer: str, model: str, way: str, steps: int, folder: Path, kind: str) -> float:
    """Train with another program, in its environment; real tokens a second."""
    given = {"peer": peer, "pieces": str(folder / f"{kind}-{model}.json"), "sizes": MODELS[model], "shape": SHAPES[kind], "steps": steps,
             "bf16": "bf16" in way, "compile": "compile" in way}
    return float(_run([python, str(Path(__file__).with_name("peers.py")), json.dumps(given)]).splitlines()[-1])


def _run(command: list[str], allowed: tuple[int, ...] = (0,)) -> str:
    """Run a program to its end; what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in allowed:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def cut(folder: Path, kind: str, tokenizer: Any, model: str) -> int:
    """Write the pieces that lmplay makes of a file, for the others; returns how many there are."""
    from lmplay.data.batcher import Batcher
    from lmplay.data.continuation import Cutter
    from lmplay.data.stage import StageData
    from lmplay.plan.schema import Stage

    stage = Stage.model_validate({"name": "bench", "dataset": str(folder / f"{kind}.jsonl"), "shuffle": False, "validation": {"fraction": 0.0}, "epochs": 1})
    batcher = Batcher(StageData(stage, folder, seed=0).open_samples(), Cutter(tokenizer, MODELS[model][3]).cut, SHAPES[kind][0])
    pieces = [piece for batch in iter(batcher.next, None) for piece in batch.pieces]
    given = {"ids": [piece.tokens.tolist() for piece in pieces], "learned": [piece.n_truth for piece in pieces], "vocab_size": tokenizer.vocab_size}
    (folder / f"{kind}-{model}.json").write_text(json.dumps(given), encoding="utf-8")
    return len(pieces)


def product_rate(model: str, vocab_size: int, bf16: bool) -> tuple[float, float]:
    """Measure the matrix products of a step alone: operations a second, and the operations that a token needs, forward and backward.

    Of each product of the model: the forward pass, the gradient of its input and that of its weight, into memory that is there. This is the most that a step
    could reach if it did nothing else.
    """
    import torch

    blocks, width, _, context = MODELS[model]
    dtype, tokens = torch.bfloat16 if bf16 else torch.float32, 8 * context
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] * blocks + [(width, vocab_size)]
    seconds = 0.0
    for n_in, n_out in set(shapes):
        inputs, weight, outputs = (torch.randn(shape, dtype=dtype) for shape in ((tokens, n_in), (n_out, n_in), (tokens, n_out)))
        for left, right in ((inputs, weight.T), (outputs, weight), (outputs.T, inputs)):
            result, times = left @ right, []
            for _ in range(4):
                started = time.perf_counter()
                torch.mm(left, right, out=result)
                times.append(time.perf_counter() - started)
            seconds += min(times) * shapes.count((n_in, n_out))
    per_token = 3.0 * sum(2 * n_in * n_out for n_in, n_out in shapes)
    return per_token * tokens / seconds, per_token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="small", help=f"of {', '.join(MODELS)}; several with commas")
    parser.add_argument("--ways", default="float32", help=f"of {', '.join(WAYS)}; several with commas")
    parser.add_argument("--peers-way", choices=WAYS, help="the way of the others, where it is not that of lmp_trainer: each at its best")
    parser.add_argument("--kinds", default="pieces,short", help="of pieces, short")
    parser.add_argument("--texts", type=Path, help="a .jsonl file of whole articles, one a row under \"text\"; by default built-in tales")
    parser.add_argument("--tokenizer", help="what lmp_trainer's --tokenizer takes; by default one trained on the texts")
    parser.add_argument("--litgpt", metavar="PYTHON", help="the Python of an environment with litgpt, to compare with it too")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the smallest model, few steps")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.models, arguments.steps, arguments.rounds = "tiny", 4, 2
    for name, known in (("models", tuple(MODELS)), ("ways", WAYS), ("kinds", tuple(SHAPES))):
        chosen = getattr(arguments, name).split(",")
        if unknown := [word for word in chosen if word not in known]:
            parser.error(f"--{name} {','.join(unknown)}: allowed is {', '.join(known)}")
        setattr(arguments, name, chosen)
    compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Measure all of them in turns and print the ratios."""
    import torch

    from lmplay.tokenizer import load_tokenizer, train_tokenizer

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_texts(folder, arguments.texts)
        texts = [json.loads(line)["text"] for line in (folder / "pieces.jsonl").read_text(encoding="utf-8").splitlines()]
        tokenizer = load_tokenizer(arguments.tokenizer) if arguments.tokenizer else train_tokenizer(iter(texts), 8192)
        (folder / "tokenizer.json").write_text(tokenizer.spec["json"], encoding="utf-8")
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, vocabulary {tokenizer.vocab_size:,}; "
              f"real tokens/s, median of {arguments.rounds} (least to most)")
        for model in arguments.models:
            for kind in arguments.kinds:
                count = cut(folder, kind, tokenizer, model)
                if count < (arguments.steps + SKIPPED) * SHAPES[kind][0]:
                    raise SystemExit(f"{kind}: only {count} pieces, too few for {arguments.steps + SKIPPED} steps; give more --texts or fewer --steps.")
            for way in arguments.ways:
                compare_way(arguments, folder, model, way, tokenizer.vocab_size)


def compare_way(arguments: argparse.Namespace, folder: Path, model: str, way: str, vocab_size: int) -> None:
    """Measure one model in one precision, compiled or not."""
    rate, per_token = product_rate(model, vocab_size, "bf16" in way)
    others = f" (the others: {arguments.peers_way})" if arguments.peers_way else ""
    print(f"{model}, {way}{others}: its matrix products alone {rate / 1e9:,.0f} GFLOP/s", flush=True)
    for kind in arguments.kinds:
        peers = {"Trainer": sys.executable, **({"litgpt": arguments.litgpt} if arguments.litgpt and kind == "pieces" else {})}
        speeds: dict[str, list[float]] = {name: [] for name in ("lmp_trainer", *peers)}
        for _ in range(arguments.rounds):
            speeds["lmp_trainer"].append(run_ours(model, way, arguments.steps, folder, kind))
            for peer, python in peers.items():
                speeds[peer].append(run_peer(python, peer, model, arguments.peers_way or way, arguments.steps, folder, kind))
        for name, found in speeds.items():
            times = "" if name == "lmp_trainer" else f"   lmp_trainer is {median(speeds['lmp_trainer']) / median(found):.2f} x"
            print(f"    {kind:7} {name:12} {median(found):8,.0f}   ({min(found):,.0f} to {max(found):,.0f})   "
                  f"{median(found) * per_token / rate:4.0%} of the products{times}", flush=True)


if __name__ == "__main__":
    main()
