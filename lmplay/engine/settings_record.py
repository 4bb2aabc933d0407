"""The record of a run's settings, NAME_settings.json (:mod:`lmplay.plan.used` says what is in it).  Engine floor."""
from __future__ import annotations

import json
import os
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ..cadence import Cadence
from ..checkpoints.format import versions
from ..files import write_text
from ..plan.curriculum import Curriculum
from ..plan.settings import resolve_stage, settings_from_json
from ..plan.used import VALIDATIONS, flags_as_given, run_settings, stage_settings
from .held_out import HeldOut
from .run import Run

# Besides those of lmplay, torch and Python: these can change what is read, and in which order sums are taken.
_PACKAGES = ("numpy", "datasets", "tokenizers", "tiktoken")
_GIT_SECONDS = 5.0  # after which the commit is left out


def settings_record(run: Run) -> dict[str, Any]:
    """Make the record; `run.runner.stages` has what the stages before used, and gets what those to come will use."""
    settings, plan = run.settings, run.curriculum.plan
    for name, stage in run.stages.items():
        before = run.runner.stages.get(name, {})
        known = {key: before[key] for key in VALIDATIONS if VALIDATIONS[-1] in before}
        run.runner.stages[name] = stage_settings(stage.stage, stage.settings) | known
    stages = {stage.name: run.runner.stages[stage.name] for stage in plan.stages if stage.name in run.runner.stages}
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": run.report.command, "folder": os.getcwd(), "git": _git_commit(),
        "versions": versions() | {name: version for name in _PACKAGES if (version := _version(name))},
        **run_settings(settings), "data_workers": run.runtime.data_workers, "exp": run.model.experiment, "tokenizer": run.model.tokenizer.name,
        "device": str(run.runtime.device), "precision": run.runtime.precision, "threads": torch.get_num_threads(), "processes": run.runtime.ranks.size,
        "model": str(run.path), "model_args": run.model.args, "stages": stages,
        "data": {state.name: [{key: value for key, value in one.items() if key != "listed"} for one in fingerprints]
                 for state in run.curriculum.states if (fingerprints := _fingerprints(run, state.name))},
        "plan": plan.to_json(), **flags_as_given(settings)}


def write_settings(run: Run) -> None:
    """Write the run's record beside the statistics; raises OSError when that is not possible."""
    write_text(run.out_dir / f"{run.path.stem}_settings.json", json.dumps(run.settings_record, indent=2, ensure_ascii=False) + "\n")


def note_validations(run: Run, stage: str, held_out: HeldOut, validations: Cadence) -> None:
    """Add the validations of a stage that has begun to the record, and write it anew; what cannot be written is reported."""
    samples = held_out.n_samples if held_out.is_there else 0
    known = "all" if samples is None else samples, None if samples is None else held_out.n_tokens, validations.in_words()
    run.runner.stages[stage] |= dict(zip(VALIDATIONS, known, strict=True))
    run.settings_record["stages"][stage] = run.runner.stages[stage]
    if not run.is_main:
        return
    try:
        write_settings(run)
    except OSError as error:
        run.report.save_failed(run.out_dir, error)


def stages_of_checkpoint(stored: dict[str, Any], curriculum: Curriculum, context_len: int) -> dict[str, dict[str, Any]]:
    """Read what the stages of a checkpoint used; where it has no record of that (version 0.1), by the flags of the run that wrote it.

    :param context_len: the model's.
    """
    arguments = stored["runner"]["state_args"]
    if "stages" in arguments:
        return dict(arguments["stages"])
    before = settings_from_json(arguments["settings"])
    return {stage.name: stage_settings(stage, resolve_stage(before, stage, max(context_len, stage.longest_context)))
            for stage, state in zip(curriculum.plan.stages, curriculum.states, strict=True) if state.done}


def _fingerprints(run: Run, name: str) -> list[dict[str, Any]] | None:
    """Identify the data of a stage."""
    if name in run.stages:
        return run.stages[name].data.fingerprints()
    return next(state.fingerprints for state in run.curriculum.states if state.name == name)


def _version(package: str) -> str | None:
    """Look up the version of an installed package; None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Name the commit of the current folder, with -dirty where files differ from it; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"})
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
