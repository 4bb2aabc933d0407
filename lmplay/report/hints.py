"""What would make a run faster, said at its start: only what is known to help here.  Engine floor."""
from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from ..device.machine import cpu_flags

if TYPE_CHECKING:
    from ..engine.opening import Run

# Below these a step's time goes elsewhere than into what a flag would make faster: parameters, steps to come, tokens of a piece.
_LARGE, _MANY_STEPS, _LONG = 20_000_000, 2_000, 512
_MOST = 2


def hints(run: Run) -> list[str]:
    """Say which flags would make a run faster that is about to begin.

    :param run: an open run.
    :return: at most two sentences, each beginning with the flag, given or not; none for a run that goes on, which should stay what it is.
    """
    if run.runner.resumes:
        return []
    settings, runtime = run.settings, run.runner.runtime
    large = sum(parameter.numel() for parameter in run.model.module.parameters()) >= _LARGE
    lines = []
    if large and not settings.amp and "amp" not in settings.explicit and has_bfloat16(runtime.device):
        lines.append("--amp computes in bfloat16, for which this device has instructions: less time for matrix products, and less memory")
    if settings.amp and runtime.device.type == "cpu" and cpu_flags() and not has_bfloat16(runtime.device):
        lines.append("--amp: this CPU has no instructions for bfloat16, and a step takes several times as long as without it")
    if large and runtime.device.type == "cuda" and not settings.compile_model and "compile_model" not in settings.explicit and find_spec("triton") \
            and _steps(run) >= _MANY_STEPS:
        lines.append("--compile-model takes a minute or two at the start, and makes each step faster")
    longest = max((stage.context_len for stage in run.stage_settings.values()), default=0)
    if runtime.device.type == "cpu" and not settings.compile_model and "dropout" not in settings.explicit and settings.initial_model is None \
            and run.model.args.get("dropout", 0) and longest >= _LONG:
        lines.append("--dropout 0 lets a CPU take its fast attention, which has no dropout; it matters where the texts are long")
    return lines[:_MOST]


def has_bfloat16(device: torch.device) -> bool:
    """Tell whether a device multiplies matrices of bfloat16 faster than those of float32; False where that is not known."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and not cpu_flags().isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})  # the last is Arm's


def _steps(run: Run) -> float:
    """Count the steps of the stages at least, as far as their lengths are known: a sample may have several pieces."""
    steps = 0.0
    for stage, _ in run.curriculum.remaining():
        settings = run.stage_settings[stage.name]
        if stage.tokens is not None:
            steps += stage.tokens / (settings.batch_size * settings.context_len)
        else:
            steps += (run.stage_data[stage.name].open_samples().total or 0) / settings.batch_size
    return steps
