"""Sums of gradients over processes, taken while the backward pass goes on.  Imports torch only."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# Gradients that are sent together: PyTorch's DistributedDataParallel has the same default (bucket_cap_mb).
BUCKET_BYTES = 25 << 20


class GradientSums:
    """Sums gradients over the processes of a group, around a backward pass.

    Parameters are divided into buckets, the last ones first, because their gradients are ready first. A bucket is sent as soon as all of its gradients are
    ready and all buckets before it have been sent: so all processes send the same buckets in the same order, also one that has no backward pass.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: Any, there: Callable[[Tensor], Tensor], bucket_bytes: int = BUCKET_BYTES):
        """
        :param parameters: those of the model; frozen ones are left out.
        :param group: of torch.distributed.
        :param there: returns the maximum of a tensor of uint8 on the CPU over all processes: which gradients there are on any.
        :param bucket_bytes: the most bytes of a bucket with several gradients.
        """
        self._parameters = [parameter for parameter in reversed(list(parameters)) if parameter.requires_grad]
        self._group, self._there = group, there
        self._buckets = _divide(self._parameters, bucket_bytes)
        self._bucket_of = {id(parameter): number for number, bucket in enumerate(self._buckets) for parameter in bucket}
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sent: list[tuple[Tensor, Any]] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> None:
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._is_ready) for parameter in self._parameters]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for hook in self._hooks:
            hook.remove()
        if kind is not None:
            return
        there = self._there(torch.tensor([parameter.grad is not None for parameter in self._parameters], dtype=torch.uint8)).tolist()
        while len(self._sent) < len(self._buckets):
            self._send()
        is_there = dict(zip(map(id, self._parameters), there, strict=True))
        for bucket, (flat, work) in zip(self._buckets, self._sent, strict=True):
            work.wait()
            for parameter, part in zip(bucket, flat.split([parameter.numel() for parameter in bucket]), strict=True):
                parameter.grad = part.view_as(parameter) if is_there[id(parameter)] else None

    def _is_ready(self, parameter: Tensor) -> None:
        """Take note of a gradient that is complete, and send what can be sent."""
        number = self._bucket_of[id(parameter)]
        self._missing[number] -= 1
        if self._missing[number] < 0:
            raise AssertionError("a gradient has been added to twice in one backward pass")
        while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
            self._send()

    def _send(self) -> None:
        """Send the next bucket."""
        bucket = self._buckets[len(self._sent)]
        flat = torch.cat([(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).reshape(-1) for parameter in bucket])
        self._sent.append((flat, dist.all_reduce(flat, group=self._group, async_op=True)))


def _divide(parameters: Iterable[nn.Parameter], most: int) -> list[list[nn.Parameter]]:
    """Divide parameters into buckets of one type of numbers, in order."""
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        if not buckets or size + parameter.nbytes > most or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.nbytes
    return buckets
