"""Running averages of the weights (EMA): one that a run with `--ema` is judged by, as it has less noise than the newest weights; and one that a stage compares
the model with.  Math floor."""
from __future__ import annotations

from collections.abc import Iterable

import torch


class WeightAverage(torch.optim.Optimizer):
    """Keeps the average of parameters, as the state of an optimizer that updates nothing: its step is to be done after that of the optimizers.

    In the first steps it forgets faster, so that it does not remember the fresh weights: after t steps the decay is at most (1 + t) / (10 + t), as in
    TensorFlow's ExponentialMovingAverage.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], decay: float):
        """
        :param decay: share of the average before in each new one, from 0 to below 1.
        """
        super().__init__(parameters, {"decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None, skipped: torch.Tensor | None = None) -> None:  # type: ignore[override]
        """Add the present weights to the average, of the parameters that are trained or have one.

        :param skipped: a scalar of bool on the device: whether the step before has changed nothing; then the average stays, too.
        """
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter] if parameter.grad is not None else self.state.get(parameter)
                if state is None:
                    continue
                if not state:
                    state.update(step=0, average=parameter.clone(memory_format=torch.preserve_format))
                weight = 1 - self._decay(group["decay"], state["step"])
                state["step"] += 1
                state["average"].lerp_(parameter, weight if skipped is None else weight * (~skipped).to(parameter.dtype))

    @staticmethod
    def _decay(decay: float, steps: int) -> float:
        """Give the share of the average before after some steps."""
        return min(decay, (1 + steps) / (10 + steps))


class Teacher(WeightAverage):
    """Keeps what a model was a while ago: an average that begins with the weights of a moment, and is never faster."""

    def begin(self, decay: float) -> None:
        """Begin with the present weights, of the parameters that are trained and have no average yet.

        :param decay: from now on.
        """
        for group in self.param_groups:
            group["decay"] = decay
            for parameter in group["params"]:
                if parameter.requires_grad and not self.state.get(parameter):
                    self.state[parameter] = {"step": 0, "average": parameter.detach().clone(memory_format=torch.preserve_format)}

    @staticmethod
    def _decay(decay: float, steps: int) -> float:
        """Give the share of the average before."""
        return decay
