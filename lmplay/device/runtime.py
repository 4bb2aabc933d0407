"""Device, precision and compilation of a run."""
from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from ..errors import UserError
from ..modules.attention import CausalSelfAttention
from ..modules.packed import has_kernel
from ..modules.recompute import recompute_blocks
from ..plan.settings import Settings
from .allocator import keep_freed_memory, let_segments_grow, return_freed_memory
from .machine import usable_cores
from .ranks import Ranks

_COMPILED_MULTIPLE = 8  # compiled kernels work on this many numbers at once, so lengths are rounded up to a multiple of it
# oneDNN, which multiplies in half precision on a CPU, makes code for each new shape and keeps it: half a millisecond to 2, and up to megabytes, each time.
_HALF_MULTIPLE = 16
# Up to this context length compiled bfloat16 code on a CPU is faster with plain matrix products for attention than with torch's fused kernel.
_PLAIN_CONTEXT = 512
# The longest that a thread that makes batches may hold the interpreter while the one that feeds a GPU waits; Python's own are 5 ms, as long as a small step.
_SWITCH_SECONDS = 0.0005
# Processes that prepare data for a GPU by default, where there are this many cores for each process that trains.
_GPU_WORKERS, _CORES = 2, 4


class Runtime:
    """Where and how a model runs; raises UserError when the device does not exist."""

    def __init__(self, settings: Settings, ranks: Ranks | None = None):
        self.ranks = ranks or Ranks()
        if settings.tune_allocator:
            let_segments_grow()  # before the first question to a GPU
        _set_deterministic(settings.deterministic)
        self.device = choose_device(settings.device) if self.ranks.size == 1 else choose_device_of_rank(settings.device, self.ranks.local_rank)
        if settings.tune_allocator and self.device.type == "cpu":
            return_freed_memory() if settings.divides_model else keep_freed_memory()
        if self.device.type == "cuda":
            # It makes a plan for each exact shape, in tens of milliseconds, and there are many lengths; flash attention needs none.
            torch.backends.cuda.enable_cudnn_sdp(False)
            sys.setswitchinterval(_SWITCH_SECONDS)
        torch.set_float32_matmul_precision(settings.matmul_precision)
        self.amp_dtype = getattr(torch, settings.amp) if isinstance(settings.amp, str) else _choose_amp_dtype(self.device) if settings.amp else None
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=settings.amp_init_scale, enabled=self.amp_dtype is torch.float16)
        if self.ranks.size > 1 and self.scaler.is_enabled():
            self.scaler.scale(torch.zeros((), device=self.device))  # makes its scale, which a rank without a mini-batch needs as well
        self.asynchronous = self.device.type != "cpu"  # the device works while the program goes on
        self._settings = settings

    @property
    def precision(self) -> str:
        """The name of the precision."""
        return "float32" if self.amp_dtype is None else f"mixed {str(self.amp_dtype).removeprefix('torch.')}"

    @property
    def described(self) -> dict[str, str]:
        """The kind of device and the precision, which decide on the bits of what is trained."""
        kind = self.device.type
        return {"device": torch.cuda.get_device_name(self.device) if kind == "cuda" else kind, "precision": self.precision}

    @property
    def length_multiple(self) -> int:
        """The lengths of mini-batches are rounded up to a multiple of this."""
        if self.device.type == "cpu" and self.amp_dtype is not None:
            return _HALF_MULTIPLE
        return _COMPILED_MULTIPLE if self._settings.compile_model else 1

    @property
    def data_workers(self) -> int:
        """What prepares batches (`--data-workers`). For a GPU of NVIDIA by default processes: a thread would keep the interpreter from feeding it."""
        chosen = self._settings.data_workers
        is_default = "data_workers" not in self._settings.explicit and chosen == Settings.data_workers
        return _GPU_WORKERS if is_default and self.device.type == "cuda" and usable_cores() >= _CORES * self.ranks.local_size else chosen

    def packs(self, model: nn.Module) -> bool:
        """Tell whether the pieces of a mini-batch are packed into one row without padding (`--pack`); by default where this is known to be faster.

        :raises UserError: when `--pack on` is given and the model cannot do it.
        """
        able = "lengths" in inspect.signature(model.forward).parameters
        if self._settings.pack == "on" and not able:
            raise UserError(f"--pack on: {type(model).__name__}.forward takes no `lengths` (see lmplay.exp); leave --pack out.")
        if self._settings.compile_model:
            if self._settings.pack == "on":
                self._check_compiles_packed(model)
            return self._settings.pack == "on"
        # without the kernel a GPU would wait for many small attentions
        return able and (self._settings.pack == "on" or (self._settings.pack == "auto" and self.device.type == "cpu"))

    def _check_compiles_packed(self, model: nn.Module) -> None:
        """Refuse packed pieces in compiled code where there is no code that serves all lengths; raises UserError."""
        attentions = [module for module in model.modules() if isinstance(module, CausalSelfAttention)]
        fault = ""
        if not getattr(model, "compiles_packed", False):
            fault = f"{type(model).__name__} would be compiled again for the lengths of each step (see `compiles_packed` in lmplay.exp)"
        elif any(attention.dropout for attention in attentions):
            fault = "the model drops attention weights, which compiled attention within packed pieces cannot; a new model can have --dropout 0"
        elif self.device.type != "cpu" and not (self.amp_dtype is not None and all(has_kernel(self.device, attention.head_dim) for attention in attentions)):
            fault = "attention within packed pieces needs --amp and a GPU of NVIDIA from Ampere on, and heads whose width is a multiple of 8, up to 256"
        if fault:
            raise UserError(f"--pack on and --compile-model together: {fault}. Leave one of them out.")

    def save_memory(self, model: nn.Module) -> None:
        """Let a model keep less for the backward pass (`--activation-checkpointing`, `--activation-memory-budget`).

        :raises UserError: when the model cannot do it.
        """
        recompute_blocks(model, self._settings.activation_checkpointing)
        if self._settings.activation_memory_budget < 1 and any(isinstance(module, _DropoutNd) and module.p for module in model.modules()):
            # https://github.com/pytorch/pytorch/issues/190758
            raise UserError("--activation-memory-budget: the model has dropout, and torch would draw other random numbers when it recomputes, with wrong "
                            "gradients; --dropout 0 for a new model, or take --activation-checkpointing on.")

    def wrap(self, model: nn.Module, context_len: int, tell: Callable[[str], None],
             while_compiling: Callable[[], AbstractContextManager[Any]] = nullcontext) -> nn.Module:
        """Return the model that runs: compiled with `--compile-model`, else the raw one.

        :param context_len: the longest piece of the model, in tokens.
        :param tell: called with a line when code has been compiled.
        :param while_compiling: makes a context manager around each compilation, which takes up to minutes and happens in a forward pass.
        :raises UserError: when the backend is unknown or cannot work here, or the model has no blocks to recompute.
        """
        settings = self._settings
        self.save_memory(model)
        if not settings.compile_model:
            return model
        if self.device.type == "cuda":
            _check_graphs(self.device, settings.compile_mode, settings.compile_backend)
        if settings.compile_backend == "inductor":
            _check_compiler()
        import torch._dynamo
        import torch._functorch.config

        from .compiled import Compiled

        backends = torch._dynamo.list_backends(exclude_tags=())
        if settings.compile_backend not in backends:
            raise UserError(f"--compile-backend {settings.compile_backend}: not there; allowed is one of {', '.join(backends)}.")
        # a setting of the process, read at the first step
        torch._functorch.config.activation_memory_budget = settings.activation_memory_budget
        plain = self.device.type == "cpu" and self.amp_dtype is torch.bfloat16 and context_len <= _PLAIN_CONTEXT
        slots = settings.token_budget(context_len) or settings.first_mini_batch * context_len
        return Compiled(model, slots, context_len, plain, tell, while_compiling, mode=settings.compile_mode, backend=settings.compile_backend)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context manager for forward passes."""
        if self.amp_dtype is None:
            return nullcontext()
        # its cache would keep a copy of all weights that a rank has gathered
        return torch.autocast(self.device.type, dtype=self.amp_dtype, cache_enabled=not self.ranks.shards)


def _set_deterministic(wanted: bool) -> None:
    """Let torch take, of the kernels of an operation, one that gives the same bits each time (`--deterministic`), or whichever is fastest.

    cuBLAS asks for the workspace: https://docs.nvidia.com/cuda/cublas/#results-reproducibility.
    """
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if wanted != torch.are_deterministic_algorithms_enabled():  # the call imports the compiler, which takes a second
        torch.use_deterministic_algorithms(wanted)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing here reads what it has not written, and filling takes time


def choose_device(name: str | None) -> torch.device:
    """Choose the device by name (cpu, cuda, cuda:N or mps); None = the first that exists of cuda, mps, cpu.

    A GPU of NVIDIA becomes the current one, with its number: events, streams and questions that name none are its own.

    :raises UserError: when it does not exist.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name is None:
        name = next(kind for kind, present in there.items() if present)
    present = ", ".join(kind for kind, is_there in there.items() if is_there)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device {name}: allowed is cpu, cuda, cuda:N or mps; here there is: {present}.") from None
    if not there.get(device.type, False) or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"--device {name}: there is no such device here; there is: {present}.")
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    return device


