"""The mean of several states' weights: "model soups" (Wortsman et al. 2022) and averages over the last states of a run (Izmailov et al. 2018)."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from .format import FORMAT, versions
from .pieces import memory_of
from .trained import Trained, open_trained

_OF_TRAINING = {"dropout"}
"""Arguments of a model that change nothing of its use."""


def mean_of(paths: Sequence[Path], raw: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Compute the mean of states, as weights alone; of each one that is used, without what only training needs, and with its adapter merged.

    Numbers are added up in float64, and rounded once. What is no float, as a count, is that of the last state.

    :param raw: take the weights themselves, also where a run keeps averages of them.
    :param say: is told what differs and is not averaged.
    :return: the content of a file of weights.
    :raises UserError: when a state cannot be read, or is of another model than the first.
    """
    sums: dict[str, torch.Tensor] = {}
    first: dict[str, Any] = {}
    last = None
    others: set[str] = set()
    for path in paths:
        last = open_trained(path, raw)
        first = first or _compared(last)
        _check_same(path, _compared(last), paths[0], first)
        for name, value in _different(last).items():
            if not value.is_floating_point():
                others |= {name} if name in sums and not torch.equal(sums[name], value) else set()
                sums[name] = value
            else:
                sums[name] = sums[name].add_(value) if name in sums else value.to(torch.float64, copy=True)
    assert last is not None
    if others:
        say(f"{', '.join(sorted(others))} differ and are no floats: those of {paths[-1]} are kept.")
    kept = last.module.state_dict()
    place = {memory_of(kept[name]): name for name in sums}
    means = {name: (value / len(paths)).to(kept[name].dtype) if value.dtype == torch.float64 else value for name, value in sums.items()}
    built = {"experiment": last.experiment, "args": last.args, "tokenizer": last.tokenizer.spec, "forms": last.forms}
    return {"format": FORMAT, "versions": versions(),
            "model": {"state_args": built, "state": {name: means[place[memory_of(value)]] for name, value in kept.items()}}}


def _different(trained: Trained) -> dict[str, torch.Tensor]:
    """List the tensors of a model, each once, by its first name."""
    names: dict[Any, str] = {}
    state = trained.module.state_dict()
    for name, value in state.items():
        names.setdefault(memory_of(value), name)
    return {name: state[name] for name in names.values()}


def _compared(trained: Trained) -> dict[str, Any]:
    """Give what states of the same model have in common; no weights, which would stay in memory."""
    args = {name: value for name, value in trained.args.items() if name not in _OF_TRAINING}
    return {"experiment": trained.experiment, "arguments": args, "tokenizer": trained.tokenizer.spec}


def _check_same(path: Path, other: dict[str, Any], first_path: Path, first: dict[str, Any]) -> None:
    """Refuse a state of another model; raises UserError."""
    if wrong := [name for name in first if other[name] != first[name]]:
        raise UserError(f"STATE {path}: has another {' and '.join(wrong)} than {first_path}; only states of the same model can be averaged.")
