"""The weights that a checkpoint's model is to be used with: the averages of its weights, where its optimizers keep them."""
from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from ..optim.optimizers import build_like, optimizers_of
from ..optim.set import OptimizerSet
from ..plan.load import plan_from_json
from ..plan.names import CODE
from ..plan.settings import resolve_stage, settings_from_json


def are_averages_in(content: dict[str, Any]) -> bool:
    """Tell whether a checkpoint's optimizers keep averages of the weights."""
    state = content.get("optimizers", {}).get("state", {})
    return "ema" in state or any("train_mode" in group for part in state.values() for group in part["param_groups"])


def optimizers_in(content: dict[str, Any], module: nn.Module) -> OptimizerSet | None:
    """Open a checkpoint's optimizers, if they keep averages of the weights; None where they don't, or there are none, as in a file of weights alone.

    :param content: of the file.
    :param module: a model with the checkpoint's weights.
    :raises UserError: when their state is damaged, or their package is not installed.
    """
    if not are_averages_in(content):
        return None
    state = content["optimizers"]["state"]
    stages = content["curriculum"]["state"]["stages"]
    number = max(number for number, stage in enumerate(stages) if stage["fingerprints"] is not None)  # a state is that of the newest stage
    settings = settings_from_json(content["runner"]["state_args"]["settings"])
    stage = plan_from_json(content["curriculum"]["state_args"]["plan"]).stages[number]
    kind = next(str(part["optimizer"]) for part in content["optimizers"]["state_args"].values())
    used = resolve_stage(settings, stage, content["model"]["state_args"]["args"]["context_len"], kind)
    if any(CODE.fullmatch(name) for name in (kind, *(rule.kind or "" for rule in used.optimizer_rules))):
        return None  # a file's code is not run
    optimizers = build_like(state, partial(optimizers_of, used, module))
    optimizers.restore(state)
    return optimizers
