"""What a launcher such as torchrun has said of this process: which of several it is.  Ground floor, light: it is read before anything heavy is imported."""
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import UserError


@dataclass(frozen=True)
class Launch:
    """The place of this process among those that train together: `rank` of `size`, and `local_rank` among those of this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0


def launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Read the variables that torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK, and for the address of the first process MASTER_ADDR and MASTER_PORT.

    :return: a single process where RANK is not set, or WORLD_SIZE is 1.
    :raises UserError: when they contradict each other, or one is missing.
    """
    if "RANK" not in environment or environment.get("WORLD_SIZE", "1") == "1":
        return Launch()
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise UserError(f"the variables RANK and WORLD_SIZE are set and {' and '.join(missing)} not; start several processes with torchrun, or unset RANK.")
    found = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        text = environment.get(name, "0")
        if not (text.isascii() and text.isdecimal()):
            raise UserError(f"the variable {name} is '{text}', and must be a whole number; start several processes with torchrun, or unset RANK.")
        found[name] = int(text)
    rank, size, local_rank = found.values()
    if rank >= size:
        raise UserError(f"the variable RANK is {rank} and WORLD_SIZE {size}; RANK counts from 0 to WORLD_SIZE - 1.")
    return Launch(rank, size, local_rank)
