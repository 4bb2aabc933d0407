"""Peak memory of training gpt2ish by option, beside the transformers Trainer: the same sizes, optimizer and tokens, AdamW, no dropout, whole rows.

    python benchmarks/memory.py                                    # 8 rows of 512: eager, float32 and bf16
    python benchmarks/memory.py --compile                          # compiled as well, with and without a budget: minutes on a CPU
    python benchmarks/memory.py --context 1024 --largest 22        # on a GPU: the largest mini-batch that fits into N GiB

Each way is a process of its own that does two steps (the second has the optimizer's state). On a CPU the peak is that of the whole process (its resident
set, some 0.3 GiB of which are torch itself, 0.4 GiB with the Trainer's imports), on a GPU what torch has allocated. To be at most 75 % of the Trainer's.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from typing import Any

BLOCKS, WIDTH, HEADS, VOCABULARY = 6, 768, 12, 50257  # gpt2ish
WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float32, 2 rows a mini-batch": {"rows_at_once": 2},
    "float32, checkpointing": {"activation_checkpointing": 1},
    "--amp": {"amp": True},
    "--amp, 2 rows a mini-batch": {"amp": True, "rows_at_once": 2},
    "--amp, checkpointing": {"amp": True, "activation_checkpointing": 1},
    "--amp, checkpointing 2": {"amp": True, "activation_checkpointing": 2},
    "Trainer, float32": {"trainer": True},
    "Trainer, bf16": {"trainer": True, "amp": True},
    "Trainer, bf16, gradient_checkpointing": {"trainer": True, "amp": True, "activation_checkpointing": 1},
}
COMPILED: dict[str, dict[str, Any]] = {
    "--amp --compile-model": {"amp": True, "compile_model": True},
    "--amp --compile-model, budget 0.5": {"amp": True, "compile_model": True, "activation_memory_budget": 0.5},
    "Trainer, bf16, torch_compile": {"trainer": True, "amp": True, "compile_model": True},
}


def ours(way: dict[str, Any], rows: int, context: int) -> None:
    """Do two steps as lmp_trainer does them."""
    import numpy as np
    import torch

    from lmplay.data.batcher import Batch
    from lmplay.data.continuation import Piece
    from lmplay.data.samples import Sample
    from lmplay.data.sentences import Cut
    from lmplay.device.model import DeviceModel
    from lmplay.device.runtime import Runtime
    from lmplay.engine.batches import Grouping, TrainBatch
    from lmplay.engine.step import train_step
    from lmplay.exp import build_model, get_experiment
    from lmplay.objectives.next_token import NextToken
    from lmplay.optim.optimizers import build_optimizers
    from lmplay.plan.settings import Settings

    at_once = way.pop("rows_at_once", rows)
    runtime = Runtime(Settings(**way))
    model = build_model(get_experiment("gpt2ish"), vocab_size=VOCABULARY, context_len=context, num_blocks=BLOCKS, embed_dim=WIDTH, num_heads=HEADS, dropout=0.0)
    device_model = DeviceModel(model, runtime.wrap(model.to(runtime.device), context, print), runtime)
    optimizers = build_optimizers("adamw", model, 0.0006)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (rows, context + 1))
    pieces = [Piece(Sample("", ""), row, 1, "", Cut.END, 0, True, starts=row[:0], cuttable=row[:0]) for row in tokens]
    grouping = Grouping(at_once, runtime.length_multiple, context, runtime.packs(model))
    batch = TrainBatch(Batch(pieces, {}), grouping.mini_batches(pieces, token_budget=0), 0, [], range(4))
    for _ in range(2):
        result = train_step(device_model, optimizers, NextToken(), batch, grad_clip=1.0, interrupted=lambda: False)
        assert result is not None
        assert torch.isfinite(result.loss_sum)


def trainer(way: dict[str, Any], rows: int, context: int) -> None:
    """Do two steps of the transformers Trainer."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=context, n_embd=WIDTH, n_layer=BLOCKS, n_head=HEADS, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0)
    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, VOCABULARY, (2 * rows, context))]
    with tempfile.TemporaryDirectory() as out:
        options = TrainingArguments(out, per_device_train_batch_size=rows, max_steps=2, bf16=way.get("amp", False), report_to="none", save_strategy="no",
                                    torch_compile=way.get("compile_model", False), gradient_checkpointing=bool(way.get("activation_checkpointing")),
                                    use_cpu=not torch.cuda.is_available(), disable_tqdm=True)
        Trainer(GPT2LMHeadModel(config), options, train_dataset=data).train()


def inside(way: dict[str, Any], rows: int, context: int) -> None:
    """Be the process that is measured; prints the bytes of its peak."""
    (trainer if way.pop("trainer", False) else ours)(way, rows, context)
    import torch

    from lmplay.device.memory import peak_memory

    print(peak_memory(torch.device("cuda" if torch.cuda.is_available() else "cpu")))


def measure(way: dict[str, Any], rows: int, context: int) -> int | None:
    """Give the peak of a way in bytes; None where it does not get through."""
    done = subprocess.run([sys.executable, __file__, "--inside", json.dumps([way, rows, context])], capture_output=True, text=True, check=False)
    if done.returncode and "out of memory" not in done.stderr and done.returncode > 0:
        raise SystemExit(done.stderr)
    return None if done.returncode else int(done.stdout.splitlines()[-1])


def largest(way: dict[str, Any], context: int, most: float) -> int:
    """Give the most rows whose step stays within N bytes, to an eighth: doubled, then halved back."""
    fits, step = 0, 1
    while (peak := measure(way, fits + step, context)) is not None and peak <= most:
        fits, step = fits + step, max(1, fits + step)
    while step > max(1, fits // 8):
        step //= 2
        peak = measure(way, fits + step, context)
        fits += step if peak is not None and peak <= most else 0
    return fits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--only", default="", help="ways with this in their name")
    parser.add_argument("--largest", type=float, metavar="GiB", help="look for the largest mini-batch instead")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(*json.loads(arguments.inside))
        return
    print(f"gpt2ish, vocabulary {VOCABULARY:,}, context {arguments.context}, " + (f"{arguments.rows} rows a step" if arguments.largest is None else
                                                                                 f"rows at once within {arguments.largest:g} GiB"), flush=True)
    for name, way in {**WAYS, **(COMPILED if arguments.compile else {})}.items():
        if arguments.only not in name or (arguments.largest and "rows_at_once" in way):
            continue
        if arguments.largest:
            print(f"    {name:40} {largest(dict(way), arguments.context, arguments.largest * 2**30):6} rows", flush=True)
        else:
            peak = measure(dict(way), arguments.rows, arguments.context)
            print(f"    {name:40} " + ("out of memory" if peak is None else f"{peak / 2**30:6.2f} GiB"), flush=True)


if __name__ == "__main__":
    main()
