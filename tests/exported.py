"""Models with weights that are not those of a fresh one, as files of weights, and what exports of them are compared with."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from lmplay.checkpoints.format import FORMAT, versions, write
from lmplay.exp import build_model, get_experiment
from lmplay.export.command import run
from lmplay.tokenizer import Tokenizer, load_tokenizer

SIZES: dict[str, Any] = {"context_len": 32, "num_blocks": 2, "embed_dim": 32, "num_heads": 4, "dropout": 0.0}


def stirred(experiment: str, vocab_size: int, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(get_experiment(experiment), vocab_size=vocab_size, **{**SIZES, **settings}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    return model


def model_file(path: Path, experiment: str = "llamaish", tokenizer: Tokenizer | None = None, forms: dict | None = None, **settings: Any) -> Path:
    tokenizer = tokenizer or load_tokenizer("bytes")
    model = stirred(experiment, tokenizer.vocab_size, **settings)
    component = {"state_args": {"experiment": experiment, "args": {**SIZES, **settings}, "tokenizer": tokenizer.spec, "forms": forms or {}},
                 "state": model.state_dict()}
    write(path, {"format": FORMAT, "versions": versions(), "model": component})
    return path


@torch.no_grad()
def logits(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Of our models."""
    return model.get_submodule("head")(model.eval()(tokens))


@torch.no_grad()
def their_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    """Of the model in a folder, as transformers opens it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)(tokens).logits.float()


def refused(capsys: Any, *arguments: Any) -> str:
    """Run lmp_export with what it refuses; gives its one line."""
    assert run([str(argument) for argument in arguments]) == 2
    said: str = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("lmp_export: ")
    return said
