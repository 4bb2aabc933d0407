"""Which parameters decay, and which of them a member of an optimizer set gets.  Math floor: imports torch only."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

PARAMETERS = ("all", "matrices", "others")
"""The words for parts of a model: `matrices` are the weights that decay, but for the head's; `others` are the rest."""


def parameter_groups(model: nn.Module, weight_decay: float, which: str = "all", by_name: bool = True) -> list[dict[str, Any]]:
    """Split a model's parameters into those that decay and those that don't.

    Biases, norms and embeddings (a head tied to one too) don't, nor does what has `embed` in its name, or the attribute ``skip_weight_decay = True``.
    Frozen ones are in as well: an optimizer skips what has no gradient, and its state fits whatever a stage freezes.

    :param model: the model.
    :param weight_decay: for the first group.
    :param which: one of :data:`PARAMETERS`.
    :param by_name: False = as in the runs before names counted.
    :return: two groups, each in the order of ``model.named_parameters()``, with the plain key ``decays`` to tell them apart.
    """
    if which not in PARAMETERS:
        raise ValueError(f"parameters '{which}': allowed is one of {', '.join(PARAMETERS)}")
    spared = {id(parameter) for parameter in _spared(model, by_name)}
    head = {id(parameter) for parameter in model.get_submodule("head").parameters()} if which != "all" else set()
    mine = [parameter for parameter in model.parameters()
            if which == "all" or (which == "matrices") == (id(parameter) not in spared and id(parameter) not in head)]
    decaying = [parameter for parameter in mine if id(parameter) not in spared]
    others = [parameter for parameter in mine if id(parameter) in spared]
    return [{"params": decaying, "weight_decay": weight_decay, "decays": True}, {"params": others, "weight_decay": 0.0, "decays": False}]


def _spared(model: nn.Module, by_name: bool) -> Iterator[nn.Parameter]:
    """Find what does not decay; a tied weight comes once for each owner, and one owner is enough to spare it."""
    for path, module in model.named_modules(remove_duplicate=False):
        whole = isinstance(module, (nn.Embedding, nn.LayerNorm, nn.RMSNorm))
        for name, parameter in module.named_parameters(recurse=False):
            # fewer than two dimensions: the scales of any other norm, and gates
            embeds = by_name and "embed" in f"{path}.{name}".lower()
            if whole or embeds or name.endswith("bias") or parameter.ndim < 2 or getattr(parameter, "skip_weight_decay", False):
                yield parameter
