"""What holds for every objective."""
from __future__ import annotations

import pytest
import torch


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
