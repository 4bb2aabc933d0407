"""Numbers on their way from a device to the CPU."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data.collate import can_pin


class Arrival:
    """Copies of tensors on the CPU, of which a GPU of NVIDIA is not waited for before :meth:`wait`."""

    def __init__(self, tensors: Sequence[Tensor]):
        """
        :param tensors: on any device; one that is on the CPU is not copied.
        """
        on_gpu = any(tensor.device.type == "cuda" for tensor in tensors) and can_pin()
        self._copies = [tensor.to("cpu", non_blocking=on_gpu and tensor.device.type == "cuda") for tensor in tensors]  # torch takes pinned memory for it
        self._event = torch.cuda.Event() if on_gpu else None
        if self._event is not None:
            self._event.record()

    def wait(self) -> list[Tensor]:
        """Wait for the copies, and give them in the order of the tensors."""
        if self._event is not None:
            self._event.synchronize()
        return self._copies
