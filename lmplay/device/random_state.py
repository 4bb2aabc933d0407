"""The random numbers of every library in use: seeding them, and saving and restoring their state."""
from __future__ import annotations

import random
from typing import Any, cast

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Return the random state of every library, as plain values and tensors."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast(tuple[Any, ...], np.random.get_state(legacy=True))
    return {"python": [version, list(numbers), gauss],
            "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)], **torch_random_state()}


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore a random state; that of devices which are not here is skipped."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    restore_torch_random_state(state)


def torch_random_state() -> dict[str, Any]:
    """Return torch's random state on all devices in use; restoring it undoes the random numbers that a step has drawn."""
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore_torch_random_state(state: dict[str, Any]) -> None:
    """Restore torch's random state."""
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][:torch.cuda.device_count()])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])
