"""The adapter of a stage: put on the model when the stage begins, and merged into its weights when the stage ends.  Engine floor.

The weights below it are those that the model was judged by, averages where they were kept; and so is what is merged.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import Any
from zlib import crc32

import torch
from torch import nn

from ..checkpoints.base import base_file, finished_file, keep_base, keep_finished
from ..data.permutation import hash64
from ..errors import Faults, UserError
from ..modules.adapters import PART, adapter_parameters, add_adapter, base_state, choose_layers, drop_adapter, merge_adapter, quantized_size
from ..modules.quantized import check_quantizing
from ..optim.freeze import no_match
from ..optim.optimizers import optimizers_of
from ..plan.schema import Stage
from ..plan.settings import AdapterSettings, StageSettings, adapter_of
from ..words import counted
from .model_spec import ModelSpec
from .run import Run


def begin_adapter(run: Run, stage: str, settings: StageSettings) -> None:
    """Put the adapter of a stage on the model, unless it is there; the weights below it are written to a file of their own first.

    :param stage: its name.
    :raises UserError: when they cannot be written; the same command tries again.
    """
    if settings.adapter is None or run.model.adapter is not None:
        return
    module, adapter = run.device_model.raw, settings.adapter
    run.optimizers.use_averages()
    base = ""
    if run.is_main:
        try:
            base = keep_base(run.path, {"state_args": run.model.state_args(), "state": run.model.state()})
        except OSError as error:
            raise UserError(f"stage '{stage}': the weights below its adapter could not be written ({error.strerror or error}); what was saved is intact, and "
                            "the same command tries again.") from error
    layers = choose_layers(module, adapter)
    add_adapter(module, adapter, layers, hash64(run.settings.seed, crc32(stage.encode())) >> 1)
    run.model.adapter = as_stored(adapter, layers, base)
    run.optimizers = optimizers_of(settings, module)


def bring_back_base(run: Run) -> None:
    """Write the weights below the adapter again where their file was deleted while the run works: no state can be opened without it."""
    adapter = run.model.adapter
    if adapter is None or not run.is_main or base_file(run.path, adapter["base"]).exists():
        return
    if "quantize" in adapter:
        run.report.say(f"WARNING: {base_file(run.path, adapter['base'])}, the weights below the adapter, is gone and cannot be written again, as they are "
                       f"kept in {adapter['quantize']} only while the adapter is trained; bring it back from a copy, or states of this stage cannot be opened")
        return
    built = {key: value for key, value in run.model.state_args().items() if key != "adapter"}
    try:
        keep_base(run.path, {"state_args": built, "state": base_state(run.device_model.raw)})
    except (OSError, UserError) as error:
        run.report.say(f"WARNING: {base_file(run.path, adapter['base'])}, the weights below the adapter, is gone and could not be written again ({error}); "
                       "the next save tries again")


def end_adapter(run: Run, stage: str, settings: StageSettings) -> None:
    """Keep the adapter of a stage that ends in a file of its own, and merge it; the optimizers begin anew."""
    if run.model.adapter is None:
        return
    run.optimizers.use_averages()
    bring_back_base(run)
    if run.is_main:
        try:
            keep_finished(run.path, stage, {"state_args": run.model.state_args(), "state": run.model.state()})
        except (OSError, UserError) as error:
            with suppress(OSError):
                finished_file(run.path, stage).unlink(missing_ok=True)  # that of an earlier attempt is another adapter
            run.report.say(f"WARNING: {finished_file(run.path, stage)} could not be written ({error}): the adapter of stage '{stage}' is not kept by "
                           "itself; it is merged")
    merge_adapter(run.device_model.raw)
    run.model.adapter = None
    run.optimizers = optimizers_of(settings, run.device_model.raw)


@contextmanager
def tried(module: nn.Module, settings: StageSettings) -> Iterator[None]:
    """Put the adapter of a stage, if it has one, on a model in this block, to see what it takes."""
    if settings.adapter is None:
        yield
        return
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    layers = {name: module.get_submodule(name) for name in choose_layers(module, settings.adapter)}
    add_adapter(module, settings.adapter, [*layers])
    try:
        yield
    finally:
        drop_adapter(module)
        for name, layer in layers.items():  # quantized weights cannot be brought back
            module.set_submodule(name, layer)
        for parameter in trained:
            parameter.requires_grad_()


def check_adapters(spec: ModelSpec, stages: Sequence[Stage], planned: Sequence[Stage], device: torch.device | None = None) -> None:
    """Put the adapters of stages on a model without weights, to refuse now what cannot be.

    :param stages: those that are to be trained.
    :param planned: all of the plan.
    :param device: where weights are to be quantized; None = unknown.
    :raises UserError: for layers that there are not, for ranks that they cannot have, for rules of `$optimizer` that fit no adapter, for weights that cannot be
        quantized, and where peft is missing.
    """
    faults, names = Faults(), set[str]()
    for stage in stages:
        adapter = adapter_of(stage)
        if adapter is None:
            continue
        try:
            if adapter.quantize is not None:
                check_quantizing(adapter.quantize, device or torch.device("cpu"))
            shapes = spec.build(vocab_size=8, meta=True)
            add_adapter(shapes, adapter, choose_layers(shapes, adapter))
            names |= adapter_parameters(shapes).keys()
        except UserError as error:
            faults.lines += [f"stage '{stage.name}': {fault}" for fault in error.faults]
    if not faults.lines and not any(stage.adapter is not None and stage not in stages for stage in planned):
        patterns = {pattern for stage in stages for rule in stage.optimizer_rules or () for pattern in rule.patterns if PART in pattern}
        faults.lines += [f"$optimizer {no_match(pattern, sorted(names))}" if names else
                         f"$optimizer '{pattern}': is for the parameters of an adapter, and no stage has one."
                         for pattern in sorted(patterns) if not any(fnmatchcase(name, pattern) for name in names)]
    faults.refuse()


def as_stored(adapter: AdapterSettings, layers: list[str], base: str) -> dict[str, Any]:
    """List what a checkpoint says of an adapter."""
    quantized = {} if adapter.quantize is None else {"quantize": adapter.quantize}
    return {"kind": adapter.kind, "rank": adapter.rank, "alpha": adapter.alpha, "dropout": adapter.dropout, "layers": layers, "base": base, **quantized}


def in_words(adapter: AdapterSettings, module: nn.Module) -> str:
    """Say what the adapter on a model is, and what is trained and what frozen."""
    own = adapter_parameters(module)
    trained, total = sum(parameter.numel() for parameter in own.values()), sum(parameter.numel() for parameter in module.parameters())
    total += (quantized := quantized_size(module))
    bits = f", {quantized:,} of them in {adapter.quantize}" if quantized else ""
    return (f"adapter {adapter.kind}, rank {adapter.rank}, alpha {adapter.alpha:g}, on {counted(sum('.lora_A.' in name for name in own), 'layer')}: "
            f"{trained:,} parameters are trained, the {total - trained:,} of the model are frozen{bits}")
