"""The table of experiments: named model families, imported on demand.  No torch.

The contract of an experiment's model: its constructor takes `vocab_size`, `context_len` and the experiment's own settings by keyword.
``forward(tokens_BT)`` returns hidden states (B, T, D) for right-padded token ids (B, T), none of which depends on a later token.
``head`` is a module that turns hidden states into logits (..., V); a bias-free ``nn.Linear`` is the fast case.
The model sees no strings, optimizers or files.  What it may have besides:
``forward(…, lengths=None)`` reads pieces of these lengths that are packed into one row, each as if alone: short texts then train faster on a CPU.  With
``compiles_packed = True`` it also takes a :class:`lmplay.modules.packed.Starts` as `lengths`, with which one code serves all of them (``--compile-model``).
``blocks``, an ``nn.ModuleList`` (or a property that returns one), are what ``--activation-checkpointing`` recomputes, each by itself.
``forward(tokens_BT, cache=None)`` takes a :class:`lmplay.modules.cache.KeyValueCache`, which makes generation fast: without it each new token reads all before.
``as_transformers()`` gives the model of transformers that computes the same, with its weights, for ``lmp_export`` (:mod:`lmplay.exp.standard` helps); it raises
a UserError that names the settings for which there is none.
``folded()`` gives experiment, settings and weights of a model that computes the same without what only training needs (see :mod:`lmplay.exp.folding`).
A head may have a soft cap on logits, a z-loss, and tasks in training that look further ahead: :class:`lmplay.modules.heads.LinearHead` says how.
Another package offers one by an entry point of the group ``lmplay.experiments``: ``name = "module:Class"``.
"""
from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_type_hints

from ..errors import UserError, nearest
from ..plugins import Plugin, with_offered

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Experiment(Plugin):
    """A row of the table: its target is its model, and its `settings` are defaults that differ from those of the flags."""

    kind: ClassVar[str] = "experiment"
    chosen_by: ClassVar[str] = "--exp"
    settings: dict[str, Any] = field(default_factory=dict)


_GPT2ISH = f"{__name__}.gpt2ish:GPT2ish"
_LLAMAISH = f"{__name__}.llamaish:Llamaish"
_MODERN = f"{__name__}.modern:Modern"
_VALNORM = f"{__name__}.valnorm:ValNorm"
_UNIFIED = f"{__name__}.unified:Unified"
_MED: dict[str, Any] = {"num_blocks": 24, "embed_dim": 1024, "num_heads": 16}
_LARGE: dict[str, Any] = {"num_blocks": 36, "embed_dim": 1280, "num_heads": 20}
_TINY: dict[str, Any] = {"num_blocks": 4, "embed_dim": 192, "num_heads": 6, "context_len": 256}
_BUILT_IN = (
    Experiment("gpt2ish", "GPT-2: 6 blocks, 768 wide, 12 heads, context 1024", _GPT2ISH),
    Experiment("gpt2ish_med", "GPT-2 medium: 24 blocks, 1024 wide, 16 heads, context 1024", _GPT2ISH, _MED),
    Experiment("gpt2ish_large", "GPT-2 large: 36 blocks, 1280 wide, 20 heads, context 1024", _GPT2ISH, _LARGE),
    Experiment("gpt2ish_tiny", "GPT-2 for a CPU: 4 blocks, 192 wide, 6 heads, context 256", _GPT2ISH, _TINY),
    Experiment("llamaish", "Llama: 6 blocks, 768 wide, 12 heads, 4 of keys and values, context 1024", _LLAMAISH, {"num_kv_heads": 4}),
    Experiment("llamaish_med", "Llama: 24 blocks, 1024 wide, 16 heads, 4 of keys and values, context 1024", _LLAMAISH, {**_MED, "num_kv_heads": 4}),
    Experiment("llamaish_large", "Llama: 36 blocks, 1280 wide, 20 heads, 5 of keys and values, context 1024", _LLAMAISH, {**_LARGE, "num_kv_heads": 5}),
    Experiment("llamaish_tiny", "Llama for a CPU: 4 blocks, 192 wide, 6 heads, 2 of keys and values, context 256", _LLAMAISH, {**_TINY, "num_kv_heads": 2}),
    Experiment("modern", "what has helped since GPT-2: 6 blocks, 768 wide, 12 heads, context 1024", _MODERN),
    Experiment("modern_med", "what has helped since GPT-2: 24 blocks, 1024 wide, 16 heads, context 1024", _MODERN, _MED),
    Experiment("modern_large", "what has helped since GPT-2: 36 blocks, 1280 wide, 20 heads, context 1024", _MODERN, _LARGE),
    Experiment("modern_tiny", "what has helped since GPT-2, for a CPU: 4 blocks, 192 wide, 6 heads, context 256", _MODERN, _TINY),
    Experiment("valnorm", "gpt2ish with a layer norm on values: 6 blocks, 768 wide, 12 heads, context 1024", _VALNORM),
    Experiment("valnorm_tiny", "gpt2ish with a layer norm on values, for a CPU: 4 blocks, 192 wide, 6 heads, context 256", _VALNORM, _TINY),
    Experiment("unified", "gpt2ish with embeddings predicted while training: 6 blocks, 768 wide, 12 heads, context 1024", _UNIFIED),
    Experiment("unified_tiny", "gpt2ish with embeddings predicted while training, for a CPU: 4 blocks, 192 wide, 6 heads, context 256", _UNIFIED, _TINY),
)


