"""What a folder of transformers has on the disk, looked at before anything is built of it."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, value_fault

if TYPE_CHECKING:
    from torch import nn

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def check_folder(folder: Path, label: str) -> None:
    """See that a folder of transformers is whole.

    :param label: what it is called in messages.
    :raises UserError: when it is not, needs code of its own, or names files elsewhere.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise UserError(f"{label}: has no config.json, so it is not a folder of transformers, or incomplete.")
    try:
        said = json.loads(config.read_text(encoding="utf-8"))
        indices = {index.name: json.loads(index.read_text(encoding="utf-8")) for index in sorted(folder.glob("*.index.json"))}
        needed = sorted({str(name) for index in indices.values() for name in index["weight_map"].values()})
        bare = [name for name, index in indices.items() if not isinstance(index.get("metadata"), dict)]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        fault = value_fault(error) if isinstance(error, ValueError) else error
        raise UserError(f"{label}: its config.json or the index of its weights cannot be read ({fault}).") from None
    if isinstance(said, dict) and "auto_map" in said:
        raise UserError(f"{label}: its config names code of its own (auto_map), which lmplay does not run.")
    if elsewhere := [name for name in needed if Path(name).name != name]:
        raise UserError(f"{label}: the index of its weights names {elsewhere[0]}, which is not a file of this folder.")
    if bare:
        raise UserError(f'{label}: {bare[0]} has no "metadata", without which transformers does not read it.')
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{label}: is incomplete: of its {len(needed)} files of weights {some(missing)} {'is' if len(missing) == 1 else 'are'} missing.")
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise UserError(f"{label}: has no weights ({', '.join(_WEIGHTS[::2])}), so it is incomplete.")


def check_stored(folder: Path, outline: Callable[[], nn.Module], label: str) -> None:
    """Compare the headers of safetensors with a model that has no weights: one that is much larger is not built, which could fill the memory.

    :param outline: makes the model.
    :param label: what it is called in messages.
    :raises UserError: when the files have less than half of its numbers, or weights that are no floating-point numbers.
    """
    from safetensors import SafetensorError

    try:
        stored = {name: (kind, count) for file in sorted(folder.glob("model*.safetensors")) for name, kind, count in _headers(file)}
        parameters = dict(outline().named_parameters()) if stored else {}
    except (OSError, SafetensorError, ValueError, ImportError, AttributeError, TypeError, KeyError, RuntimeError):
        return  # who builds it says what is wrong
    wanted, found = sum(parameter.numel() for parameter in parameters.values()), sum(count for _, count in stored.values())
    if wanted > 2 * found:
        raise UserError(f"{label}: its config is that of a model with {wanted:,} parameters, and its files have {found:,}; one of them is of another model.")
    ends = {name.split(".", 1)[-1] for name in parameters}  # files may leave out the first part of the names
    wrong = [f"{name} ({kind})" for name, (kind, _) in stored.items() if not kind.startswith(("F", "BF")) and (name in parameters or name in ends)]
    if wrong:
        raise UserError(f"{label}: weights are floating-point numbers, and {some(wrong)} {'is' if len(wrong) == 1 else 'are'} not.")


def _headers(file: Path) -> Iterator[tuple[str, str, int]]:
    """Give the name of each tensor of a file, the kind of its numbers as safetensors calls it, and how many they are."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as content:
        for name in content.keys():  # noqa: SIM118 (it is no mapping)
            part = content.get_slice(name)
            yield name, part.get_dtype(), prod(part.get_shape())


def some(names: Sequence[str]) -> str:
    """Name the first three, and say whether there are others."""
    return f"{', '.join(names[:3])}{' and others' * (len(names) > 3)}"
