"""A state as a folder of shards: each rank writes the rows of weights and optimizer state that are its own, and reads those that it needs.

The folder has a file of shards of each rank (:mod:`.shards`), and `state.lmp`, a file as :mod:`.format` writes it: all else of the state, what there is in the
files of shards, and their checksums. It is written last, in a folder with a temporary name, so a folder with the right name is whole.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor
from typing_extensions import TypedDict

from ..modules.sharded import is_sharded, place_of
from .pieces import Pieces
from .shards import TYPES, Part, Written, is_right, read_shard, write_shard

DIVIDED = ("model", "optimizers")
"""The components whose tensors are in shards."""
_SMALL = 1 << 14  # bytes: what is not more is one rank's


class Tensors(TypedDict):
    """What `state.lmp` notes of a tensor in shards: its shape, its type in the words of safetensors, and where it belongs in the state."""

    shape: list[Annotated[int, Field(ge=0)]]
    dtype: str
    at: Annotated[list[list[int | str]], Field(min_length=1)]


class File(TypedDict):
    """What `state.lmp` notes of a file of shards."""

    bytes: int
    checksum: str


class Shards(TypedDict):
    """The entry `shards` of `state.lmp`."""

    tensors: dict[str, Tensors]
    files: dict[Annotated[str, Field(pattern=r"^shard-[0-9]{5,}-of-[0-9]{5,}\.safetensors$")], File]


_SHARDS = TypeAdapter(Shards)


@dataclass(frozen=True)
class Divided:
    """A state of which one rank has a part."""

    rest: dict[str, Any]
    """All but the tensors in shards, in whose places is None."""
    own: dict[str, Part]
    """The rows that are this rank's."""
    tensors: dict[str, Tensors]
    """All tensors in shards."""

    @property
    def bytes(self) -> int:
        """The bytes of all tensors in shards."""
        return sum(math.prod(entry["shape"]) * _itemsize(entry["dtype"]) for entry in self.tensors.values())


def divide(content: Mapping[str, Any], rank: int, size: int) -> Divided:
    """Divide a state among ranks; nothing is copied.

    Sharded tensors are divided as they are, others by rows in the same way, but for small ones, which are rank 0's.

    :param content: of all components; on other ranks than rank 0 `model` and `optimizers` are enough.
    :param rank: of this process.
    :param size: how many ranks there are.
    """
    own: dict[str, Part] = {}
    tensors: dict[str, Tensors] = {}
    names: dict[tuple[Any, ...], str] = {}

    def visit(value: Any, at: list[int | str]) -> Any:
        if isinstance(value, dict):
            return {key: visit(part, [*at, key]) for key, part in value.items()}
        if not isinstance(value, Tensor) or not value.dim() or not value.numel() or value.dtype not in TYPES or value.layout != torch.strided:
            return value
        name = names.setdefault(_identity(value), ".".join(map(str, (at[0], *at[2:]))))
        if name not in tensors:
            tensors[name] = {"shape": list(value.shape), "dtype": TYPES[value.dtype], "at": []}
            if (part := _own_rows(name, value, rank, size)) is not None:
                own[name] = part
        tensors[name]["at"].append(at)
        return None

    rest = {name: {**part, "state": visit(part["state"], [name, "state"])} if name in DIVIDED else part for name, part in content.items()}
    return Divided(rest, own, tensors)


def write_own(folder: Path, divided: Divided, rank: int, size: int, cancelled: Callable[[], bool]) -> dict[str, File]:
    """Write this rank's rows into the folder, which is made if it is not there.

    :return: its file by its name.
    :raises OSError: when it cannot be written, also where that was cancelled.
    """
    folder.mkdir(exist_ok=True)
    path = folder / f"shard-{rank + 1:05}-of-{size:05}.safetensors"
    written = write_shard(path, list(divided.own.values()), cancelled)
    return {path.name: {"bytes": written.bytes, "checksum": written.checksum}}


def with_shards(divided: Divided, files: Mapping[str, File]) -> dict[str, Any]:
    """Give the content of `state.lmp`; `files` are those of all ranks."""
    return {**divided.rest, "shards": {"tensors": divided.tensors, "files": dict(files)}}


