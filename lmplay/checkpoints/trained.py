"""Opening a trained model to use it, from the file of a run or of weights alone."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.chat import PLAIN_TEMPLATE, choose_template
from ..exp import build_model, get_experiment, split_name
from ..exp.folding import for_use
from ..modules.adapters import adapter_state, drop_adapter, merge_adapter
from ..plan.settings import AdapterSettings
from ..tokenizer import Tokenizer
from .averages import optimizers_in
from .base import open_model, settings_of, with_base
from .format import load


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

    @property
    def chat_template(self) -> str | None:
        """How chats are written, for other programs: as the newest chats of the training data; of a model of transformers, where there were none, its own."""
        chats = [source.get("chat") for stage in self.forms.values() for source in stage if source["form"] == "chat"]
        if not chats:
            return self.tokenizer.chat_template if split_name(self.experiment)[1] else None
        return choose_template(chats[-1], self.tokenizer.chat_template) or PLAIN_TEMPLATE


@dataclass(frozen=True)
class TrainedAdapter:
    """A model without its adapter, and the adapter that it has been trained with: settings, layers, and its state by names of parameters."""

    experiment: str
    module: nn.Module
    settings: AdapterSettings
    layers: list[str]
    state: dict[str, torch.Tensor]
    base: str
    """Identifies the weights of the model."""


def open_adapter(path: Path, raw: bool = False) -> TrainedAdapter | None:
    """Open the adapter that a file holds, and the model that it is for; None where it holds none.

    :param raw: take the adapter itself, also where a run keeps an average of it.
    :raises UserError: as :func:`open_trained`.
    """
    content = load(path, parts=("model",), mmap=True)  # the weights are copied from there
    if "adapter" not in content["model"]["state_args"]:
        return None
    content = with_base(path, content)
    built, module = content["model"]["state_args"], open_model(content["model"])
    if not raw and (optimizers := optimizers_in(content, module)) is not None:
        optimizers.use_averages()
    state = {name: value.clone() for name, value in adapter_state(module).items()}
    drop_adapter(module)
    adapter = built["adapter"]
    return TrainedAdapter(built["experiment"], module, settings_of(adapter), adapter["layers"], state, adapter["base"])


def open_trained(path: Path, raw: bool = False) -> Trained:
    """Open a model, as it is to be used: without what only training needs.

    :param raw: take the weights themselves, also where a run keeps averages of them.
    :raises UserError: when the file cannot be read, or its weights are not those of its experiment.
    """
    content = with_base(path, load(path, parts=("model",), mmap=True))
    built, module = content["model"]["state_args"], open_model(content["model"])
    tokenizer, experiment = Tokenizer(built["tokenizer"]), get_experiment(built["experiment"])
    optimizers = None if raw else optimizers_in(content, module)
    if optimizers is not None:
        optimizers.use_averages()
    merge_adapter(module)
    model = for_use({"state_args": built, "state": module.state_dict()})
    used = model["state_args"]
    if used["experiment"] != experiment.name:
        module = build_model(get_experiment(used["experiment"]), vocab_size=tokenizer.vocab_size, **used["args"])
        module.load_state_dict(model["state"])
    run: dict[str, Any] = {name: content[name] for name in ("curriculum", "runner") if name in content}
    return Trained(used["experiment"], module, tokenizer, built["args"]["context_len"], built.get("forms", {}), used["args"], run, optimizers is not None)
