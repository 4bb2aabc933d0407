"""A model of which each process holds a part: FSDP2, `torch.distributed.fsdp.fully_shard`.  Imports torch only.

Each block is gathered when it is run, and given up again afterwards; what is around the blocks (embeddings, last norm, head) is gathered for a whole pass.
Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ..errors import UserError


def shard_model(module: nn.Module, mesh: DeviceMesh, reduce_dtype: torch.dtype) -> None:
    """Divide the weights among processes; their names stay the same. The gradients of a backward pass are sums over all of them.

    :param module: has `blocks` (see :mod:`lmplay.exp`); changed in place, and moved to the device of the mesh block by block.
    :param mesh: of one dimension, or of two: copies of the model, and the parts of each.
    :param reduce_dtype: gradients are summed in this type, and added up over mini-batches in that of the weights.
    :raises UserError: when the model has no `blocks`, or a parameter without a dimension.
    """
    blocks = list(getattr(module, "blocks", ()))
    if not blocks or not all(isinstance(block, nn.Module) for block in blocks):
        raise UserError(f"--shard: {type(module).__name__} has no `blocks` to divide (an nn.ModuleList, see lmplay.exp); leave it out.")
    if scalars := [name for name, parameter in module.named_parameters() if not parameter.ndim]:
        raise UserError(f"--shard: {scalars[0]} has no dimension along which it can be divided; give it one, or leave --shard out.")
    spared = {name for name, parameter in module.named_parameters() if getattr(parameter, "skip_weight_decay", False)}
    module.register_forward_hook(_needs_gradient)
    for part in (*blocks, module):  # weights are gathered as they are: mixed precision is that of autocast, with the numbers of a model that is whole
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=reduce_dtype))
    for name, parameter in module.named_parameters():
        if name in spared:
            parameter.skip_weight_decay = True  # type: ignore[attr-defined]
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no other


def _needs_gradient(module: nn.Module, inputs: Any, hidden_BTD: Tensor) -> None:
    """Let the backward pass come through the model's output also where only the head is trained: there FSDP2 notices that it has begun."""
    if torch.is_grad_enabled() and not hidden_BTD.requires_grad:
        hidden_BTD.requires_grad_()
