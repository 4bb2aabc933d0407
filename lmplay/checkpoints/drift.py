"""What is not as it was when a checkpoint was written: every difference is told.  What would change the meaning of the past is refused elsewhere
(`Curriculum.check_past`, `engine.run`).  Engine floor, no torch.
"""
from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..plan.curriculum import Curriculum, changes_to_come, show
from ..plan.load import plan_from_json
from ..plan.schema import Plan
from ..plan.settings import Settings, StageSettings, resolve_stage
from . import format as checkpoint

# Settings that shape what is trained, by stage: told as they come out there, below flags and plan.
_BY_STAGE = ("batch_size", "context_len", "lr", "weight_decay", "grad_clip")
# Settings that the model file decides, the plan's comparison covers, or that say where and how long, not what.
_ASIDE = {*_BY_STAGE, "exp", "num_blocks", "embed_dim", "num_heads", "dropout", "tied_head", "tokenizer", "model", "initial_model", "reset_history",
          "training_plan", "dataset", "save_datasets", "out_dir", "check_grads", "ignore_optimizer", "device", "resume", "save_weights_only", "time_limit",
          "max_steps", "max_samples_this_run", "tune_allocator", "keep", "data_workers", "accept_changed_data", "describe", "inspect",
          "check_plan", "show_samples", "show_batch", "json", "explicit", "track", "callback", "sample_prompts", "sample_tokens", "quiet", "verbose",
          "log_json"}
# Settings that change the order of sums, no more.
_BITS = {"mini_batch_size", "mini_batch_tokens", "pack", "compile_model", "compile_mode", "compile_backend", "activation_checkpointing",
         "activation_memory_budget", "device", *checkpoint.versions()}


def changes(settings: Settings, stored: dict[str, Any], curriculum: Curriculum, stage_settings: dict[str, StageSettings], device: str) -> list[str]:
    """List every difference between a checkpoint and the run that goes on from it.

    :param settings: the run's.
    :param stored: the checkpoint.
    :param curriculum: restored from it.
    :param stage_settings: what holds for each stage that is left.
    :param device: where the run computes.
    :return: a line for each.
    """
    runner, model = stored["runner"]["state_args"], stored["model"]["state_args"]
    before = _settings(runner["settings"])
    plan = plan_from_json(stored["curriculum"]["state_args"]["plan"])
    begun = {state.name for state in curriculum.states if state.fingerprints is not None}
    pairs = [(name, stored["versions"].get(name), version) for name, version in checkpoint.versions().items()]
    pairs.append(("device", runner.get("device", device), device))
    pairs += [(f"--{name.replace('_', '-')}", getattr(before, name), getattr(settings, name)) for name in
              (entry.name for entry in fields(Settings)) if name not in _ASIDE]
    lines = [f"{name} {_word(old)} -> {_word(new)}" + (" (bits may differ)" if name.strip("-").replace("-", "_") in _BITS else "")
             for name, old, new in pairs if old != new]
    lines += _by_stage(before, curriculum.plan, stage_settings, model["args"]["context_len"])
    lines += changes_to_come(plan, curriculum.plan, begun)
    return lines + _for_new_models(curriculum.plan, model)


def foreign_sizes(settings: Settings, plan: Plan) -> list[str]:
    """Say so when a new model of one experiment gets the sizes that the plan has for another."""
    sizes = plan.model.model_dump(exclude_none=True, exclude={"exp"})
    if "exp" not in settings.explicit or plan.model.exp in (None, settings.exp) or not sizes:
        return []
    return [f"--exp {settings.exp} is built with the plan's $model, which is meant for {plan.model.exp}: {show(sizes)}"]


def _settings(stored: dict[str, Any]) -> Settings:
    """Make settings of what a checkpoint has of them; flags that it does not know have their defaults."""
    known = {entry.name for entry in fields(Settings)}
    return Settings(**{name: value for name, value in stored.items() if name in known and name != "given"}, explicit=frozenset(stored["given"]))


def _by_stage(before: Settings, plan: Plan, stage_settings: dict[str, StageSettings], context_len: int) -> list[str]:
    """List what the flags now change in the stages that are left: a stage may say something itself, and then only a typed flag counts."""
    found: dict[str, list[str]] = {}
    for stage in plan.stages:
        if stage.name in stage_settings:
            old, new = resolve_stage(before, stage, max(context_len, stage.context_len or 0)), stage_settings[stage.name]
            for name in _BY_STAGE:
                if getattr(old, name) != getattr(new, name):
                    found.setdefault(f"{name} {_word(getattr(old, name))} -> {_word(getattr(new, name))}", []).append(f"'{stage.name}'")
    return [f"{change} in stage{'s' * (len(stages) > 1)} {', '.join(stages)}" for change, stages in found.items()]


def _for_new_models(plan: Plan, model: dict[str, Any]) -> list[str]:
    """List what the plan says of new models, where this one is otherwise."""
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
