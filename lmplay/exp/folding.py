"""Models for use: without what only training needs."""
from __future__ import annotations

from typing import Any

from ..tokenizer import Tokenizer
from . import build_model, get_experiment


def is_folded(experiment: str) -> bool:
    """Tell whether the models of an experiment are folded for use."""
    return hasattr(get_experiment(experiment).load(), "folded")


def for_use(component: dict[str, Any]) -> dict[str, Any]:
    """Fold the model of a checkpoint, where it has a method `folded`: what computes the same may be another experiment with fewer weights.

    :param component: `model` of a checkpoint: `state_args` and `state`.
    :return: a component; the same one where there is nothing to fold.
    """
    built = component["state_args"]
    if not is_folded(built["experiment"]):
        return component
    model: Any = build_model(get_experiment(built["experiment"]), vocab_size=Tokenizer(built["tokenizer"]).vocab_size, **built["args"])
    model.load_state_dict(component["state"])
    name, settings, weights = model.eval().folded()
    args = {key: value for key, value in settings.items() if key != "vocab_size"}
    return {"state_args": {**built, "experiment": name, "args": args}, "state": weights}
