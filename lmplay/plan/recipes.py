"""The recipes of `--recipe`: ONE table of what each sets, and nothing else. docs/recipes.md says what was measured and what was taken from where."""
from __future__ import annotations

from typing import Any, NamedTuple


class Recipe(NamedTuple):
    """A row: settings that go together.

    `why` is for the banner. `family` is the experiment, without the ending for its size; `model` are keys of a plan's `$model`, `stage` those of every stage;
    `epochs` is the length of stages of 1 epoch, which is that of a stage whose plan says none; `ema` is that of `--ema`.
    """

    why: str
    family: str
    model: dict[str, Any]
    stage: dict[str, Any]
    epochs: float | None = None
    ema: float = 0.0


_TRAPEZOID = [{"name": "linear", "from": 0.1, "to": 1.0, "steps": "5%"}, {"name": "constant", "steps": "rest"}, {"name": "linear", "to": 0.0, "steps": "50%"}]

RECIPES: dict[str, Recipe] = {
    "classic": Recipe(
        "GPT-2 with AdamW and a cosine, as nanoGPT trains it: the baseline to compare with", "gpt2ish", {"dropout": 0.0},
        {"optimizer": {"name": "adamw", "betas": [0.9, 0.95]}, "lr": 1.5e-3, "lr_schedule": {"name": "cosine", "to": 0.1}, "warmup": 0.05, "weight_decay": 0.1,
         "grad_clip": 1.0, "batch_size": 32}),
    "modern": Recipe(
        "what has helped since GPT-2, Muon, small batches, and a learning rate that stays and then falls to 0: the lowest loss for the same time",
        "modern", {"dropout": 0.0},
        {"optimizer": {"name": "muon"}, "lr": 3e-3, "lr_width": 256,
         "lr_schedule": _TRAPEZOID, "warmup": 0, "weight_decay": 0.1, "grad_clip": 1.0, "batch_size": 16}),
    "slow": Recipe(
        "for little text and much time: many epochs with dropout, strong weight decay and averaged weights, until held-out text gets no better",
        "modern", {"dropout": 0.2},
        {"optimizer": {"name": "muon"}, "lr": 3e-3, "lr_width": 256,
         "lr_schedule": _TRAPEZOID, "warmup": 0, "weight_decay": 1.0, "grad_clip": 1.0, "batch_size": 16,
         "early_stopping": {"patience": 10}}, epochs=20.0, ema=0.998),
}
