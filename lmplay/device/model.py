"""A model on its device: as it was built, and as it is run.  Device floor."""
from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .runtime import Runtime


@dataclass(frozen=True)
class DeviceModel:
    """A model and where it runs."""

    raw: nn.Module
    """As built: owns parameters and head; is saved, frozen and checked."""
    wrapped: nn.Module
    """What is run in its place: the same, or its compiled code."""
    runtime: Runtime

    @property
    def head(self) -> nn.Module:
        """Hidden states to logits."""
        return self.raw.get_submodule("head")
