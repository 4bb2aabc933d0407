"""What the user is told when a run or a stage begins.  Report floor, no torch."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..words import bytes_in_words, clock, counted, rows_in_words
from .records import RunStart, StageStart


def banner_lines(start: RunStart, versions: Mapping[str, str]) -> list[str]:
    """Say what a run will do; without versions of the software the flags are left out too."""
    there = f"; there are {bytes_in_words(start.memory_there)}" if start.memory_there is not None else ""
    args = ", ".join(f"{name} {value}" for name, value in start.model_args.items() if not isinstance(value, dict))
    lines = [*([f"recipe      {start.recipe}"] if start.recipe is not None else []),
             f"model       {start.experiment}: {start.parameters:,} parameters, {args}",
             f"tokenizer   {start.tokenizer}: {start.vocabulary:,} tokens",
             f"device      {start.device}, {start.precision}{', compiled' if start.compiled else ''}, batch {' / '.join(map(str, start.batch_sizes))}, "
             f"mini-batch {f'{start.mini_batch_tokens} tokens' if start.mini_batch_tokens else start.mini_batch_size}",
             f"memory      {bytes_in_words(start.memory_needed)} for weights, gradients and the optimizer's state, and what a mini-batch takes{there}",
             f"checkpoint  {start.files.model}"]
    for number, stage in enumerate(start.stages, 1):
        length = f" ({counted(stage.samples, 'sample')})" if stage.samples is not None and "samples" not in stage.length else ""
        lines.append(f"stage {number}/{len(start.stages)}   {stage.name} ({stage.state}): {stage.length}{length} of {' + '.join(stage.dataset)}")
    if start.resumed:
        lines.append(f"resumed     at {counted(start.samples, 'sample')}")
    if versions:
        lines += [f"{name:<11} {value}" for name, value in versions.items()]
        lines.append("flags       " + (", ".join(f"{name} {value}" for name, value in start.flags.items()) or "none"))
    if start.changes:
        lines += ["since the checkpoint:" if start.resumed else "note:", *(f"  {change}" for change in start.changes)]
    if start.seconds_left is not None:
        lines.append(f"time limit  in {clock(start.seconds_left)}; stops early enough to save")
    return lines + [f"hint        {hint}" for hint in start.hints]


def banner_fields(start: RunStart) -> dict[str, Any]:
    """List the same for programs."""
    return {"experiment": start.experiment, "parameters": start.parameters, "model_args": start.model_args, "tokenizer": start.tokenizer,
            "vocabulary": start.vocabulary, "device": start.device, "precision": start.precision, "compiled": start.compiled,
            "batch_size": start.batch_size, "mini_batch_size": start.mini_batch_size, "checkpoint": str(start.files.model),
            "stages": [asdict(stage) for stage in start.stages], "samples": start.samples, "resumed": start.resumed, "changes": start.changes,
            "hints": start.hints, "recipe": start.recipe, "memory_bytes": start.memory_there, "memory_needed_bytes": start.memory_needed}


def stage_lines(stage: StageStart) -> list[str]:
    """Say what a stage reads, and how it trains."""
    rows = " + ".join(f"{name} ({rows_in_words(count, stage.held_out[name])})" for name, count in stage.rows.items())
    lines = [f"\n== stage {stage.name}: {rows}", *(f"   reads {line}" for line in stage.reads),
             f"   batch {stage.batch_size}, context {stage.context_len}, lr {stage.lr:g} {stage.schedule}"
             + (f", {counted(stage.frozen, 'tensor')} frozen" if stage.frozen and not stage.adapter else ""),
             *([f"   {stage.adapter}"] if stage.adapter else [])]
    if stage.floor is not None:
        lines.append(f"   floor: {stage.floor:.3f} nats per token, {stage.floor_bits:.3f} bits per byte: no model can do better on this text")
    if not stage.has_validation:
        judged = "no validation: no rows are held out (docs/questions.md)"
    elif stage.validation_samples is None:
        judged = f"validated {stage.validated}, by all held-out samples"
    else:
        judged = f"validated {stage.validated}, by the same {counted(stage.validation_samples, 'held-out sample')} each time"
    return [*lines, f"   saved {stage.saved}", f"   {judged}", *(f"   judged by {line}" for line in stage.sets)]
