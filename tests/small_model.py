"""A small model, gradients for it, and steps."""
from __future__ import annotations

import torch
from torch import nn

from lmplay.exp.gpt2ish import GPT2ish
from lmplay.optim.set import OptimizerSet


def small(tied: bool = True, width: int = 16) -> GPT2ish:
    torch.manual_seed(0)
    return GPT2ish(vocab_size=40, context_len=12, num_blocks=2, embed_dim=width, num_heads=2, tied_head=tied)


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator)


def train(model: nn.Module, optimizer: torch.optim.Optimizer | OptimizerSet, steps: range) -> None:
    for step in steps:
        give_gradients(model, step)
        optimizer.step()


def same_bits(model: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
