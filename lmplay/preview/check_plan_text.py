"""The text that `--check-plan` prints."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..words import bytes_in_words, counted, duration, rows_in_words
from .show import sample_in_words


def to_text(found: dict[str, Any]) -> str:
    """Write the result of :func:`.check_plan.check_plan` as text."""
    lines = [f"model       {found['model']}: {found['parameters']:,} parameters", f"tokenizer   {found['tokenizer']}: {found['vocabulary']:,} tokens",
             f"device      {found['device']}, {found['precision']}"]
    for stage in found["stages"]:
        sources = (f"{source['name']} ({rows_in_words(source['rows_trained_on'], source['rows_held_out'])})" for source in stage["sources"])
        lines += ["", f"== stage {stage['name']}: {', '.join(sources)}", *(f"   {name:<12}{text}" for name, text in _stage_lines(stage))]
    for stage in found["stages"]:
        for sample in stage["first_samples"]:
            lines += ["", *sample_in_words(f"first sample of {sample['source']}", sample)][:-1]
    memory = "unknown" if found["peak_memory_bytes"] is None else bytes_in_words(found["peak_memory_bytes"])
    sets = f", and {_time(found['evaluation_seconds'])} for the named sets" if any(stage["evaluate"] for stage in found["stages"]) else ""
    lines += ["", f"in all      {_time(found['seconds'])} of training on {found['device']} as it was just now, without validations{sets}",
              f"memory      {memory} at its peak here",
              f"disk        {bytes_in_words(found['checkpoint_bytes'])} a checkpoint, at most {bytes_in_words(found['checkpoints_bytes'])} for all "
              "that are kept"]
    return "\n".join(lines)


def _stage_lines(stage: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each line about a stage."""
    yield from (("reads", line) for line in stage["reads"])
    if "adapter" in stage:
        yield "trains", stage["adapter"]
    whole = stage["samples"] == stage["samples_looked_at"]
    looked = "all were looked at" if whole else f"{stage['samples_looked_at']:,} were looked at"
    yield "samples", f"{_count(stage['samples'])} ({looked}), {stage['pieces_per_sample']:.2f} pieces each, {stage['forced_cut_share']:.1%} of the cuts forced"
    if stage["cut_prompts"]:
        yield "prompts", f"of {stage['cut_prompts']:,} of these samples the prompt does not fit in the context with what follows it: its beginning is left out"
    if stage["cut_answers"]:
        yield "answers", f"{stage['cut_answers']:,} answers of these pairs do not fit in the context behind their prompt: their end is left out"
    yield from (("rows", f"{line}, of {stage['rows_read']:,} read") for line in stage["losses"])
    yield "tokens", _count(stage["tokens"]) + (f" ± {stage['tokens_error']:.1%}" if stage["tokens_error"] else "")
    yield "steps", f"{_count(stage['steps'])}, padding {stage['padding_share']:.1%}"
    yield "time", _time(stage["seconds"])
    yield from (("lr_schedule", f"{part}: the stage is too short for it") for part in stage["cut_short"])
    if "teacher_bytes" in stage:
        yield "teacher", f"what it says of the tokens takes about {bytes_in_words(stage['teacher_bytes'])} in the output folder"
    for one in stage["evaluate"]:
        tokens = f"{_count(one['tokens'])} tokens" + " (estimated)" * (not one["whole"] and one["tokens"] is not None)
        times = "an unknown number of times" if one["times"] is None else counted(one["times"], "time")
        yield "judged by", f"{one['name']}: {rows_in_words(one['rows'], None)}, {tokens}, {_time(one['seconds'])} each, {times}: {_time(one['seconds_in_all'])}"
    yield "twice", f"{stage['duplicates']:,} of {stage['compared']:,} training samples looked at are exact duplicates of another"
    if stage["validation_compared"]:
        yield "overlap", f"{stage['validation_overlap']:,} of {stage['validation_compared']:,} validation samples are among these training samples"
    else:
        yield "validation", "none: no rows are held out"


def _count(value: int | None) -> str:
    """Write a count."""
    return "unknown" if value is None else f"{value:,}"


def _time(seconds: float | None) -> str:
    """Write a duration, if it is known."""
    return "unknown time" if seconds is None else duration(seconds)