def choose_device_of_rank(name: str | None, local_rank: int) -> torch.device:
    """Choose the device of one of several processes: each has a GPU of its own.

    :param name: see :func:`choose_device`.
    :param local_rank: its number among the processes of this machine.
    :raises UserError: for a device that several processes cannot have, and where there are too few.
    """
    if name is not None and name.startswith(("cuda:", "mps")):
        raise UserError(f"--device {name}: with several processes each takes a GPU of its own; give --device cuda or cpu, or leave it out.")
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    count = torch.cuda.device_count()
    if name != "cuda" or not count or count == 1:  # a job system may show each process its own GPU only
        return choose_device(name)
    if local_rank >= count:
        raise UserError(f"there are {count} GPUs here, and at least {local_rank + 1} processes; start as many processes as GPUs (--nproc_per_node={count}).")
    return choose_device(f"cuda:{local_rank}")


def _check_compiler() -> None:
    """Refuse to compile where no C++ compiler is found, which code for GPUs needs as well; raises UserError."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise UserError("--compile-model: no C++ compiler that works is found; install one (g++ or clang), name it in the variable CXX, or leave "
                        "--compile-model out.") from None


def _check_graphs(device: torch.device, mode: str | None, backend: str) -> None:
    """Refuse what torch.compile cannot do on a GPU of NVIDIA; raises UserError."""
    if mode in ("reduce-overhead", "max-autotune"):
        # their CUDA graphs own the memory of gradients: a second mini-batch fails or adds to what has gone (pytorch issues 169545 and 96693)
        raise UserError(f"--compile-mode {mode}: uses CUDA graphs, with which gradients cannot be added up over mini-batches; take "
                        "max-autotune-no-cudagraphs, or leave it out.")
    capability = torch.cuda.get_device_capability(device)
    if backend == "inductor" and find_spec("triton") is None:
        raise UserError("--compile-model: needs Triton, which is not installed: pip install triton (on Windows triton-windows), or leave it out.")
    if backend == "inductor" and capability < (7, 0):
        raise UserError(f"--compile-model: Triton needs a GPU of compute capability 7.0, and {torch.cuda.get_device_name(device)} has "
                        f"{capability[0]}.{capability[1]}; leave it out.")


def _choose_amp_dtype(device: torch.device) -> torch.dtype:
    """Choose bfloat16 where the device supports it, else float16."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if device.type == "cpu" else torch.float16
