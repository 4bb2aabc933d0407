"""Opening a trained model to use it, from the file of a run or of weights alone."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..exp import build_model, get_experiment
from ..exp.folding import for_use
from ..modules.adapters import merge_adapter
from ..tokenizer import Tokenizer
from .averages import optimizers_in
from .base import put_on, with_base
from .format import load
from .weights import check_weights


@dataclass(frozen=True)
class Trained:
    """A model with its weights, on the CPU, and what belongs to it."""

    experiment: str
    module: nn.Module
    tokenizer: Tokenizer
    context_len: int
    forms: dict[str, list[dict[str, Any]]]
    """How the texts of each source begin, by stages."""
    args: dict[str, Any]
    """The settings of the experiment."""
    run: dict[str, Any]
    """The components `curriculum` and `runner` of the file; empty where it holds weights alone."""
    averaged: bool
    """Whether the weights are the averages that the run keeps of them."""


def open_trained(path: Path, raw: bool = False) -> Trained:
    """Open a model, as it is to be used: without what only training needs.

    :param raw: take the weights themselves, also where a run keeps averages of them.
    :raises UserError: when the file cannot be read, or its weights are not those of its experiment.
    """
    content = with_base(path, load(path, parts=("model",)))
    built, has_adapter = content["model"]["state_args"], "base" in content["model"]
    state = content["model"]["base" if has_adapter else "state"]
    tokenizer, experiment = Tokenizer(built["tokenizer"]), get_experiment(built["experiment"])
    with torch.device("meta"):
        shapes = build_model(experiment, vocab_size=tokenizer.vocab_size, **built["args"])
    check_weights(shapes.state_dict(), state, experiment.name)
    if has_adapter:
        put_on(shapes, content["model"], experiment.name)
    module = build_model(experiment, vocab_size=tokenizer.vocab_size, **built["args"])
    module.load_state_dict(state)
    if has_adapter:
        put_on(module, content["model"], experiment.name)
    optimizers = None if raw else optimizers_in(content, module)
    if optimizers is not None:
        optimizers.use_averages()
    if has_adapter:
        merge_adapter(module)
    model = for_use({"state_args": built, "state": module.state_dict()})
    used = model["state_args"]
    if used["experiment"] != experiment.name:
        module = build_model(get_experiment(used["experiment"]), vocab_size=tokenizer.vocab_size, **used["args"])
        module.load_state_dict(model["state"])
    run: dict[str, Any] = {name: content[name] for name in ("curriculum", "runner") if name in content}
    return Trained(used["experiment"], module, tokenizer, built["args"]["context_len"], built.get("forms", {}), used["args"], run, optimizers is not None)
