"""The record of the settings that a run used, NAME_settings.json: what its keys mean, and how it becomes flags again.  No torch.

The record holds what was used, not what flags say: a stage's values are under `stages`, after plan and flags, and the model's under `model_args`.
Under `typed` and `defaults` are the flags as they were given, so that `--use-config` repeats the run, and `plan` is what it followed.
"""
from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from .names import OPTIMIZER_SETTINGS, optimizer_row
from .options import CHANGING, FLAGS, ONCE, WRITTEN, Change
from .settings import MODEL_KEYS, Settings, StageSettings

if TYPE_CHECKING:
    from .schedules import Chain
    from .schema import Stage

# Parts of a record that are no settings, or that stand elsewhere in it, too.
_APART = ("given", "plan", "model_args", "stages", "typed", "defaults", "command", "folder", "time", "data", "versions")
_BY_STAGE = tuple(flag.name for flag in FLAGS if flag.change is Change.BY_STAGE)
# What a stage's plan entry says in other words than `StageSettings`.
_SAID_OTHERWISE = ("name", "lr_schedule", "share_of_plan", "early_stopping")
# What is known of a stage's validations when it has begun.
VALIDATIONS = ("validation_samples", "validation_tokens", "validated")


def run_settings(settings: Settings) -> dict[str, Any]:
    """List the flags that hold for the whole run; those of stages and of the model are recorded as they were used."""
    return {flag.name: getattr(settings, flag.name) for flag in FLAGS if flag.name not in {*_BY_STAGE, *MODEL_KEYS}}


def stage_settings(stage: Stage, used: StageSettings) -> dict[str, Any]:
    """List what a stage used: its plan entry, with the values that flags and defaults have given."""
    said = stage.model_dump(exclude_none=True, by_alias=True)
    values = {key: value for key, value in said.items() if key not in _SAID_OTHERWISE} | asdict(replace(used, optimizer_rules=()))
    del values["validation_is_bounded"], values["lr_schedule"], values["ema"]  # which is a flag of the whole run
    values |= _schedule(used.lr_schedule)
    for key in CHANGING:
        del values[f"{key}_schedule"]
        if (chain := getattr(used, f"{key}_schedule")) is not None:
            values[key] = chain.in_words()
    values["optimizer_rules"] = said.get("optimizer_rules")
    values = {key: value for key, value in values.items() if value or key not in ("optimizer_rules", "optimizer_settings", "objective_settings", "adapter")}
    row = optimizer_row(used.optimizer)
    unsaid = {**dict.fromkeys(OPTIMIZER_SETTINGS), **row.takes, "weight_decay": row.weight_decay}
    values |= {name: value for name, value in unsaid.items() if values[name] is None}
    return {name: value for name, value in values.items() if name not in OPTIMIZER_SETTINGS or name in row.takes or value is not None}


def _schedule(chain: Chain) -> dict[str, Any]:
    """Say how a stage's learning rate goes: by the name of a single shape and where that ends, or in words."""
    single = len(chain.parts) == 1 and chain.parts[0].start is None
    return {"schedule": chain.in_words(), **({"min_fraction": chain.parts[0].end} if single else {})}


def flags_as_given(settings: Settings) -> dict[str, dict[str, Any]]:
    """List all flags, those that were typed apart, for :func:`flags_of_record`."""
    return {name: {flag.name: getattr(settings, flag.name) for flag in FLAGS if (flag.name in settings.explicit) is typed}
            for name, typed in (("typed", True), ("defaults", False))}


def is_record(content: Any) -> bool:
    """Tell whether the content of a file is a record that a run can be repeated from."""
    return isinstance(content, dict) and all(isinstance(content.get(key), dict) for key in ("typed", "defaults", "plan")) and "stages" in content["plan"]


def flags_of_record(record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the flags out of a record: those that were typed, and the values of the others; what names the plan, or starts anew, is left out."""
    left_out = {"training_plan", "dataset", *WRITTEN, *ONCE}
    typed, others = ({name: value for name, value in record[key].items() if name not in left_out} for key in ("typed", "defaults"))
    known = {flag.name for flag in FLAGS} - {"out_dir", "callback"}  # the environment may give the one, and code of a file is run only where it was typed
    return typed, {name: value for name, value in others.items() if name in known and value is not None}


def flat_settings(record: dict[str, Any]) -> dict[str, Any]:
    """Put all settings of a record side by side, those of a stage as STAGE.KEY and versions as versions.NAME; records of version 0.1 are read, too."""
    record = record if "stages" in record else _with_stages(record)
    flat = {key: value for key, value in record.items() if key not in _APART} | _dict(record.get("model_args"))
    flat |= {f"versions.{name}": version for name, version in _dict(record.get("versions")).items()}
    for name, stage in record["stages"].items():
        flat |= {f"{name}.{key}": value for key, value in _dict(stage).items()}
    return flat


def _with_stages(record: dict[str, Any]) -> dict[str, Any]:
    """Work out what the stages of a record of version 0.1 used: it has the values of flags, the names of those typed, and the plan."""
    typed, model, stages = record.get("given") or (), _dict(record.get("model_args")), {}
    for stage in _dict(record.get("plan")).get("stages") or ():
        if isinstance(stage, dict):
            own = {key: value for key, value in stage.items() if key != "name"}
            said = {key: record[key] for key in _BY_STAGE if key in record and (key in typed or key not in own)}
            if "context_len" in said and "context_len" not in typed:
                said["context_len"] = model.get("context_len", said["context_len"])
            stages[stage.get("name")] = own | said
    apart = {*MODEL_KEYS, *_BY_STAGE} if stages else {*MODEL_KEYS} & model.keys()
    return {**{key: value for key, value in record.items() if key not in apart or key == "tokenizer"}, "stages": stages}


def _dict(value: Any) -> dict[str, Any]:
    """Give a dictionary as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}
