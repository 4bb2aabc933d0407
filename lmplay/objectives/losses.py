"""The loss of each token, for objectives that weigh or compare them: differentiable, without the logits of all positions.  Math floor.

Shapes: N positions, C positions of one chunk, D width, V vocabulary.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..data.collate import MiniBatch
from ..modules.heads import LinearHead
from .linear_cross_entropy import MULTIPLE

CHUNK = 1024
"""Positions whose logits are held at once, see :data:`.next_token.CHUNK`."""


def token_losses(model: nn.Module, mini_batch: MiniBatch, head: nn.Module, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
    """Compute the cross-entropy of each truth token; the head's logits are computed again in the backward pass.

    :param model: token ids (B, T) -> hidden states (B, T, D).
    :param head: hidden states (…, D) -> logits (…, V).
    :param chunk: positions whose logits are held at once.
    :return: the losses (N,) in nats, differentiable, at least float32; and the most probable token ids (N,).
    """
    hidden_ND = hidden_states(model, mini_batch)
    # with no position there is one empty chunk, so that the loss still hangs on the graph
    chunks, product = zip(hidden_ND.split(chunk), mini_batch.targets_N.split(chunk), strict=True), _product_of(head, hidden_ND.device)
    losses, predictions = zip(*(checkpoint(_judge, product, hidden, target, use_reentrant=False) for hidden, target in chunks), strict=True)
    return torch.cat(losses), torch.cat(predictions)


def hidden_states(model: nn.Module, mini_batch: MiniBatch) -> Tensor:
    """Give the hidden states (N, D) from which the truth tokens are predicted."""
    lengths = mini_batch.seq_lens
    hidden_BTD: Tensor = model(mini_batch.tokens_BT) if lengths is None else model(mini_batch.tokens_BT, lengths=lengths)
    return hidden_BTD.flatten(0, 1).index_select(0, mini_batch.positions_N)


def _product_of(head: nn.Module, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Give what computes the logits of a head: on a GPU, of a linear one, with rows that begin where fast kernels need them to."""
    if device.type == "cpu" or type(head) not in (nn.Linear, LinearHead) or head.bias is not None or len(head.weight) % MULTIPLE == 0:
        return head
    weight: Any = head.weight
    soft_cap: float = getattr(head, "soft_cap", 0.0)
    if torch.is_autocast_enabled(device.type):  # once: autocast keeps copies of parameters only, and would make one for each chunk
        weight = weight.to(torch.get_autocast_dtype(device.type))
    weight_PD = functional.pad(weight, (0, 0, 0, -len(weight) % MULTIPLE))

    def product(hidden_CD: Tensor) -> Tensor:
        logits_CV = functional.linear(hidden_CD / soft_cap if soft_cap else hidden_CD, weight_PD)[:, :len(weight)]
        return soft_cap * logits_CV.tanh() if soft_cap else logits_CV

    return product


def _judge(product: Callable[[Tensor], Tensor], hidden_CD: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
    """Give the losses and the predictions of one chunk."""
    logits_CV = product(hidden_CD)
    exact = torch.promote_types(logits_CV.dtype, torch.float32)
    return functional.cross_entropy(logits_CV.to(exact), targets_C, reduction="none"), logits_CV.detach().argmax(1)
