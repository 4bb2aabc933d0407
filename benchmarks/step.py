"""Training speed side by side with the transformers Trainer: the same model, texts, pieces, optimizer and precision.

    python benchmarks/step.py --quick                                                  # anywhere: built-in texts, a tokenizer trained on them
    python benchmarks/step.py --texts train.jsonl --tokenizer FOLDER --model small     # the real thing; --bf16 and --compile for these

Each way trains in a process of its own, `lmp_trainer` with everything on (statistics, accuracy, data, saves at the end); they take turns, and the medians
over the rounds are compared. What counts is real tokens a second, without padding, from the third step on. "pieces" are texts of a length that fills the
context, 8 a step; "short" are paragraphs, 50 a step by mini-batches of 4. The last figure of a line is the share of the machine's matrix products: the
operations of the model's products for these tokens, over the time and over the rate that products of its shapes reach alone in this process.
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

from lmplay.data.tales import Tales

MODELS = {"tiny": (4, 192, 6, 256), "small": (6, 384, 6, 256), "base": (6, 768, 12, 512)}  # blocks, width, heads, context
SHAPES = {"pieces": (8, 8), "short": (50, 4)}  # batch, mini-batch
SKIPPED = 2  # steps that warm up


def write_texts(folder: Path, texts: Path | None) -> dict[str, Path]:
    """Write the rows: whole articles, and their paragraphs."""
    if texts is None:
        rows, short = [Tales(4)[index].text for index in range(200)], [Tales(1)[index].text for index in range(2000)]
    else:
        rows = [json.loads(line)["text"] for line in texts.read_text(encoding="utf-8").splitlines()]
        short = [part for row in rows for part in row.split("\n") if len(part) > 20]
    files = {"pieces": folder / "pieces.jsonl", "short": folder / "short.jsonl"}
    for name, lines in (("pieces", rows), ("short", short)):
        files[name].write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    return files


def run_ours(arguments: argparse.Namespace, folder: Path, file: Path, kind: str) -> float:
    """Train with lmp_trainer; real tokens a second."""
    blocks, width, heads, context = MODELS[arguments.model]
    batch, mini_batch = SHAPES[kind]
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"bench": {"dataset": str(file), "shuffle": False, "validation": 0, "batch_size": batch}}), encoding="utf-8")
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "lmplay.train", "--training-plan", str(plan), "--out-dir", out, "--num-blocks", str(blocks), "--embed-dim", str(width),
                   "--num-heads", str(heads), "--context-len", str(context), "--dropout", "0", "--tokenizer", str(folder / "tokenizer.json"), "--max-steps",
                   str(arguments.steps + SKIPPED), "--disable-optimizer-warmup", "--keep", "0"]
        command += ["--mini-batch-size", str(mini_batch)] if kind == "pieces" else []  # else the default: the room of 4 full ones
        command += ["--amp"] * arguments.bf16 + ["--compile-model"] * arguments.compile
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 75):
            raise SystemExit(done.stdout + done.stderr)
        stats = json.loads((Path(out) / "gpt2ish_model_train_stats.json").read_text(encoding="utf-8"))
    tokens, seconds = stats["columns"]["tokens"], stats["clock"]["seconds"]
    return float((tokens[-1] - tokens[SKIPPED - 1]) / (seconds[-1] - seconds[SKIPPED - 1]))


def run_trainer(arguments: argparse.Namespace, folder: Path, kind: str) -> float:
    """Train with the transformers Trainer in a process of its own; real tokens a second."""
    command = [sys.executable, __file__, "--inside", json.dumps({"kind": kind, "folder": str(folder), "model": arguments.model, "steps": arguments.steps,
                                                                 "bf16": arguments.bf16, "compile": arguments.compile})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return float(done.stdout.splitlines()[-1])


def inside(given: dict[str, Any]) -> None:
    """Be the other process: the Trainer over pieces that lmplay has cut, padded in each mini-batch to its longest; prints real tokens a second."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    blocks, width, heads, context = MODELS[given["model"]]
    batch, mini_batch = SHAPES[given["kind"]]
    pieces = torch.load(Path(given["folder"]) / f"{given['kind']}.pt", weights_only=True)
    per_step = -(-batch // mini_batch)
    config = GPT2Config(vocab_size=pieces["vocab_size"], n_positions=context, n_embd=width, n_layer=blocks, n_head=heads, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0)

    def pad(rows: list[dict[str, list[int]]]) -> dict[str, Any]:
        longest = max(len(row["ids"]) for row in rows)
        ids = torch.tensor([row["ids"] + [0] * (longest - len(row["ids"])) for row in rows])
        real = torch.tensor([[1] * len(row["ids"]) + [0] * (longest - len(row["ids"])) for row in rows])
        return {"input_ids": ids, "attention_mask": real, "labels": ids.masked_fill(real == 0, -100)}

    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as out:
        options = TrainingArguments(out, per_device_train_batch_size=mini_batch, gradient_accumulation_steps=per_step, max_steps=given["steps"] + SKIPPED,
                                    bf16=given["bf16"], torch_compile=given["compile"], report_to="none", save_strategy="no", disable_tqdm=False,
                                    use_cpu=not torch.cuda.is_available(), max_grad_norm=0.0, train_sampling_strategy="sequential",
                                    remove_unused_columns=False, dataloader_num_workers=0)
        rows = [{"ids": ids} for ids in pieces["ids"]]
        Trainer(GPT2LMHeadModel(config), options, train_dataset=rows, data_collator=pad, callbacks=[Clock()]).train()
    measured = pieces["ids"][SKIPPED * per_step * mini_batch:(SKIPPED + given["steps"]) * per_step * mini_batch]
    print(sum(len(ids) - 1 for ids in measured) / (times[-1] - times[SKIPPED - 1]))


def cut(folder: Path, file: Path, kind: str, tokenizer: Any, context: int) -> int:
    """Write the pieces that lmplay makes of a file, for the other; returns how many there are."""
    import torch

    from lmplay.data.batcher import Batcher
    from lmplay.data.continuation import Cutter
    from lmplay.data.stage import StageData
    from lmplay.plan.schema import Stage

    stage = Stage.model_validate({"name": "bench", "dataset": str(file), "shuffle": False, "validation": {"fraction": 0.0}, "epochs": 1})
    batcher = Batcher(StageData(stage, folder, seed=0).samples(), Cutter(tokenizer, context), SHAPES[kind][0])
    ids = [piece.tokens.tolist() for batch in iter(batcher.next, None) for piece in batch.pieces]
    torch.save({"ids": ids, "vocab_size": tokenizer.vocab_size}, folder / f"{kind}.pt")
    return len(ids)


def product_rate(model: str, vocab_size: int, bf16: bool) -> tuple[float, float]:
    """Measure the matrix products of a step alone: operations a second, and the operations that a token needs, forward and backward."""
    import torch

    blocks, width, _, context = MODELS[model]
    dtype, tokens = torch.bfloat16 if bf16 else torch.float32, 8 * context
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] * blocks + [(width, vocab_size)]
    seconds = 0.0
    for n_in, n_out in set(shapes):
        left, right = torch.randn(tokens, n_in, dtype=dtype), torch.randn(n_in, n_out, dtype=dtype)
        times = []
        for _ in range(4):
            started = time.perf_counter()
            left @ right
            times.append(time.perf_counter() - started)
        seconds += min(times) * shapes.count((n_in, n_out))
    per_token = sum(2 * n_in * n_out for n_in, n_out in shapes)
    return per_token * tokens / seconds, 3.0 * per_token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--texts", type=Path, help="a .jsonl file of whole articles, one a row under \"text\"; by default built-in tales")
    parser.add_argument("--tokenizer", help="what lmp_trainer's --tokenizer takes; by default one trained on the texts")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the smallest model, few steps")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(json.loads(arguments.inside))
        return
    if arguments.quick:
        arguments.model, arguments.steps, arguments.rounds = "tiny", 4, 2
    compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Measure both in turns and print the ratios."""
    from lmplay.tokenizer import load_tokenizer, train_tokenizer

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_texts(folder, arguments.texts)
        texts = [json.loads(line)["text"] for line in files["pieces"].read_text(encoding="utf-8").splitlines()]
        tokenizer = load_tokenizer(arguments.tokenizer) if arguments.tokenizer else train_tokenizer(iter(texts), 8192)
        (folder / "tokenizer.json").write_text(tokenizer.spec["json"], encoding="utf-8")
        rate, per_token = product_rate(arguments.model, tokenizer.vocab_size, arguments.bf16)
        precision = ("bfloat16" if arguments.bf16 else "float32") + ", compiled" * arguments.compile
        print(f"{arguments.model}, vocabulary {tokenizer.vocab_size:,}, {precision}; "
              f"its matrix products alone: {rate / 1e9:,.0f} GFLOP/s; real tokens/s, median of {arguments.rounds} (least to most)")
        for kind, file in files.items():
            count = cut(folder, file, kind, tokenizer, MODELS[arguments.model][3])
            if count < (arguments.steps + SKIPPED) * SHAPES[kind][0]:
                raise SystemExit(f"{kind}: only {count} pieces, too few for {arguments.steps + SKIPPED} steps; give more --texts or fewer --steps.")
            speeds: dict[str, list[float]] = {"lmp_trainer": [], "Trainer": []}
            for _ in range(arguments.rounds):
                speeds["lmp_trainer"].append(run_ours(arguments, folder, file, kind))
                speeds["Trainer"].append(run_trainer(arguments, folder, kind))
            for way, found in speeds.items():
                print(f"    {kind:7} {way:12} {median(found):8,.0f}   ({min(found):,.0f} to {max(found):,.0f})   "
                      f"{median(found) * per_token / rate:4.0%} of the products")
            print(f"    {kind:7} lmp_trainer / Trainer = {median(speeds['lmp_trainer']) / median(speeds['Trainer']):.2f}")


if __name__ == "__main__":
    main()
