"""A model on its device: as it was built, and as it is run."""
from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .runtime import Runtime


@dataclass(frozen=True)
class DeviceModel:
    """A model and where it runs: `raw` is saved, frozen and checked; `wrapped` is what is run: the same, or its compiled code."""

    raw: nn.Module
    wrapped: nn.Module
    runtime: Runtime

    @property
    def head(self) -> nn.Module:
        """Hidden states to logits."""
        return self.raw.get_submodule("head")
