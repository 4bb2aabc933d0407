"""Activation checkpointing: what blocks compute on the way forward is not kept but computed again on the way back.  Model floor: imports torch and the
ground floor only.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".  Of a block only its input is kept; a step computes its forward pass twice.
"""
from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..errors import UserError


def recompute_blocks(model: nn.Module, every: int) -> None:
    """Let the blocks of a model keep nothing but their inputs while gradients are wanted; weights, names and results stay what they are.

    :param model: one with `blocks` (an ``nn.ModuleList``, or whatever gives the modules that follow each other); changed in place.
    :param every: 1 = all blocks, N = every N-th, 0 = none, as built.
    :raises UserError: when the model has no `blocks`.
    """
    if not every:
        return
    blocks = list(getattr(model, "blocks", ()))
    if not blocks or not all(isinstance(block, nn.Module) for block in blocks):
        raise UserError(f"--activation-checkpointing: {type(model).__name__} has no `blocks` to compute again (an nn.ModuleList, see lmplay.exp); "
                        "leave it out.")
    for block in blocks[every - 1::every]:
        # on the object, not around it: a wrapper would give the weights other names
        block.forward = partial(_recomputed, block.forward)


def _recomputed(forward: Any, *inputs: Any, **named: Any) -> Any:
    """Do a block's forward pass; where gradients are wanted, so that it is done again on the way back, with the same random numbers."""
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=True, **named)
