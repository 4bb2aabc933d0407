"""A file of shards: parts of tensors, as `HuggingFaceStorageReader` of torch.distributed.checkpoint reads them.

It is a safetensors file (https://huggingface.co/docs/safetensors/index#format) whose header says at which row of its tensor each part begins, so that DCP finds
the parts of all processes without a file of its own, which would be pickled. Written here rather than by DCP, which would make the whole file in memory first.
"""
from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..files import check_is_file
from .hashed import Hashed, hash_file

TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16",
         torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}
_DTYPES = {name: dtype for dtype, name in TYPES.items()}
_INFO = "DCP_SHARDING_INFO"
_MOST_HEADER = 100_000_000  # bytes, as in safetensors itself
_LENGTH = 8  # bytes of the length of the header
_LARGEST = 2**62  # numbers of a tensor


@dataclass(frozen=True)
class Part:
    """Some rows of a tensor."""

    name: str
    begin: int
    """The number of the first of them."""
    rows: Tensor


class Written(NamedTuple):
    """What a state notes of a file of shards."""

    bytes: int
    checksum: str
    """xxh3-128 of all of it, in hexadecimal digits."""


def write_shard(path: Path, parts: Sequence[Part], cancelled: Callable[[], bool]) -> Written:
    """Write a file and sync it.

    :param parts: on the CPU; of each name at most one.
    :raises OSError: when it cannot be written, also where that was cancelled.
    """
    parts = sorted(parts, key=lambda part: -part.rows.element_size())  # so that each begins at a multiple of its numbers' size
    header: dict[str, object] = {"__metadata__": {
        _INFO: json.dumps({part.name: {"saved_offsets": [part.begin, *[0] * (part.rows.dim() - 1)]} for part in parts}), "DCP_VERSION": "1.0", "format": "pt"}}
    at = 0
    for part in parts:
        header[part.name] = {"dtype": TYPES[part.rows.dtype], "shape": list(part.rows.shape), "data_offsets": [at, at + part.rows.nbytes]}
        at += part.rows.nbytes
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % _LENGTH)
    with open(path, "wb") as file:
        hashed = Hashed(file, cancelled)
        hashed.write(len(said).to_bytes(_LENGTH, "little") + said)
        for part in parts:
            if part.rows.numel():
                hashed.write(part.rows.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
        return Written(file.tell(), hashed.hash.hexdigest())


def is_right(path: Path, written: Written) -> bool:
    """Tell whether a file is what has been written; raises OSError when it cannot be read."""
    with open(path, "rb", buffering=0) as file:
        return os.fstat(file.fileno()).st_size == written.bytes and hash_file(file, written.bytes).hexdigest() == written.checksum


def read_shard(path: Path) -> Iterator[Part]:
    """Read the header of a file, and give its parts, which stay on the disk until they are used.

    :raises OSError: when it cannot be read.
    :raises ValueError: when it is no such file.
    """
    check_is_file(path)
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        if not 0 < length <= min(size - _LENGTH, _MOST_HEADER):
            raise ValueError(f"{path.name}: its header has a wrong length")
        header = json.loads(file.read(length))
    begins = json.loads(header.pop("__metadata__")[_INFO])
    data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)[_LENGTH + length:]
    places = sorted(entry["data_offsets"] for entry in header.values())
    if [begin for begin, _ in places] + [len(data)] != [0] + [end for _, end in places]:  # parts that overlap could be larger than the file
        raise ValueError(f"{path.name}: its parts overlap or leave gaps")
    for name, entry in header.items():
        dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        row, *others = begins[name]["saved_offsets"]
        numbers = [*shape, begin, end, row]
        if not shape or any(type(number) is not int or not 0 <= number < _LARGEST for number in numbers) or any(others):
            raise ValueError(f"{path.name}: {name} has no right shape")
        if end > len(data) or end - begin != math.prod(shape) * dtype.itemsize or (_LENGTH + length + begin) % dtype.itemsize:
            raise ValueError(f"{path.name}: {name} has no right place")
        yield Part(name, row, data[begin:end].view(dtype).view(shape))
