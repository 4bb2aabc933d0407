"""The transformers Trainer with GPT-2, as its examples for language modelling run it: texts joined and cut into blocks, AdamW, a learning rate that falls
linearly. See time_to_loss.py. Uses nothing of lmplay.
"""
from __future__ import annotations

import json
import sys
import tempfile


def main() -> None:
    """Train and write the model."""
    given = json.loads(sys.argv[1])
    import torch
    from datasets import load_dataset
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, default_data_collator, set_seed

    set_seed(given["seed"])
    blocks, width, heads, context = given["sizes"]
    tokenizer = AutoTokenizer.from_pretrained(given["tokenizer"])
    tokenizer.model_max_length = 10**9
    with tempfile.TemporaryDirectory() as cache:
        texts = load_dataset("json", data_files=given["texts"], split="train", cache_dir=cache)

        def tokenize(rows: dict) -> dict:
            return {"input_ids": [[*ids, tokenizer.eos_token_id] for ids in tokenizer(rows["text"])["input_ids"]]}

        def join(rows: dict) -> dict:
            ids = [token for one in rows["input_ids"] for token in one]
            blocks = [ids[start:start + context] for start in range(0, len(ids) // context * context, context)]
            return {"input_ids": blocks, "labels": blocks}

        rows = texts.map(tokenize, batched=True, remove_columns=texts.column_names).map(join, batched=True)
        config = GPT2Config(vocab_size=len(tokenizer), n_positions=context, n_embd=width, n_layer=blocks, n_head=heads, resid_pdrop=0.0, embd_pdrop=0.0,
                            attn_pdrop=0.0, bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id)
        options = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=given["batch"], max_steps=given["steps"], bf16=given["bf16"],
                                    learning_rate=1.5e-3, weight_decay=0.1, adam_beta2=0.95, warmup_steps=round(0.05 * given["steps"]),
                                    lr_scheduler_type="cosine", report_to="none", save_strategy="no", use_cpu=not torch.cuda.is_available(), seed=given["seed"])
        model = GPT2LMHeadModel(config)
        Trainer(model, options, train_dataset=rows, data_collator=default_data_collator).train()
        model.save_pretrained(given["out"])


if __name__ == "__main__":
    main()
