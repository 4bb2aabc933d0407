"""What holds for every objective."""
from __future__ import annotations

import pytest
import torch
from texts import BYTES

from lmplay.exp import build_model, get_experiment


def make_model(seed: int = 0) -> torch.nn.Module:
    """A small model over bytes, in float64, whose weights are far from those of a new one."""
    torch.manual_seed(seed)
    model = build_model(get_experiment("gpt2ish"), vocab_size=BYTES.vocab_size, context_len=64, num_blocks=1, embed_dim=16, num_heads=2, dropout=0.0).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def learned(objective, model, mini_batches, loss, atol: float) -> dict[str, float]:
    """Check that mini-batches together give a loss, and the gradients that the model has of it now; gives the objective's sums and what they count.

    :param loss: a scalar whose backward pass has been done; its gradients are dropped.
    """
    wanted = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    count = sum(objective.count(mini_batch) for mini_batch in mini_batches)
    total, figures = 0.0, dict.fromkeys(objective.sum_names, 0.0)
    for mini_batch in mini_batches:
        result = objective.loss(model, mini_batch, model.head)
        (result.loss_sum / count).backward()
        total += float(result.loss_sum.detach())
        figures = {key: value + float(result.figures.get(key, 0.0)) for key, value in figures.items()}
    assert total / count == pytest.approx(float(loss.detach()), rel=1e-9, abs=1e-12)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[key], rtol=1e-7, atol=atol)
    return {**figures, "count": count}
