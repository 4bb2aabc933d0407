"""Adapters of the library `peft` beside the linear layers of a model: small matrices that are trained instead of the weights, and then merged into them.

Where weights are quantized (:mod:`.quantized`), that is done when an adapter is put beside them, and undone when it is merged or taken away.
A layer NAME becomes one with the parts NAME.base_layer, which is frozen, NAME.lora_A and NAME.lora_B, of DoRA NAME.lora_magnitude_vector too.
"""
from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, nearest
from ..plan.names import ADAPTERS
from ..plan.settings import AdapterSettings
from .quantized import QuantizedLinear

PART = "lora_"
"""What the names of an adapter's parameters have in them."""
# Layers that some models of transformers have for nn.Linear, with the weight transposed.
_TRANSPOSED = "Conv1D"


def choose_layers(model: nn.Module, adapter: AdapterSettings) -> list[str]:
    """Choose the linear layers that get an adapter.

    The head is none of them: its weight may be the embedding's. `all` are those of the blocks, `attention` those of them whose name has a part with `attn` or
    `attention`; where a model does not say what its blocks are, they are chosen of all.

    :param model: without an adapter; may be on "meta".
    :return: their names, in the model's order.
    :raises UserError: when a word or a pattern fits no layer, or the rank is more than a layer can have.
    """
    linear = _linear_layers(model)
    found, faults = list[str](), list[str]()
    if isinstance(adapter.targets, str):
        blocks = {id(part) for block in getattr(model, "blocks", ()) for part in block.modules()}
        inner = [name for name in linear if id(linear[name]) in blocks or not blocks]
        found = [name for name in inner if adapter.targets == "all" or any("attn" in part or "attention" in part for part in name.split("."))]
        faults += [] if found else [f"adapter.targets {adapter.targets}: the model has no such layer; give patterns over {_in_short(linear)}."]
    else:
        matching = {pattern: {name for name in linear if fnmatchcase(name, pattern)} for pattern in adapter.targets}
        faults += [f"adapter.targets '{pattern}': matches no linear layer.{nearest(pattern, linear)} There are {_in_short(linear)}; head and "
                   "embeddings never get an adapter."
                   for pattern, names in matching.items() if not names]
        found = [name for name in linear if any(name in names for names in matching.values())]
    small = min(found, key=lambda name: min(linear[name].weight.shape), default=None)
    if small is not None and adapter.rank > (most := min(linear[small].weight.shape)):
        faults.append(f"adapter.rank {adapter.rank}: is more than {small} can have, which is {' x '.join(map(str, linear[small].weight.shape))}; "
                      f"give {most} or less.")
    if faults:
        raise UserError(*faults)
    return found


def add_adapter(model: nn.Module, adapter: AdapterSettings, layers: Sequence[str], seed: int = 0) -> None:
    """Put a fresh adapter beside layers of a model; it changes nothing yet, and nothing else is trained from here on.

    :param model: changed in place; may be on "meta".
    :param layers: their names.
    :param seed: of the numbers that it begins with; those that training draws are not touched.
    :raises UserError: when peft is not installed, or refuses the model.
    """
    peft = _peft()
    linear = _linear_layers(model, with_head=True)
    if missing := [name for name in layers if name not in linear]:
        raise UserError(f"adapter: '{missing[0]}' is not a linear layer of the model.")
    transposed = {type(linear[name]).__name__ == _TRANSPOSED for name in layers}
    if adapter.quantize is not None:
        _quantize(model, {name: linear[name] for name in layers}, adapter.quantize)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers that are transposed
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed CUDA devices, too
        try:
            config = peft.LoraConfig(r=adapter.rank, lora_alpha=adapter.alpha, lora_dropout=adapter.dropout, bias="none", fan_in_fan_out=transposed == {True},
                                     target_modules="|".join(re.escape(name) for name in layers), **ADAPTERS[adapter.kind])
            peft.inject_adapter_in_model(config, model)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise UserError(f"adapter: peft cannot add it to this model ({str(error).splitlines()[0]}).") from error
    freeze_base(model)


def freeze_base(model: nn.Module) -> None:
    """Train the adapter of a model, and nothing else."""
    own = {id(parameter) for parameter in adapter_parameters(model).values()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in own)
        if id(parameter) not in own:
            parameter.grad = None


