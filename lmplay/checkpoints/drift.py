"""The differences between a checkpoint and the run that resumes from it, to be told.  No torch.

Differences that would change the meaning of what has been trained are refused elsewhere (`Curriculum.check_past`, `engine.opening`).
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plan.curriculum import DATA_RULES, Curriculum, changed_rewards, changed_sets, changes_to_come, show
from ..plan.load import plan_from_json
from ..plan.options import CHANGING, FLAGS, Change
from ..plan.schema import Plan
from ..plan.settings import Settings, StageSettings, resolve_stage, settings_from_json
from . import format as checkpoint

# Settings that are compared by stage, below flags and plan.
_BY_STAGE = [*(flag.name for flag in FLAGS if flag.change is Change.BY_STAGE), *(f"{key}_schedule" for key in CHANGING)]


def changes(settings: Settings, stored: dict[str, Any], curriculum: Curriculum, stage_settings: dict[str, StageSettings], runs_on: Mapping[str, str]) \
        -> list[str]:
    """List every difference between a checkpoint and the run that resumes from it, a line each.

    :param stored: the checkpoint.
    :param runs_on: the device and the precision.
    :param curriculum: restored from it.
    :param stage_settings: of each stage that is not done.
    """
    model = stored["model"]["state_args"]
    before = settings_from_json(stored["runner"]["state_args"]["settings"])
    plan = plan_from_json(stored["curriculum"]["state_args"]["plan"])
    begun = {state.name for state in curriculum.states if state.fingerprints is not None}
    pairs = [(name, stored.get("versions", {}).get(name, "1"), version, True) for name, version in checkpoint.versions().items()]
    before_on = stored["runner"]["state_args"].get("runs_on", {})
    pairs += [(name, before_on.get(name, now), now, True) for name, now in runs_on.items() if name != "precision" or before.amp == settings.amp]
    pairs += [(f"--{flag.name.replace('_', '-')}", getattr(before, flag.name), getattr(settings, flag.name), flag.change is Change.BITS)
              for flag in FLAGS if flag.change in (Change.TOLD, Change.BITS)]
    lines = [f"{name} {_word(old)} -> {_word(new)}" + " (bits may differ)" * bits for name, old, new, bits in pairs if old != new]
    lines += _by_stage(before, curriculum.plan, stage_settings, model["args"]["context_len"])
    if settings.ignore_optimizer:
        lines.append("--ignore-optimizer: the optimizer's state is fresh" + ", and its warm-up starts again" * (not settings.disable_optimizer_warmup))
    lines += changes_to_come(plan, curriculum.plan, begun)
    at_work = [stage for stage, state in curriculum.remaining() if state.name in begun]
    now = curriculum.plan.model_copy(update={"stages": at_work})
    lines += [*changed_sets(plan, now), *changed_rewards(plan, now)]
    lines += [f"stage '{state.name}' began with an older version, and goes on with its batches and held-out rows" for state in curriculum.states
              if state.name in begun and not state.done and state.rules < DATA_RULES]
    return lines + _for_new_models(curriculum.plan, model)


def foreign_sizes(settings: Settings, plan: Plan) -> list[str]:
    """Warn when a new model of one experiment gets the sizes that the plan has for another."""
    sizes = plan.model.model_dump(exclude_none=True, exclude={"exp"})
    if "exp" not in settings.explicit or plan.model.exp in (None, settings.exp) or not sizes:
        return []
    return [f"--exp {settings.exp} is built with the plan's $model, which is meant for {plan.model.exp}: {show(sizes)}"]


def _by_stage(before: Settings, plan: Plan, stage_settings: dict[str, StageSettings], context_len: int) -> list[str]:
    """List what the flags change in the stages that are not done; where a stage sets a value itself, only a typed flag changes it."""
    found: dict[str, list[str]] = {}
    for stage in plan.stages:
        if stage.name in stage_settings:
            old, new = resolve_stage(before, stage, max(context_len, stage.longest_context)), stage_settings[stage.name]
            for name in _BY_STAGE:
                if getattr(old, name) != getattr(new, name):
                    found.setdefault(f"{name} {_word(getattr(old, name))} -> {_word(getattr(new, name))}", []).append(f"'{stage.name}'")
    return [f"{change} in stage{'s' * (len(stages) > 1)} {', '.join(stages)}" for change, stages in found.items()]


def _for_new_models(plan: Plan, model: dict[str, Any]) -> list[str]:
    """List what the plan says of new models where this model differs."""
    there = {"exp": model["experiment"], **model["args"]}
    asked = {**plan.model.model_dump(exclude_none=True, exclude={"settings"}), **(plan.model.settings or {})}
    lines = [f"$model {name} {show(value)} of the plan is for new models; this one has {show(there[name])}"
             for name, value in asked.items() if name in there and there[name] != value]
    if plan.tokenizer not in (None, model["tokenizer"]["name"]):
        lines.append(f"$tokenizer {plan.tokenizer} of the plan is for new models; this one has {model['tokenizer']['name']}")
    return lines


def _word(value: Any) -> str:
    """Write a setting as a user would type it."""
    return {True: "on", False: "off", None: "default"}.get(value, str(value)) if value is None or isinstance(value, bool) else str(value)
