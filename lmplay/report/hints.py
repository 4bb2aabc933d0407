"""Hints at the start of a run: flags that are known to make it faster here.  Report floor."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch

from ..device.machine import cpu_flags
from ..plan.settings import Settings

# With fewer parameters, steps to come, or tokens in a piece, these flags save little time.
_LARGE, _MANY_STEPS, _LONG = 20_000_000, 2_000, 512
# With fewer tokens in a mini-batch a large GPU spends much of its time on the head's gradient, which each of them goes over.
_MANY_TOKENS = 16_384
_MOST = 2


def hints(settings: Settings, device: torch.device, parameters: int, model_args: Mapping[str, Any], longest: int, steps: Callable[[], float]) -> list[str]:
    """Say which flags would make a run faster that is about to begin.

    :param parameters: number of the model's parameters.
    :param longest: the longest context of the stages, in tokens.
    :param steps: counts the steps to come at least, by the stages whose lengths are known.
    :return: at most two sentences, each beginning with the flag.
    """
    typed, large, on_cpu = settings.explicit, parameters >= _LARGE, device.type == "cpu"
    lines = []
    if large and not settings.amp and "amp" not in typed and has_bfloat16(device):
        lines.append("--amp computes in bfloat16, for which this device has instructions: less time for matrix products, and less memory")
    if settings.amp in (True, "bfloat16") and on_cpu and cpu_flags() and not has_bfloat16(device):
        lines.append("--amp: this CPU has no instructions for bfloat16, and a step takes several times as long as without it")
    if large and device.type == "cuda" and not settings.compile_model and "compile_model" not in typed and find_spec("triton") \
            and steps() >= _MANY_STEPS:
        lines.append("--compile-model takes a minute or two at the start, and makes each step faster")
    tokens = settings.token_budget(longest)
    if device.type == "cuda" and not typed & {"mini_batch_size", "mini_batch_tokens"} and tokens < _MANY_TOKENS:
        lines.append(f"--mini-batch-size auto measures what this GPU takes at once; {tokens:,} tokens, the default, are few for a large one")
    if large and device.type == "cuda" and not settings.amp and settings.matmul_precision == "highest" and "matmul_precision" not in typed \
            and "amp" in typed and has_bfloat16(device):  # the same cards have both
        lines.append("--matmul-precision high computes float32 products in TF32: several times as fast, with 10 bits of precision")
    if on_cpu and not settings.compile_model and "dropout" not in typed and settings.initial_model is None and model_args.get("dropout", 0) \
            and longest >= _LONG:
        lines.append("--dropout 0 lets a CPU take its fast attention, which has no dropout; it matters where the texts are long")
    return lines[:_MOST]


def has_bfloat16(device: torch.device) -> bool:
    """Tell whether a device multiplies bfloat16 matrices faster than float32 ones; False where unknown."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and not cpu_flags().isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})  # the last is Arm's
