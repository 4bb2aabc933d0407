"""Which model and tokenizer a run has."""
import shutil
from pathlib import Path

import torch
from helpers import TINY, load, weights

from lmplay.engine.model_spec import ModelSpec
from lmplay.train.__main__ import main


def test_the_trained_tokenizer_is_in_the_file(corpus, capsys):
    arguments = [*TINY[:-4], "--tokenizer", "train:300", "--device", "cpu", "--batch-size", "5", "--dataset", "rows.jsonl"]
    assert main(arguments) == 0
    spec = load(Path("out_gpt/gpt2ish_model.lmp"))["model"]["state_args"]["tokenizer"]
    assert spec["name"] == "train:300"
    assert weights()["token_embedding.weight"].shape[0] <= 300
    shutil.move("out_gpt/gpt2ish_model.lmp", "first.lmp")
    assert main(["--dataset", "rows.jsonl", "--initial-model", "first.lmp", "--model", "second.lmp", "--device", "cpu"]) == 0
    assert load(Path("out_gpt/second.lmp"))["model"]["state_args"]["tokenizer"] == spec


def test_a_model_of_shapes_alone_has_those_of_the_model():
    plan = ModelSpec("gpt2ish_tiny", {"context_len": 16, "num_blocks": 1, "embed_dim": 8, "num_heads": 2}, None)
    drawn = torch.get_rng_state()
    shapes = {name: (parameter.shape, parameter.dtype) for name, parameter in plan.build(20, meta=True).named_parameters()}
    assert torch.equal(torch.get_rng_state(), drawn)
    assert shapes == {name: (parameter.shape, parameter.dtype) for name, parameter in plan.build(20).named_parameters()}
