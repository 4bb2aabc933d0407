"""`--shard`: a model of which each rank holds a part; what is refused with it, and how a model becomes one.  Engine floor."""
from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from ..device.random_state import random_state, restore_random_state
from ..device.runtime import Runtime
from ..errors import UserError
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
    if faults:
        raise UserError(*faults)


def place(build: Callable[[], nn.Module], unfilled: Callable[[], nn.Module], resumes: bool, settings: Settings, runtime: Runtime, accord: Accord,
          interrupt: Interrupt) -> nn.Module:
    """Make a model on the device, or this rank's part of it. Of one that is divided only rank 0 has whole weights, on the CPU, and only in a new run.

    :param build: makes it with its first weights, from the run's seed on.
    :param unfilled: makes it without weights.
    :param resumes: a checkpoint has its weights, which are still to be read.
    :raises UserError: when it cannot be divided.
    """
    if not settings.divides_model:
        return build().to(runtime.device)
    ranks, module = runtime.ranks, unfilled()
    first = build() if ranks.is_main and not resumes else None
    accord.alike(lambda: True)  # all have a model, and come here
    with interrupt.held():
        ranks.shard(module, runtime.device, settings.shard == "node", getattr(torch, settings.shard_reduce_dtype))
        if not resumes:
            weights = {} if first is None else dict(first.named_parameters())
            for name, parameter in module.named_parameters():
                ranks.spread(parameter, weights.get(name))
    if first is not None:
        for name, buffer in first.named_buffers():  # the other ranks get them before the first step
            module.get_buffer(name).copy_(buffer)
    if not resumes:
        restore_random_state(accord.from_main(random_state))
    return module
