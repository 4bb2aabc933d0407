"""A GPU of NVIDIA that computes nothing: tensors that say they are there and have no values, and a look at each operator that it is given.

They are torch's "meta" tensors, which any build of torch has; what is copied from them is zeros.
"""
from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lmplay.checkpoints import staging
from lmplay.data.collate import can_pin
from lmplay.device.runtime import Runtime
from lmplay.modules.packed import has_kernel, starts_of
from lmplay.objectives.linear_cross_entropy import chunk_for
from lmplay.plan.settings import Settings

GPU, _META = torch.device("cuda", 0), torch.device("meta")
# What has a shape that depends on values, or gives a value to Python: the program would wait for the GPU.
WAITING = {"nonzero", "masked_select", "_local_scalar_dense", "_unique2", "unique_dim", "unique_consecutive", "bincount", "equal", "is_nonzero"}
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
# Fast kernels need rows that begin at multiples of ALIGNED bytes. This is checked for matrices of at least LARGE numbers and FEW rows: others take no time.
ALIGNED, LARGE, FEW = 16, 1 << 14, 16


# What autocast computes in half precision, of what models do; torch itself does not do so for meta tensors.
_LOWERED = {"linear", "matmul", "__matmul__", "mm", "bmm", "baddbmm", "addmm", "scaled_dot_product_attention"}


class _There(TorchFunctionMode):
    """Lets meta tensors say that they are on the GPU, and takes it for a device; also for autocast."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function == torch.Tensor.device.__get__:
            return _told(function(*args))
        args, kwargs = tree_map(_meant, (args, kwargs or {}))
        if getattr(function, "__name__", "") in _LOWERED and torch.is_autocast_enabled("cuda"):
            args, kwargs = tree_map(_lowered, (args, kwargs))
        return function(*args, **kwargs)


def _lowered(value):
    is_float = isinstance(value, torch.Tensor) and value.is_meta and value.dtype is torch.float32
    return value.to(torch.get_autocast_dtype("cuda")) if is_float else value


def _told(device):
    return GPU if device.type == "meta" else device


def _meant(value):
    is_gpu = value == "cuda" if isinstance(value, str) else isinstance(value, torch.device) and value.type == "cuda"
    return _META if is_gpu else value


class Watch(TorchDispatchMode):
    """Refuses what would make the program wait, what mixes up devices, float64 on the GPU, and large products of rows that begin anywhere; counts the rest."""

    def __init__(self, waits: int = 0):
        """
        :param waits: copies that may be waited for.
        """
        super().__init__()
        self.waits_left = waits
        self.operators: Counter[str] = Counter()
        self.copied_bytes = 0
        self.products = 0
        self.product_types: set[torch.dtype] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with self:  # in inference mode operators come that consist of others
            result = function.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        name = function._schema.name.split("::")[1]
        given = tensors_in((args, kwargs))
        on_gpu = any(map(is_there, given))
        if name == "_to_copy" and on_gpu:
            return self._copy(function, args[0], kwargs)
        if name == "copy_" and is_there(args[0]) != is_there(args[1]):
            self._look_at_copy(function, args[1], args[0], kwargs.get("non_blocking", len(args) > 2 and args[2]))
            return args[0]
        if name.startswith("_fused_"):
            self.operators[name] += on_gpu
            return None  # not all of them are there for meta tensors
        assert not (on_gpu and name in WAITING), f"waits for the GPU: {function}"
        if on_gpu:
            assert all(is_there(one) or not one.dim() for one in given), f"tensors on both devices: {function}"
        if on_gpu and name.startswith("index"):
            assert not any(one.dtype in (torch.bool, torch.uint8) for one in tensors_in(args[1])), f"waits for the GPU: {function}"
        result = function(*args, **kwargs)
        found = [one for one in tensors_in(result) if is_there(one)]
        self.operators[name] += bool(found)
        assert not any(one.dtype is torch.float64 for one in found), f"float64 on the GPU: {function}"
        if name == "_to_copy" and found:
            self._look_at_copy(function, args[0], result, kwargs.get("non_blocking"))
        if name in PRODUCTS and on_gpu:
            self._look_at_product(function, [one for one in (*given, *found) if one.dim() > 1])
        return result

    def _copy(self, function, source, kwargs):
        if kwargs.get("device", _META).type != "cpu":
            result = function(source, **kwargs)
            assert result.dtype is not torch.float64, f"float64 on the GPU: {function}"
            self.operators["_to_copy"] += 1
            return result
        result = torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        result.is_pinned_here = True  # torch makes it so where it is not waited for
        self._look_at_copy(function, source, result, kwargs.get("non_blocking"))
        return result

    def _look_at_copy(self, function, source, target, non_blocking):
        self.copied_bytes += source.nbytes
        if not non_blocking and self.waits_left:
            self.waits_left -= 1
            return
        told = f"{function} {source.dtype} {tuple(source.shape)} {'from' if is_there(source) else 'to'} the GPU"
        assert non_blocking, f"a copy that is waited for: {told}"
        assert getattr(target if is_there(source) else source, "is_pinned_here", False) or _base(target).is_pinned_here, f"not pinned: {told}"

    def _look_at_product(self, function, tensors):
        for one in tensors:
            if one.numel() >= LARGE and min(one.shape[-2:]) >= FEW:
                self.products += 1
                self.product_types.add(one.dtype)
                starts = [one.storage_offset(), *(stride for stride, size in zip(one.stride(), one.shape, strict=True) if stride > 1 and size > 1)]
                assert all(start * one.element_size() % ALIGNED == 0 for start in starts), f"rows begin anywhere: {function} {one.shape} {one.stride()}"


def is_there(tensor):
    return tensor.is_meta


def tensors_in(value):
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def _base(tensor):
    return tensor if tensor._base is None else tensor._base


class Event:
    """Stands for an event of torch.cuda."""

    def record(self, stream=None):
        """Nothing is under way."""

    def synchronize(self):
        """Nothing is under way."""


class _TorchThatPins:
    """The module torch, but for pinned memory; it is not replaced itself, as a default device is only for its own functions."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def empty(*size, pin_memory=False, **more):
        made = torch.empty(*size, **more)
        made.is_pinned_here = pin_memory
        return made


@contextmanager
def installed(monkeypatch):
    """Make up the GPU, with pinned memory and events, in this block."""
    def pinned(tensor, device=None):
        copy = tensor.clone()
        copy.is_pinned_here = True
        return copy

    monkeypatch.setattr(torch.Tensor, "is_pinned_here", False, raising=False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: SimpleNamespace(total_memory=80 << 30))
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    monkeypatch.setattr(staging, "torch", _TorchThatPins())
    _forget()
    with _There():
        yield
    _forget()


def _forget():
    """Forget what is known of the GPU, and the tensors that are kept for it."""
    for cached in (chunk_for, has_kernel, starts_of, can_pin):
        cached.cache_clear()


def runtime_on_gpu(**settings) -> Runtime:
    """Make a runtime that takes the GPU for its device."""
    runtime = Runtime(Settings(device="cpu", **settings))
    runtime.device, runtime.asynchronous = GPU, True
    runtime.scaler = SimpleNamespace(is_enabled=lambda: False, scale=lambda loss: loss, unscale_=lambda optimizers: None)
    return runtime