def merge_adapter(model: nn.Module) -> None:
    """Add the adapter of a model to its weights, and take it away; the parameters stay frozen until a stage says otherwise."""
    with torch.no_grad():
        for name, layer in list(_adapted(model)):
            _make_plain(layer)
            layer.merge()
            model.set_submodule(name, layer.get_base_layer())
    _forget(model)


def drop_adapter(model: nn.Module) -> None:
    """Take the adapter of a model away, without a trace in its weights, but that those which were quantized are what they were then."""
    for name, layer in list(_adapted(model)):
        _make_plain(layer)
        model.set_submodule(name, layer.get_base_layer())
    _forget(model)


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Let a model in this block compute what it would without its adapter, if it has one."""
    layers = [layer for _, layer in _adapted(model)]
    for layer in layers:
        layer._disable_adapters = True  # peft's enable_adapters would freeze it, too
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def quantized_size(model: nn.Module) -> int:
    """Count the numbers of a model's weights that are quantized."""
    return sum(layer.in_features * layer.out_features for layer in model.modules() if isinstance(layer, QuantizedLinear))


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Give the parameters of a model's adapter by name; none where it has no adapter."""
    return {f"{path}.{name}": parameter for path, layer in _adapted(model) for name, parameter in layer.named_parameters()
            if not name.startswith("base_layer.")}


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """Give the part of a model's state that is its adapter's."""
    names = adapter_parameters(model)
    return {name: value for name, value in model.state_dict().items() if name in names}


def base_state(model: nn.Module) -> dict[str, Tensor]:
    """Give the state that a model would have without its adapter."""
    own = adapter_parameters(model)
    return {name.replace(".base_layer.", "."): value for name, value in model.state_dict().items() if name not in own}


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Give the layers that have an adapter, by name."""
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "lora_A") and hasattr(module, "base_layer"))


def _quantize(model: nn.Module, layers: dict[str, Any], kind: str) -> None:
    """Keep the weights of layers in few bits, where there are weights; raises UserError for layers of another kind than nn.Linear."""
    if other := next((name for name, layer in layers.items() if not isinstance(layer, nn.Linear)), None):
        raise UserError(f"adapter.quantize {kind}: {other} is a {type(layers[other]).__name__}, and only layers that are torch's Linear can be quantized; "
                        "leave it out.")
    for name, layer in layers.items():
        if not layer.weight.is_meta:
            model.set_submodule(name, QuantizedLinear(layer, kind))


def _make_plain(layer: Any) -> None:
    """Give a layer with an adapter a weight that can be added to, and that an optimizer can train."""
    if isinstance(base := layer.get_base_layer(), QuantizedLinear):
        layer.base_layer = base.plain()


def _forget(model: nn.Module) -> None:
    """Remove what peft has noted on a model."""
    if hasattr(model, "peft_config"):
        del model.peft_config


def _linear_layers(model: nn.Module, with_head: bool = False) -> dict[str, Any]:
    """Find the linear layers of a model by name, but for its head, whatever name that has, and those that its embeddings are computed with."""
    head, embedding = getattr(model, "head", None), getattr(model, "token_embedding", None)
    spared = set() if head is None or with_head else {id(part) for part in head.modules()} | {id(parameter) for parameter in head.parameters()} \
        | {id(getattr(head, "weight", None))}
    spared |= {id(part) for part in embedding.modules()} if isinstance(embedding, nn.Module) else set()
    return {name: module for name, module in model.named_modules()
            if (isinstance(module, nn.Linear) or type(module).__name__ == _TRANSPOSED) and not {id(module), id(module.weight)} & spared}


def _in_short(names: Any) -> str:
    """List names of layers, with one for those that differ in a number only."""
    return ", ".join(dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".*", name) for name in names))


def _peft() -> Any:
    """Import the library; raises UserError where that is not possible."""
    logger = logging.getLogger("bitsandbytes")  # which peft imports where it is there, and which speaks of kernels that nobody asked for
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        import peft
    except ImportError as error:
        raise UserError(f"adapter: the package peft cannot be imported ({error}). pip install peft (or 'lmplay[peft]') brings it.") from error
    finally:
        logger.setLevel(level)
    return peft
