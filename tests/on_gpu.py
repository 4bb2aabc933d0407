"""Tensors that say that they are on the second GPU but have their values here."""
from typing import ClassVar

import torch

CUDA = torch.device("cuda", 1)


class OnGpu(torch.Tensor):
    """A tensor on the GPU: what is copied from it without waiting is there when an event that comes later has happened."""

    under_way: ClassVar[list] = []
    pinned: ClassVar[list] = []

    @property
    def device(self):
        return CUDA

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.copy_ and (kwargs or {}).get("non_blocking"):
            target, source = args
            cls.under_way.append(lambda: target.copy_(source.as_subclass(torch.Tensor)))
            return target
        return super().__torch_function__(function, types, args, kwargs or {})


class Event:
    """Happens when all copies that were under way at its record are there."""

    def record(self, stream):
        assert stream == f"stream of {CUDA}"
        self.count = len(OnGpu.under_way)

    def synchronize(self):
        for number in range(self.count):
            OnGpu.under_way[number]()
            OnGpu.under_way[number] = lambda: None


def on_gpu(tensor):
    return tensor.as_subclass(OnGpu)
