"""Root mean square normalization (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization").  Imports torch only."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class RMSNorm(nn.RMSNorm):
    """Torch's RMSNorm with a faster backward pass on a CPU, where torch has no kernel for it.  In inference mode it is torch's own, which begins sooner.

    The result has the type of the input, also under autocast; numbers are float32 (float64 for float64 input) in between.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the root mean square over the last dimension, and multiply by the weight, where there is one."""
        weight: Tensor | None = self.weight
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        if x.device.type == "cpu" and not torch.compiler.is_compiling() and not torch.is_inference_mode_enabled():
            normalized: Tensor = _CpuRMSNorm.apply(x, weight, eps)
            return normalized
        return functional.rms_norm(x, self.normalized_shape, None if weight is None else weight.to(x.dtype), eps)


class _CpuRMSNorm(torch.autograd.Function):
    """See :class:`RMSNorm`; over the last dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.linalg.vector_norm(exact, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, scale, weight)
        normalized = exact * scale
        return (normalized if weight is None else normalized.mul_(weight)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, scale, weight = ctx.saved_tensors
        exact = gradient.to(scale.dtype)
        normalized = x * scale
        product = exact * normalized
        weight_gradient = product.reshape(-1, x.shape[-1]).sum(0).to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, weight_gradient, None
        if weight is not None:
            product, exact = product.mul_(weight), exact * weight
        # y = x * scale: the gradient along x is taken out, as x times any number has the same y
        along = product.mean(-1, keepdim=True)
        return torch.addcmul(exact, normalized, along, value=-1).mul_(scale).to(x.dtype), weight_gradient, None
