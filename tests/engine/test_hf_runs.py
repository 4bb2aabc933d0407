"""Runs of models of transformers: begun with their weights and their tokenizer, gone on with without their folder, written with, and written back."""
from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers import compare_runs, load, stop_at, write_plan

from lmplay.export.command import run as export
from lmplay.generate.command import run as generate
from lmplay.train.__main__ import main

transformers = pytest.importorskip("transformers")
PLAN = {"one": {"dataset": "rows.jsonl", "steps": 5, "lr": 0.001, "optimizer": "muon"}}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 96,
         "head_dim": 8}


@pytest.fixture
def folder(corpus) -> Path:
    """A random Qwen 3 with a small tokenizer of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    fast.train_from_iterator(["A cat sat on the mat. The dog slept."] * 9, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|endoftext|>")
    tokenizer.save_pretrained(corpus / "tiny")
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model("qwen3", vocab_size=320, tie_word_embeddings=True, pad_token_id=0, **SIZES)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(corpus / "tiny")
    return corpus / "tiny"


def run(capsys, *flags, code=0):
    found = main(["--training-plan", "plan.json", "--batch-size", "6", "--mini-batch-size", "3", "--device", "cpu", *map(str, flags)])
    said = "".join(capsys.readouterr())
    assert found == code, said
    return said


def test_a_run_begins_with_the_weights_and_resumes_without_the_folder(corpus, capsys, folder, monkeypatch):
    write_plan(corpus, {"$model": {"exp": "hf:tiny"}, **PLAN})
    described = run(capsys, "--describe")
    assert "experiment hf:tiny, vocabulary" in described
    run(capsys, "--out-dir", "whole")
    stop_at(monkeypatch, [2, 4])
    for code in (130, 130, 0):
        run(capsys, "--out-dir", "stopped", code=code)
        shutil.rmtree(folder, ignore_errors=True)
    assert compare_runs(corpus / "whole", corpus / "stopped") == []
    assert generate(["--model", "whole/hf_tiny_model.lmp", "--prompt", "A cat", "--max-tokens", "9"]) == 0
    assert export(["whole/hf_tiny_model.lmp", "written"]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained("written")
    state = load(corpus / "whole" / "hf_tiny_model.lmp")["model"]["state"]
    assert all(torch.equal(value, state[f"causal.{name}"]) for name, value in model.state_dict().items())
    assert transformers.AutoTokenizer.from_pretrained("written")("A cat")["input_ids"]
    (corpus / "written" / "mine.txt").write_text("kept")
    assert export(["whole/hf_tiny_model.lmp", "written"]) == 2
    assert "lmp_export: written: is there and not empty" in capsys.readouterr().err
    assert (corpus / "written" / "mine.txt").read_text() == "kept"
    assert not [*corpus.glob(".written*")]


def test_the_first_loss_is_that_of_its_weights(corpus, capsys, folder):
    write_plan(corpus, PLAN)
    run(capsys, "--exp", "hf:tiny", "--lr", "1e-30", "--max-steps", 1, code=75)
    run(capsys, "--exp", "hf-fresh:tiny", "--lr", "1e-30", "--max-steps", 1, code=75)
    begun, fresh = (load(Path(f"out_gpt/{name}_tiny_model.lmp"))["model"]["state"] for name in ("hf", "hf-fresh"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all(torch.allclose(begun[f"causal.{name}"], value) for name, value in theirs.items())
    assert not torch.allclose(fresh["causal.model.embed_tokens.weight"], theirs["model.embed_tokens.weight"])
    text = run(capsys, "--exp", "hf:tiny", "--activation-checkpointing", "on", "--amp", "--reset-history", "--pack", "on")
    assert "5 steps" in text


def test_what_does_not_fit_is_refused(corpus, capsys, folder):
    write_plan(corpus, PLAN)
    assert "experiment hf:nowhere/at-all: " in run(capsys, "--exp", "hf:nowhere/at-all", code=2)
    assert "has no setting 'num_blocks'" in run(capsys, "--exp", "hf:tiny", "--num-blocks", 3, code=2)
    assert "--context-len 200 is more than the model's 96 positions; give 96 or less" in run(capsys, "--exp", "hf:tiny", "--context-len", 200, code=2)
    (folder / "model.safetensors").unlink()
    assert "To start with fresh weights: --exp hf-fresh:tiny" in run(capsys, "--exp", "hf:tiny", code=2)


def test_a_recipe_leaves_out_what_the_model_does_not_have(corpus, capsys, folder):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "steps": 5}})
    recipe = ("--exp", "hf-fresh:tiny", "--recipe", "modern", "--max-steps", 1)
    said = " ".join(run(capsys, *recipe, code=75).split())
    assert "the lowest loss for the same time; optimizer muon, lr 0.003, lr_width 256" in said
    assert "; left out, as hf-fresh:tiny has no such setting: dropout; typed: " in said
    assert "has no setting 'dropout'" in run(capsys, *recipe, "--dropout", 0.1, "--model", "other", code=2)


def test_size_and_what_is_frozen_are_described(corpus, capsys, folder):
    write_plan(corpus, {"one": {**PLAN["one"], "freeze": ["causal.model.layers.0.*", "causal.model.embed_tokens.*"]}, "two": PLAN["one"]})
    said = " ".join(run(capsys, "--exp", "hf:tiny", "--describe").split())
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    total = sum(parameter.numel() for parameter in model.parameters())
    count = sum(parameter.numel() for part in (model.model.embed_tokens, model.model.layers[0]) for parameter in part.parameters())
    assert f" all {total:,} memory" in said
    assert f" frozen one: {count:,} parameters ({count / total:.1%}): causal.model.embed_tokens.weight, causal.model.layers.0." in said
    assert "two: " not in said.partition(" frozen ")[2].partition(" a step ")[0]


def test_a_tokenizer_whose_ids_are_other_tokens_is_refused(corpus, capsys, folder):
    write_plan(corpus, {"$tokenizer": "bytes", **PLAN})
    said = run(capsys, "--exp", "hf:tiny", code=2)
    assert "experiment hf:tiny: its weights are for its own tokenizer, and 257 of the 257 ids of bytes are other tokens there" in said
    assert "--exp hf-fresh:tiny" in said
    assert "--initial-model tiny" in said
    run(capsys, "--exp", "hf-fresh:tiny", "--max-steps", 1, code=75)
    shutil.copytree(folder, "copy")
    run(capsys, "--exp", "hf:tiny", "--tokenizer", "copy", "--max-steps", 1, code=75)
    (folder / "tokenizer.json").unlink()
    assert "so nothing says whether the ids of copy are the same tokens there." in \
        run(capsys, "--exp", "hf:tiny", "--tokenizer", "copy", "--max-steps", 1, "--model", "other", code=75)
