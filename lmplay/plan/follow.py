"""What flags write into a plan: a recipe, sizes, a length.  A run that goes on keeps what was written when it began.  Plan floor, no torch."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import UserError
from .load import plan_from_json
from .names import CODE, OPTIMIZERS, OptimizerRow, optimizer_row
from .options import FLAGS
from .recipes import RECIPES, Recipe
from .schedule_keys import LENGTHS
from .schedules import ScheduleFault
from .schema import Plan, Stage
from .settings import Settings

# Endings of the names of experiments, for their sizes.
_SIZES = ("_tiny", "_med", "_large")
_WITHOUT_LENGTH = ("epochs", 1.0)


def follow_recipe(settings: Settings, plan: Plan) -> tuple[Settings, Plan]:
    """Write what `--recipe` sets into a plan, as if it had been typed; a flag that was typed itself wins, here or where a stage is resolved.

    :return: settings and plan with it; the same ones without `--recipe`.
    :raises UserError: when it does not go together with what a stage says.
    """
    if settings.recipe is None:
        return settings, plan
    recipe, written = RECIPES[settings.recipe], plan.to_json()
    averages = False
    for number, stage in enumerate(plan.stages):
        length = {"epochs": recipe.epochs} if recipe.epochs is not None and stage.length == _WITHOUT_LENGTH else {}
        rows = _optimizer_rows(settings, recipe, stage)
        averages |= any(row is not None and row.averages for row in rows)
        known = all(row is None or all(member.width_power is not None for member in row.members) for row in rows)
        written["stages"][number] |= {key: value for key, value in recipe.stage.items() if key != "lr_width" or known} | length
        written["stages"][number].pop("share_of_plan", None)  # the recipe has a schedule for each stage
    model = written.get("model", {}) | recipe.model
    before = settings.experiment(plan)
    if "exp" not in settings.explicit and ":" not in before:
        model["exp"] = recipe.family + next((size for size in _SIZES if before.endswith(size)), "")
        if model["exp"] != before:
            model.pop("settings", None)  # of another family
    written["model"] = model
    if "ema" not in settings.explicit:
        settings = replace(settings, ema=0.0 if averages else recipe.ema)
    return settings, plan_from_json(written, f"--recipe {settings.recipe}")


def _optimizer_rows(settings: Settings, recipe: Recipe, stage: Stage) -> list[OptimizerRow | None]:
    """Look up the optimizers that a stage will have with a recipe; None for a name that there is not, which is refused later."""
    names = [settings.optimizer if "optimizer" in settings.explicit else recipe.stage["optimizer"]["name"],
             *(rule.kind for rule in stage.optimizer_rules or () if rule.kind is not None)]
    return [optimizer_row(name) if name in OPTIMIZERS or CODE.fullmatch(name) else None for name in names]


def with_sizes(plan: Plan, sizes: dict[str, Any], tokens: int | None = None) -> Plan:
    """Write the sizes of a new model into a plan.

    :param sizes: by the keys of `$model`.
    :param tokens: the length of the stages; None = as it is.
    """
    written = plan.to_json()
    if tokens is not None:
        written["stages"] = [{key: value for key, value in stage.items() if key not in LENGTHS} | {"tokens": tokens} for stage in written["stages"]]
        for stage in written["stages"]:  # of which there is one
            if "share_of_plan" in stage:
                stage["share_of_plan"] |= {"unit": "tokens", "length": float(tokens)}
    sized = plan_from_json({**written, "model": written.get("model", {}) | sizes}, "the plan with a length in tokens")
    try:
        for one in sized.stages:
            _ = one.lr_chain
    except ScheduleFault as fault:
        raise UserError(f"the plan with a length in tokens, key '$lr_schedule{fault.key}': {fault.fault}.") from None
    return sized


def keep_written(plan: Plan, before: dict[str, Any], stored_plan: dict[str, Any]) -> Plan:
    """Write into the plan of a run that goes on what flags had written when it began; the tables may have changed since then.

    :param before: the settings in the checkpoint.
    :param stored_plan: the plan in it.
    """
    recipe = RECIPES[name] if (name := before.get("recipe")) is not None else None
    timed = before.get("train_for") is not None
    if recipe is None and not timed and before.get("params") is None:
        return plan
    keys = {*((*recipe.stage, "share_of_plan") if recipe is not None else ()),
            *(LENGTHS if timed or (recipe is not None and recipe.epochs is not None) else ())}
    stored = {stage["name"]: stage for stage in stored_plan["stages"]}
    written = plan.to_json()
    for number, stage in enumerate(written["stages"]):
        if (old := stored.get(stage["name"])) is not None:
            # A recipe's length is that of stages without one.
            replaced = keys if timed or plan.stages[number].length == _WITHOUT_LENGTH else keys - {*LENGTHS}
            kept = {key: old[key] for key in replaced if key in old}
            written["stages"][number] = {key: value for key, value in stage.items() if key not in replaced} | kept
    return plan_from_json({**written, "model": stored_plan.get("model", {})}, "the plan with what the run began with")


def recipe_in_words(settings: Settings, plan: Plan, experiment: str, args: Mapping[str, Any]) -> str | None:
    """Say what a recipe has set and why, what the model does not have, and which flags have replaced it; None without one.

    :param plan: with it.
    :param experiment: the model's.
    :param args: the model's.
    """
    if settings.recipe is None:
        return None
    recipe, stage = RECIPES[settings.recipe], plan.stages[-1]
    values: dict[str, Any] = {"exp": experiment, "dropout": args.get("dropout"), "optimizer": stage.optimizer and stage.optimizer.name, "lr": stage.lr,
                              "lr_width": stage.lr_width, "lr_schedule": stage.lr_chain.in_words(), "warmup": stage.warmup, "weight_decay": stage.weight_decay,
                              "grad_clip": stage.grad_clip, "batch_size": stage.batch_size, "ema": settings.ema or None,
                              "early_stopping": stage.early_stopping and f"after {stage.early_stopping.patience}",
                              "length": f"{stage.epochs:g} epochs" if recipe.epochs is not None and stage.epochs is not None else None}
    typed = {flag.name: getattr(settings, flag.name) for flag in FLAGS if flag.name in settings.explicit and flag.name in values}
    said = ", ".join(f"{name} {value}" for name, value in values.items() if value is not None and name not in typed)
    instead = f"; typed: {', '.join(f'{name} {value}' for name, value in typed.items())}" if typed else ""
    lacking = [name for name in recipe.model if name not in args]
    without = f"; left out, as {experiment} has no such setting: {', '.join(lacking)}" if lacking else ""
    if recipe.ema and not settings.ema and "ema" not in typed:
        without += f"; left out, as the optimizer keeps an average of its own: ema {recipe.ema:g}"
    return f"{settings.recipe}: {recipe.why}; {said}{without}{instead}"
