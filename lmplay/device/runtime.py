"""The one owner of device, precision, compilation and random states.  Engine floor."""
from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ..errors import UserError
from ..modules.recompute import recompute_blocks
from ..plan.settings import Settings
from .allocator import keep_freed_memory
from .ranks import Ranks

# Under compile lengths are rounded up to a multiple of this: kernels work on so many at once.
_COMPILED_MULTIPLE = 8
# Up to this context length compiled bfloat16 code on a CPU is faster with attention by plain products than with torch's fused kernel.
_PLAIN_CONTEXT = 512


class Runtime:
    """Knows where and how a model runs."""

    def __init__(self, settings: Settings):
        """
        :param settings: device, amp and compile flags.
        :raises UserError: when the device is not there.
        """
        self.device = choose_device(settings.device)
        if settings.tune_allocator and self.device.type == "cpu":
            keep_freed_memory()
        torch.set_float32_matmul_precision(settings.matmul_precision)
        self.amp_dtype = _choose_amp_dtype(self.device) if settings.amp else None
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=settings.amp_init_scale, enabled=self.amp_dtype is torch.float16)
        self.asynchronous = self.device.type != "cpu"  # the device works on while the program goes ahead
        self.ranks = Ranks()
        self._settings = settings

    @property
    def precision(self) -> str:
        """The precision in words."""
        return "float32" if self.amp_dtype is None else f"mixed {str(self.amp_dtype).removeprefix('torch.')}"

    @property
    def length_multiple(self) -> int:
        """What lengths of mini-batches are rounded up to."""
        return _COMPILED_MULTIPLE if self._settings.compile_model else 1

    def packs(self, model: nn.Module) -> bool:
        """Tell whether pieces go through a model one behind the other, without padding: where it can, and by itself where that is known to be faster.

        :raises UserError: when it is asked for and cannot be.
        """
        able = "lengths" in inspect.signature(model.forward).parameters
        if self._settings.pack == "on" and not able:
            raise UserError(f"--pack on: {type(model).__name__}.forward takes no `lengths` (see lmplay.exp); leave --pack out.")
        # Compiled code would be made anew for each set of lengths, and a GPU waits for the many small attentions.
        return able and (self._settings.pack == "on" or (self._settings.pack == "auto" and self.device.type == "cpu" and not self._settings.compile_model))

    def save_memory(self, model: nn.Module) -> None:
        """Let a model keep less for the way back, if asked for.

        :raises UserError: when it cannot.
        """
        recompute_blocks(model, self._settings.activation_checkpointing)
        if self._settings.activation_memory_budget < 1 and any(isinstance(module, _DropoutNd) and module.p for module in model.modules()):
            # https://github.com/pytorch/pytorch/issues/190758
            raise UserError("--activation-memory-budget: the model has dropout, and what torch computes again it would drop anew, with wrong gradients; "
                            "--dropout 0 for a new model, or take --activation-checkpointing on.")

    def wrap(self, model: nn.Module, context_len: int, tell: Callable[[str], None],
             while_compiling: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> nn.Module:
        """Give what is run in place of the raw model: compiled, if asked for. Saving and freezing use the raw one.

        :param context_len: the longest piece of the model, in tokens.
        :param tell: is told what is compiled.
        :param while_compiling: what goes around the making of compiled code, which takes minutes.
        :raises UserError: when the backend is unknown, or the model has no blocks to compute again.
        """
        settings = self._settings
        self.save_memory(model)
        if not settings.compile_model:
            return model
        import torch._dynamo
        import torch._functorch.config

        from .compiled import Compiled

        backends = torch._dynamo.list_backends(exclude_tags=())
        if settings.compile_backend not in backends:
            raise UserError(f"--compile-backend {settings.compile_backend}: not there; allowed is one of {', '.join(backends)}.")
        # read when the code is made, at the first step; it is a setting of the process
        torch._functorch.config.activation_memory_budget = settings.activation_memory_budget
        plain = self.device.type == "cpu" and self.amp_dtype is torch.bfloat16 and context_len <= _PLAIN_CONTEXT
        return Compiled(model, settings.token_budget(context_len) or settings.first_mini_batch * context_len, context_len, plain, tell,
                        while_compiling, mode=settings.compile_mode, backend=settings.compile_backend)

    def autocast(self) -> AbstractContextManager[Any]:
        """Give the context for forward passes."""
        if self.amp_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.amp_dtype)


def seed_everything(seed: int) -> None:
    """Start the random numbers of every library in use from a seed."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Give the state of every library's random numbers, as plain values and tensors."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast(tuple[Any, ...], np.random.get_state(legacy=True))
    state: dict[str, Any] = {"python": [version, list(numbers), gauss],
                             "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
                             **torch_random_state()}
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Go back to a state of the random numbers; generators of devices that are not here are passed over."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    restore_torch_random_state(state)


def torch_random_state() -> dict[str, Any]:
    """Give the state of torch's random numbers on all devices in use: what a step consumes, and all that it takes to undo one."""
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore_torch_random_state(state: dict[str, Any]) -> None:
    """Go back to a state of torch's random numbers."""
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][:torch.cuda.device_count()])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


def choose_device(name: str | None) -> torch.device:
    """Find the device asked for, or the best there is.

    :param name: cpu, cuda, cuda:N or mps; None = the first there is of cuda, mps, cpu.
    :return: the device.
    :raises UserError: when it is not there.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name is None:
        return torch.device(next(kind for kind, present in there.items() if present))
    present = ", ".join(kind for kind, is_there in there.items() if is_there)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device {name}: allowed is cpu, cuda, cuda:N or mps; here there is: {present}.") from None
    if not there.get(device.type, False) or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"--device {name}: there is no such device here; there is: {present}.")
    return device


def _choose_amp_dtype(device: torch.device) -> torch.dtype:
    """Choose bfloat16 where the device computes with it, else float16."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if device.type == "cpu" else torch.float16
