"""`--shard`: a model of which each rank holds a part; what is refused with it, and how a model becomes one.  Engine floor."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ..checkpoints.weights import check_weights
from ..device.ranks import Ranks
from ..device.runtime import Runtime
from ..errors import UserError
from ..modules.sharded import copy_into, is_sharded
from ..plan.names import in_words, optimizer_row, sharding_optimizers
from ..plan.settings import Settings
from .accord import Accord
from .interrupt import Interrupt
from .run import OpenStage


def check(settings: Settings, stages: Iterable[OpenStage]) -> None:
    """Refuse what needs the whole model on one rank; raises UserError with all faults."""
    faults = []
    if settings.compile_model:
        faults.append("--shard and --compile-model together: code is compiled for the model as a whole; give one of them.")
    for stage in stages:
        names = {stage.settings.optimizer, *(rule.kind for rule in stage.settings.optimizer_rules if rule.kind)}
        faults += [f"stage '{stage.stage.name}': --shard: the optimizer {name} needs whole weights, and each process has a part of them; take "
                   f"{in_words(sharding_optimizers())}, or leave --shard out." for name in sorted(names) if not optimizer_row(name).shards]
        if stage.settings.adapter is not None:
            faults.append(f"stage '{stage.stage.name}': adapter and --shard together: each process needs the whole base; give one of them.")
        if stage.objective.needs_reference:
            faults.append(f"stage '{stage.stage.name}': --shard: the objective {stage.settings.objective} compares with the model at the start of the stage, "
                          "which one process computes alone; take another objective, or leave --shard out.")
        if stage.objective.writing is not None and stage.objective.writing.reference:
            faults.append(f"stage '{stage.stage.name}': --shard: with kl the answers are compared with the model at the start of the stage, which each process "
                          "would need as a whole; leave out kl or --shard.")
    if faults:
        raise UserError(*faults)


def place(build: Callable[..., nn.Module], initial: Initial | None, resumes: bool, settings: Settings, runtime: Runtime, accord: Accord, interrupt: Interrupt) \
        -> nn.Module:
    """Make this rank's part of a model, on the device; no rank has more of it than that and one parameter.

    :param build: makes the model on the CPU, `filled` or not, and of that a `part`, see :meth:`.model_spec.ModelSpec.build`.
    :param initial: the weights that a new run begins with; None = those that it is built with.
    :param resumes: a checkpoint has its weights, which are still to be read.
    :raises UserError: when it cannot be divided, or the initial weights are not its own.
    """
    ranks, per_node = runtime.ranks, settings.shard == "node"
    module = accord.alike(lambda: build(filled=not resumes, part=ranks.part(per_node)))
    with interrupt.held():
        ranks.shard(module, runtime.device, per_node, getattr(torch, settings.shard_reduce_dtype))
    if initial is not None and not resumes:
        found = accord.alike(partial(_read, module, initial, ranks))
        with interrupt.held():
            _fill(module, found, initial.by_rows, ranks)
    return module


@dataclass(frozen=True)
class Initial:
    """Weights that a new run begins with."""

    read: Callable[[], dict[str, Any]]
    by_rows: bool
    """Each rank can read the rows that it needs; else rank 0 reads all."""
    experiment: str
    """The model's name, for messages."""


def _read(module: nn.Module, initial: Initial, ranks: Ranks) -> dict[str, Any]:
    """Read what this rank needs of initial weights; raises UserError where they are not the model's."""
    if not (initial.by_rows or ranks.is_main):
        return {}
    found = initial.read()
    check_weights(module.state_dict(), found, initial.experiment)
    return found


def _fill(module: nn.Module, found: dict[str, Any], by_rows: bool, ranks: Ranks) -> None:
    """Give a model that is divided its initial weights."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_sharded(tensor) and not by_rows:
            ranks.spread(tensor, found.get(name))
        elif name in found:  # of rank 0's buffers the others get copies before the first step
            copy_into(tensor, found[name])
