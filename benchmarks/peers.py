"""What lmplay's training step is compared with, each in a process of its own: see step.py and sft_speed.py.

Reads {"vocab_size": …, "ids": [[…], …], "learned": […]}, the pieces that lmplay has cut and how many of the last tokens of each are learned, and trains on them
for as many steps; prints real tokens (without padding) a second from the third step on. Uses nothing of lmplay, so that it runs in the environment of the peer.
"""
from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SKIPPED = 2  # steps that warm up


def train_with_trainer(given: dict[str, Any], pieces: dict[str, Any]) -> float:
    """Use the transformers Trainer and GPT2LMHeadModel, each mini-batch padded to its longest piece."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    blocks, width, heads, context = given["sizes"]
    batch, mini_batch = given["shape"]
    per_step = -(-batch // mini_batch)
    config = GPT2Config(vocab_size=pieces["vocab_size"], n_positions=context, n_embd=width, n_layer=blocks, n_head=heads, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0)

    def pad(rows: list[dict[str, Any]]) -> dict[str, Any]:
        longest = max(len(row["ids"]) for row in rows)
        ids = torch.tensor([row["ids"] + [0] * (longest - len(row["ids"])) for row in rows])
        real = torch.tensor([[1] * len(row["ids"]) + [0] * (longest - len(row["ids"])) for row in rows])
        given = torch.tensor([len(row["ids"]) - row["learned"] for row in rows])[:, None] > torch.arange(longest)
        return {"input_ids": ids, "attention_mask": real, "labels": ids.masked_fill((real == 0) | given, -100)}

    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as out:
        options = TrainingArguments(out, per_device_train_batch_size=mini_batch, gradient_accumulation_steps=per_step, max_steps=given["steps"] + SKIPPED,
                                    bf16=given["bf16"], torch_compile=given["compile"], report_to="none", save_strategy="no", disable_tqdm=False,
                                    use_cpu=not torch.cuda.is_available(), max_grad_norm=0.0, train_sampling_strategy="sequential",
                                    remove_unused_columns=False, dataloader_num_workers=0)
        rows = [{"ids": ids, "learned": learned} for ids, learned in zip(pieces["ids"], pieces["learned"], strict=True)]
        Trainer(GPT2LMHeadModel(config), options, train_dataset=rows, data_collator=pad, callbacks=[Clock()]).train()
    measured = pieces["ids"][SKIPPED * per_step * mini_batch:(SKIPPED + given["steps"]) * per_step * mini_batch]
    return sum(len(ids) - 1 for ids in measured) / (times[-1] - times[SKIPPED - 1])


def train_with_litgpt(given: dict[str, Any], pieces: dict[str, Any]) -> float:
    """Use litgpt's model, loss and the steps of its pretraining; its rows are cut out of one long text, always full, so it has no padding."""
    import lightning
    import torch
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy

    blocks, width, heads, context = given["sizes"]
    batch, mini_batch = given["shape"]
    per_step = -(-batch // mini_batch)
    fabric = lightning.Fabric(accelerator="auto", devices=1, precision="bf16-mixed" if given["bf16"] else "32-true")
    config = Config(n_layer=blocks, n_embd=width, n_head=heads, block_size=context, padded_vocab_size=pieces["vocab_size"], bias=True,
                    rotary_percentage=1.0, norm_class_name="LayerNorm", mlp_class_name="GptNeoxMLP", intermediate_size=4 * width, parallel_residual=False)
    model: Any = GPT(config)
    model.lm_head.weight = model.transformer.wte.weight
    model = fabric.setup(torch.compile(model) if given["compile"] else model)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True))
    text = torch.tensor([token for ids in pieces["ids"] for token in ids])
    rows = text[:len(text) // (context + 1) * (context + 1)].view(-1, context + 1)
    times = []
    for step in range(given["steps"] + SKIPPED):
        for number in range(per_step):
            first = (step * per_step + number) * mini_batch % (len(rows) - mini_batch)
            row = rows[first:first + mini_batch]
            with fabric.no_backward_sync(model, enabled=number < per_step - 1):
                loss = chunked_cross_entropy(model(row[:, :-1].contiguous()), row[:, 1:].contiguous())
                fabric.backward(loss / per_step)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter())
    return per_step * mini_batch * context * given["steps"] / (times[-1] - times[SKIPPED - 1])


def train_with_sft_trainer(given: dict[str, Any], pieces: dict[str, Any]) -> list[float]:
    """Use TRL's SFTTrainer with its packing; gives tokens that are learned, and all real tokens, a second."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, GPT2LMHeadModel, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    times: list[float] = []
    counts: list[tuple[int, int]] = []  # learned and real tokens of each mini-batch

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    class Counting(SFTTrainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any) -> Any:
            # the first token of a piece is no target
            counts.append((int((inputs["labels"] != -100).sum()), int((inputs["position_ids"] != 0).sum())))
            return super().training_step(model, inputs, *rest)

    with tempfile.TemporaryDirectory() as out:
        options = SFTConfig(out, per_device_train_batch_size=given["rows"], gradient_accumulation_steps=given["accumulated"],
                            max_steps=given["steps"] + SKIPPED, bf16=given["bf16"], report_to="none", save_strategy="no", disable_tqdm=True,
                            use_cpu=not torch.cuda.is_available(), max_grad_norm=0.0, learning_rate=1e-4, weight_decay=0.01, max_length=given["context"],
                            packing=True, gradient_checkpointing=False)
        rows = Dataset.from_dict({"input_ids": pieces["ids"], "labels": pieces["labels"]})
        Counting(GPT2LMHeadModel.from_pretrained(given["model"]), options, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(given["model"]),
                 callbacks=[Clock()]).train()
    measured = counts[SKIPPED * given["accumulated"]:]
    return [sum(count[kind] for count in measured) / (times[-1] - times[SKIPPED - 1]) for kind in (0, 1)]


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    train = {"Trainer": train_with_trainer, "litgpt": train_with_litgpt, "SFTTrainer": train_with_sft_trainer}[options["peer"]]
    print(train(options, json.loads(Path(options["pieces"]).read_text(encoding="utf-8"))))
