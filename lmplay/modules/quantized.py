"""Frozen linear layers that keep their weight in few bits, below an adapter (Dettmers et al. 2023, "QLoRA"), with the kernels of the library `bitsandbytes`.

The weight is what the few bits stand for: whatever reads it, gets a tensor that is made for it. Shapes: O outputs, I inputs, N numbers of a weight.
"""
from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import UserError

# Numbers that share a scale in nf4: 4.5 bits for each. With int8 a row shares one.
_BLOCK = 64


class QuantizedLinear(nn.Linear):
    """A linear layer that is frozen, its weight in few bits; products are in the type of the input, forward and backward."""

    codes: Tensor
    scales: Tensor

    def __init__(self, layer: nn.Linear, kind: str):
        """Make it of a layer, which is left as it is.

        :param kind: of :data:`lmplay.plan.names.QUANTIZED`.
        """
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.kind = layer.in_features, layer.out_features, kind
        codes, scales = _quantize(layer.weight.detach().float(), kind)
        self.register_buffer("codes", codes, persistent=False)  # the weights themselves are in a file of their own
        self.register_buffer("scales", scales, persistent=False)
        self.register_parameter("bias", layer.bias)
        self.train(layer.training)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """What the bits stand for (O, I), float32; a tensor of its own each time."""
        return _dequantize(self.codes, self.scales, self.kind, (self.out_features, self.in_features))

    def forward(self, x: Tensor) -> Tensor:
        """See torch."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        product: Tensor = _Product.apply(x, self)
        return product

    def plain(self) -> nn.Linear:
        """Give a linear layer with this weight, and with the same bias."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        layer.weight, layer.bias = nn.Parameter(self.weight, requires_grad=False), self.bias
        return layer.train(self.training)


class _Product(torch.autograd.Function):
    """The product with a weight that is made anew in the backward pass, instead of being kept until then."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        """Multiply."""
        ctx.layer = layer
        return functional.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        """Give the gradient of the input."""
        return gradient @ ctx.layer.weight.to(gradient.dtype) if ctx.needs_input_grad[0] else None, None


def check_quantizing(kind: str, device: torch.device) -> None:
    """Try it on a device; raises UserError where it cannot be."""
    try:
        QuantizedLinear(nn.Linear(_BLOCK, 2, bias=False, device=device), kind).weight.sum()
    except (RuntimeError, NotImplementedError, AttributeError, OSError, ValueError) as error:
        raise UserError(f"adapter.quantize {kind}: bitsandbytes cannot do it on {device} ({str(error).splitlines()[0]}); leave it out, or choose another "
                        "--device.") from error


def _quantize(weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Give codes and scales."""
    bits: Any = _library()
    if kind == "int8":  # bitsandbytes' kernel for CUDA takes float16 only
        scales = weight.abs().amax(1)
        codes = (weight * (127 / scales)[:, None]).round().to(torch.int8)
        return codes.where(scales[:, None] > 0, 0), scales  # a row of zeros has no scale
    flat = weight.flatten()
    blocks = functional.pad(flat, (0, -len(flat) % _BLOCK)).view(-1, _BLOCK)  # rows of another length are read wrongly by its kernel for CPUs (0.50)
    codes, state = bits.quantize_4bit(blocks, blocksize=_BLOCK, compress_statistics=False, quant_type=kind)
    return codes, state.absmax


def _dequantize(codes: Tensor, scales: Tensor, kind: str, shape: tuple[int, int]) -> Tensor:
    """Give what codes and scales stand for."""
    bits: Any = _library()
    if kind == "int8":
        found: Tensor = bits.int8_vectorwise_dequant(codes, scales)
        return found
    state = bits.QuantState(absmax=scales, shape=torch.Size((len(scales), _BLOCK)), dtype=torch.float32, blocksize=_BLOCK, quant_type=kind)
    weight: Tensor = bits.dequantize_4bit(codes, state)
    return weight.flatten()[:shape[0] * shape[1]].view(shape)


def _library() -> Any:
    """Import bitsandbytes; raises UserError where that is not possible."""
    logger = logging.getLogger("bitsandbytes")  # speaks of kernels that nobody asked for
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        import bitsandbytes.functional as found
    except Exception as error:  # it loads libraries of the system, and raises what these do
        raise UserError(f"adapter.quantize: the package bitsandbytes cannot be imported ({str(error).splitlines()[0] if str(error) else error!r}). "
                        "pip install bitsandbytes (or 'lmplay[quantize]') brings it; or leave quantize out.") from error
    finally:
        logger.setLevel(level)
    return found
