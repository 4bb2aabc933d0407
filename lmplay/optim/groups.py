"""Which parameters decay, which rule of a plan a parameter follows, and which parameters a member of an optimizer set gets.  Math floor."""
from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from ..errors import UserError
from ..modules.adapters import PART, adapter_parameters
from ..modules.heads import head_parameters
from ..plan.training_keys import OptimizerRule
from .freeze import no_match

PARAMETERS = ("all", "matrices", "others")
"""The words for parts of a model: `matrices` are the weights of two dimensions that decay, but for the head's; `others` are the rest."""


def parameter_groups(model: nn.Module, weight_decay: float, which: str = "all", by_name: bool = True, among: Collection[int] | None = None) \
        -> list[dict[str, Any]]:
    """Split a model's parameters into those that decay and those that don't.

    Biases, norms and embeddings (a head tied to one too) don't, nor does what has `embed` in its name, or the attribute ``skip_weight_decay = True``.
    Frozen ones are in as well: an optimizer skips what has no gradient, and its state fits whatever a stage freezes.

    :param model: the model.
    :param weight_decay: for the first group.
    :param which: one of :data:`PARAMETERS`.
    :param by_name: False = as in the runs before names counted.
    :param among: the ids of the parameters to choose from; None = all.
    :return: two groups, each in the order of ``model.named_parameters()``, with the plain key ``decays`` to tell them apart.
    """
    if which not in PARAMETERS:
        raise ValueError(f"parameters '{which}': allowed is one of {', '.join(PARAMETERS)}")
    spared = {id(parameter) for parameter in _spared(model, by_name)}
    head = head_parameters(model)
    mine = [parameter for parameter in model.parameters() if (among is None or id(parameter) in among)
            and (which == "all" or (which == "matrices") == (parameter.ndim == 2 and id(parameter) not in spared and id(parameter) not in head))]
    decaying = [parameter for parameter in mine if id(parameter) not in spared]
    others = [parameter for parameter in mine if id(parameter) in spared]
    return [{"params": decaying, "weight_decay": weight_decay, "decays": True}, {"params": others, "weight_decay": 0.0, "decays": False}]


def follow_rules(model: nn.Module, rules: Sequence[OptimizerRule]) -> list[set[int]]:
    """Find the parameters that follow each rule of a plan's `$optimizer`.

    A rule is for all stages, so with an adapter a pattern may match none of its parameters, and without one a pattern may be for those of an adapter.

    :param model: the raw model; a tied weight has all of its names. Where it has an adapter, the parameters of that alone count.
    :return: for each rule the ids of its parameters.
    :raises UserError: for each pattern that matches nothing, and each two rules for one parameter.
    """
    own = adapter_parameters(model)
    named = list(own.items()) if own else list(model.named_parameters(remove_duplicate=False))
    first: dict[int, OptimizerRule] = {}
    found, faults = [], []
    for rule in rules:
        matching = {id(parameter): name for pattern in rule.patterns for name, parameter in named if fnmatchcase(name, pattern)}
        faults += [f"$optimizer {no_match(pattern, [name for name, _ in named])}" for pattern in rule.patterns
                   if not (own or PART in pattern or any(fnmatchcase(name, pattern) for name, _ in named))]
        twice = [number for number in matching if number in first]
        if twice:
            faults.append(f"$optimizer: '{rule.name}' and '{first[twice[0]].name}' both match {matching[twice[0]]}; a parameter follows one rule at most.")
        first |= dict.fromkeys(matching, rule)
        found.append({*matching})
    if faults:
        raise UserError(*faults)
    return found


def _spared(model: nn.Module, by_name: bool) -> Iterator[nn.Parameter]:
    """Find what does not decay; a tied weight comes once for each owner, and one owner is enough to spare it."""
    for path, module in model.named_modules(remove_duplicate=False):
        whole = isinstance(module, (nn.Embedding, nn.LayerNorm, nn.RMSNorm))
        for name, parameter in module.named_parameters(recurse=False):
            # fewer than two dimensions: the scales of any other norm, and gates
            embeds = by_name and "embed" in f"{path}.{name}".lower()
            if whole or embeds or name.endswith("bias") or parameter.ndim < 2 or getattr(parameter, "skip_weight_decay", False):
                yield parameter