def files_of(content: Mapping[str, Any]) -> dict[str, File]:
    """Give the files of shards that the content of a `state.lmp` names; raises ValueError where it names none."""
    return _noted(content)["files"]


def are_right(folder: Path, content: Mapping[str, Any]) -> bool:
    """Tell whether the checksums of all files of shards are right; raises OSError when one cannot be read."""
    return all(is_noted(folder / name, file) for name, file in files_of(content).items())


def is_noted(path: Path, file: File) -> bool:
    """Tell whether a file of shards is what a state notes of it; raises OSError when it cannot be read."""
    return path.is_file() and is_right(path, Written(file["bytes"], file["checksum"]))


def join(folder: Path, content: dict[str, Any], lazily: bool) -> dict[str, Any]:
    """Put the tensors in shards into a state.

    :param content: of its `state.lmp`, which is changed.
    :param lazily: leave them on the disk until they are used (:class:`.pieces.Pieces`).
    :return: the content of a checkpoint.
    :raises OSError: when a file cannot be read.
    :raises ValueError: when what is in the files is not what the state names.
    """
    noted = _noted(content)
    parts: dict[str, list[Part]] = {}
    for file in noted["files"]:
        for part in read_shard(folder / file):
            parts.setdefault(part.name, []).append(part)
    if parts.keys() != noted["tensors"].keys():
        raise ValueError(f"its shards have other tensors than it names ({min(parts.keys() ^ noted['tensors'].keys())})")
    for name, entry in noted["tensors"].items():
        tensor = _joined(name, entry, sorted(parts[name], key=lambda part: part.begin))
        value = tensor if lazily else tensor.whole()
        for component, *keys, last in entry["at"]:
            inner: dict[Any, Any] = content
            for key in (component, *keys):
                inner = inner[key] if isinstance(inner, dict) and key in inner else {}
            if component not in DIVIDED or inner.get(last, "") is not None:
                raise ValueError(f"{name} has no place in it")
            inner[last] = value
    return {key: part for key, part in content.items() if key != "shards"}


def _own_rows(name: str, tensor: Tensor, rank: int, size: int) -> Part | None:
    """Give the rows of a tensor that are a rank's; None where it has none."""
    begin = 0
    if is_sharded(tensor):
        number, count = place_of(tensor)
        begin = min(number * -(-len(tensor) // count), len(tensor))
        tensor, rank, size = tensor.to_local(), rank // count, size // count  # type: ignore[attr-defined]  # the copies of a part divide it again
    if size > 1 and tensor.nbytes > _SMALL:
        rows = -(-len(tensor) // size)
        first = min(rank * rows, len(tensor))
        begin, tensor = begin + first, tensor[first:first + rows]
    elif rank:
        return None
    return Part(name, begin, tensor.detach()) if tensor.numel() else None


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """Tell tensors apart: those that share memory are written once."""
    if is_sharded(tensor) or isinstance(tensor, Pieces):
        return ("object", id(tensor))
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device


def _noted(content: Mapping[str, Any]) -> Shards:
    """Read what a state notes of its shards; raises ValueError where it is none of the kind."""
    if not isinstance(content, dict) or "shards" not in content:
        raise ValueError("it names no shards")
    return _SHARDS.validate_python(content["shards"], strict=True)


def _joined(name: str, entry: Tensors, parts: Sequence[Part]) -> Pieces:
    """Join the parts of a tensor; raises ValueError where they are not all of it."""
    at = 0
    for part in parts:
        if part.begin != at or TYPES[part.rows.dtype] != entry["dtype"] or list(part.rows.shape[1:]) != entry["shape"][1:]:
            raise ValueError(f"the parts of {name} are not those of one tensor")
        at += len(part.rows)
    if at != entry["shape"][0]:
        raise ValueError(f"parts of {name} are missing")
    return Pieces([part.rows for part in parts])


def _itemsize(dtype: str) -> int:
    """Give the bytes of a number."""
    return next(known.itemsize for known, name in TYPES.items() if name == dtype)
