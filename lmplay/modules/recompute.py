"""Activation checkpointing: the activations of blocks are not kept in the forward pass but recomputed in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost". Only the input of a block is kept; a step computes the block's forward pass twice.
"""
from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..errors import UserError


def recompute_blocks(model: nn.Module, every: int) -> None:
    """Let every N-th block of a model (0 = none) keep only its input for the backward pass; weights, their names and results stay the same.

    :param model: has `blocks` (an ``nn.ModuleList``, or any iterable of modules); changed in place.
    :raises UserError: when the model has no `blocks`.
    """
    if not every:
        return
    blocks = list(getattr(model, "blocks", ()))
    if not blocks or not all(isinstance(block, nn.Module) for block in blocks):
        raise UserError(f"--activation-checkpointing: {type(model).__name__} has no `blocks` to recompute (an nn.ModuleList, see lmplay.exp); leave it out.")
    for block in blocks[every - 1::every]:
        # replaced on the object: a wrapper would change the names of the weights
        block.forward = partial(_recomputed, block.forward)


def _recomputed(forward: Any, *inputs: Any, **named: Any) -> Any:
    """Run a block's forward pass; with gradients enabled, so that the backward pass repeats it with the same random numbers."""
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=True, **named)