# Experiments whose name ends in where the model is from, a name on the hub or a folder.
_HF = f"{__name__}.hf:build_hf"
WITH_WEIGHTS = "hf"
_WITH_SOURCE = (
    Experiment(WITH_WEIGHTS, "hf:NAME or hf:FOLDER: a causal language model of transformers with its weights and its tokenizer", _HF),
    Experiment("hf-fresh", "hf-fresh:NAME or hf-fresh:FOLDER: the same with fresh weights", _HF))


def experiments() -> dict[str, Experiment]:
    """List the built-in experiments and those of installed packages by name, see :func:`with_offered`."""
    return with_offered(Experiment, _BUILT_IN)


def get_experiment(name: str) -> Experiment:
    """Look an experiment up by name; raises UserError when there is none, and lists those there are."""
    table = experiments()
    kind, source = split_name(name)
    if source:
        return next(replace(row, name=name) for row in _WITH_SOURCE if row.name == kind)
    if name not in table:
        raise UserError(f"--exp {name}: there is no such experiment.{nearest(name, table)} There are: {', '.join(table)}, hf:NAME_OR_FOLDER.")
    return table[name]


def split_name(name: str) -> tuple[str, str]:
    """Split the name of an experiment that has a source from that, as `hf:folder`; the source of the others is empty."""
    kind, _, source = name.partition(":")
    return (kind, source) if any(row.name == kind for row in _WITH_SOURCE) else (name, "")


def listed() -> list[tuple[str, str]]:
    """List all experiments, each with a line about it."""
    return [(row.name, row.description) for row in (*experiments().values(), *_WITH_SOURCE)]


def accepted_settings(experiment: Experiment) -> dict[str, Any] | None:
    """Return what the constructor of an experiment's model accepts; imports its target.

    :return: keyword -> default (``inspect.Parameter.empty`` where it must be given), or None when it accepts any keyword.
    :raises UserError: when the target cannot be imported.
    """
    parameters = inspect.signature(experiment.load()).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name: parameter.default for parameter in parameters if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)}


def own_defaults(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that an experiment gives to its model, and for the others the defaults of its constructor; imports its target."""
    parameters = inspect.signature(experiment.load()).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty} | experiment.settings


def build_model(experiment: Experiment, **settings: Any) -> nn.Module:
    """Build an experiment's model with fresh weights.

    :param settings: arguments of its constructor, `vocab_size` and `context_len` among them.
    :raises UserError: when the target cannot be imported, accepts other settings, or makes a model without a head.
    """
    from torch import nn

    accepted = accepted_settings(experiment)
    if accepted is not None:
        _check_settings(experiment, settings, accepted)
    model = experiment.load()(**settings)
    if not isinstance(model, nn.Module) or not isinstance(getattr(model, "head", None), nn.Module):
        raise experiment.fault(f"{experiment.target} is not a torch module with a `head` that is one too")
    return model


def _check_settings(experiment: Experiment, settings: dict[str, Any], accepted: dict[str, Any]) -> None:
    """Refuse settings that the constructor does not accept, missing ones, and those of another kind than it says, all at once."""
    takes = f"It takes: {', '.join(accepted)}."
    faults = [f"experiment '{experiment.name}': has no setting '{name}'.{nearest(name, accepted)} {takes}" for name in settings if name not in accepted]
    missing = [name for name, default in accepted.items() if default is inspect.Parameter.empty and name not in settings]
    faults += [f"experiment '{experiment.name}': the setting '{name}' must be given. {takes}" for name in missing]
    kinds = _plain_kinds(experiment)
    faults += [f"experiment '{experiment.name}': the setting '{name}' is {json.dumps(value)}; it must be {' or '.join(map(_KINDS.__getitem__, kinds[name]))}."
               for name, value in settings.items() if name in kinds and not _is_one_of(value, kinds[name])]
    if faults:
        raise UserError(*faults)


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "null"}


def _plain_kinds(experiment: Experiment) -> dict[str, tuple[type, ...]]:
    """Find the settings whose annotations are of the kinds that a plan can hold."""
    try:
        hints = get_type_hints(experiment.load().__init__)
    except NameError:  # an annotation for type checkers only
        return {}
    kinds = {name: get_args(hint) or (hint,) for name, hint in hints.items() if name != "return"}
    return {name: kind for name, kind in kinds.items() if set(kind) <= _KINDS.keys()}


def _is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:
    return type(value) in kinds or (type(value) is int and float in kinds)
