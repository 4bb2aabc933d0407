"""Supervised fine-tuning on chats, side by side with TRL's SFTTrainer and its packing: the same weights, tokens, labels, optimizer and precision.

    python benchmarks/sft_speed.py --chats FOLDER/chat/train.jsonl --tokenizer FOLDER/gpt2-tokenizer [--ways float32,bf16] [--rows 1] [--rounds 3]

Needs `pip install -e ".[test-peers]"`. Both begin with the same GPT-2 of random weights, written by transformers, and train on the same pieces: chats as
lmplay cuts them to the context, with the same tokens to be learned. SFTTrainer packs them itself (`packing=True`: best fit, without attention from one to
the other). lmp_trainer has everything on: statistics, accuracy, reading and tokenizing while it trains, a save at the end. Each trains in a process of its
own; they take turns (A B A B), and the medians over the rounds are compared. Two figures: tokens that are learned (of answers) a second, and all tokens
that the model reads a second, without padding, both from the third step on. A step has as many tokens as can be alike: lmplay's number of pieces, and as
many packed rows as they fill; `--rows` of these go through SFTTrainer's model at once, and lmplay's mini-batches have as many tokens as 8 rows.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from peers import SKIPPED
from step import _run

SIZES = {"tiny": (4, 192, 6, 256), "small": (6, 384, 6, 512), "gpt2": (12, 768, 12, 1024)}  # blocks, width, heads, context
ROWS = 8  # packed rows whose tokens a mini-batch of lmplay may have


def write_model(folder: Path, size: str, tokenizer: str) -> None:
    """Write a GPT-2 of random weights, with its tokenizer, as transformers does."""
    import torch
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    blocks, width, heads, context = SIZES[size]
    torch.manual_seed(0)
    words = AutoTokenizer.from_pretrained(tokenizer)
    words.save_pretrained(folder)
    GPT2LMHeadModel(GPT2Config(vocab_size=len(words), n_positions=context, n_embd=width, n_layer=blocks, n_head=heads, resid_pdrop=0.0, embd_pdrop=0.0,
                               attn_pdrop=0.0, bos_token_id=words.eos_token_id, eos_token_id=words.eos_token_id)).save_pretrained(folder)


def cut(chats: Path, folder: Path, context: int, batch_size: int) -> dict[str, Any]:
    """Give the pieces that lmplay makes of chats: their tokens, and labels, -100 where nothing is learned."""
    from lmplay.data.batcher import Batcher
    from lmplay.data.continuation import Cutter
    from lmplay.data.stage import StageData
    from lmplay.plan.schema import Stage
    from lmplay.tokenizer import load_tokenizer

    stage = Stage.model_validate({"name": "bench", "dataset": str(chats), "shuffle": False, "validation": {"fraction": 0.0}, "epochs": 1})
    batcher = Batcher(StageData(stage, folder, seed=0).open_samples(), Cutter(load_tokenizer(str(folder)), context).cut, batch_size,
                      spread=True)
    ids, labels = [], []
    for piece in (piece for batch in iter(batcher.next, None) for piece in batch.pieces):
        ids.append(piece.tokens.tolist())
        learned = [True] * (len(piece.tokens) - piece.n_prompt) if piece.learned is None else piece.learned.tolist()
        labels.append([-100] * piece.n_prompt + [token if use else -100 for token, use in zip(ids[-1][piece.n_prompt:], learned, strict=True)])
    return {"ids": ids, "labels": labels}


def run_ours(folder: Path, chats: Path, size: str, way: str, steps: int, pieces: dict[str, Any], batch: int) -> list[float]:
    """Train with lmp_trainer; learned tokens and all tokens a second."""
    stage = {"dataset": str(chats), "shuffle": False, "validation": 0, "batch_size": batch, "objective": "sft"}
    (folder / "plan.json").write_text(json.dumps({"bench": stage}), encoding="utf-8")
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "lmplay.train", "--training-plan", str(folder / "plan.json"), "--out-dir", out, "--initial-model", str(folder),
                   "--context-len", str(SIZES[size][3]), "--dropout", "0", "--model", "bench", "--max-steps", str(steps + SKIPPED),
                   "--mini-batch-tokens", str(ROWS * SIZES[size][3]), "--disable-optimizer-warmup", "--lr", "1e-4", "--keep", "0"]
        _run(command + ["--amp"] * (way == "bf16"), allowed=(0, 75))
        stats = json.loads((Path(out) / "bench_train_stats.json").read_text(encoding="utf-8"))
    tokens, seconds = stats["columns"]["tokens"], stats["clock"]["seconds"]
    measured = slice(SKIPPED * batch, (SKIPPED + steps) * batch)
    learned = sum(label != -100 for labels in pieces["labels"][measured] for label in labels[1:])
    if tokens[-1] - tokens[SKIPPED - 1] != learned:
        raise SystemExit(f"lmp_trainer has learned {tokens[-1] - tokens[SKIPPED - 1]:,} tokens, and {learned:,} were to be: these are others.")
    spent = seconds[-1] - seconds[SKIPPED - 1]
    return [learned / spent, sum(len(ids) - 1 for ids in pieces["ids"][measured]) / spent]


def run_trl(folder: Path, size: str, way: str, steps: int, pieces: dict[str, Any], batch: int, rows: int) -> list[float]:
    """Train with TRL's SFTTrainer, these packed rows at once; the same figures."""
    context = SIZES[size][3]
    in_step = sum(map(len, pieces["ids"][:(SKIPPED + steps) * batch])) / (SKIPPED + steps) / context
    given = {"peer": "SFTTrainer", "pieces": str(folder / "pieces.json"), "model": str(folder), "context": context, "rows": rows,
             "accumulated": max(1, round(in_step / rows)), "steps": steps, "bf16": way == "bf16"}
    return [*json.loads(_run([sys.executable, str(Path(__file__).with_name("peers.py")), json.dumps(given)]).splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=Path, required=True, help="a .jsonl file of chats")
    parser.add_argument("--tokenizer", required=True, help="a folder of transformers")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--ways", default="float32", help="float32, bf16; several with commas")
    parser.add_argument("--batch", type=int, default=32, help="pieces of a step")
    parser.add_argument("--rows", type=int, default=8, help="packed rows that go through SFTTrainer's model at once (its own default is 8)")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, arguments.size, arguments.tokenizer)
        pieces = cut(arguments.chats.resolve(), folder, SIZES[arguments.size][3], arguments.batch)
        (folder / "pieces.json").write_text(json.dumps(pieces), encoding="utf-8")
        if len(pieces["ids"]) < (arguments.steps + SKIPPED) * arguments.batch:
            raise SystemExit(f"there are {len(pieces['ids'])} pieces only; give fewer --steps.")
        for way in arguments.ways.split(","):
            speeds: dict[str, list[list[float]]] = {"lmp_trainer": [], "SFTTrainer": []}
            for _ in range(arguments.rounds):
                given = arguments.size, way, arguments.steps, pieces, arguments.batch
                speeds["lmp_trainer"].append(run_ours(folder, arguments.chats.resolve(), *given))
                speeds["SFTTrainer"].append(run_trl(folder, *given, arguments.rows))
            for number, what in enumerate(("learned tokens/s", "all tokens/s")):
                ours, theirs = ([one[number] for one in found] for found in speeds.values())
                ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
                print(f"{arguments.size}, {way}, {what}: lmp_trainer {median(ours):,.0f} ({min(ours):,.0f} to {max(ours):,.0f}), SFTTrainer "
                      f"{median(theirs):,.0f} ({min(theirs):,.0f} to {max(theirs):,.0f}): {median(ours) / median(theirs):.2f} x "
                      f"({min(ratios):.2f} to {max(ratios):.2f} by rounds)", flush=True)


if __name__ == "__main__":
    main()
