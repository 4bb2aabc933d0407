"""What the user is told when a stage or a run ends.  Report floor, no torch."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..stats.figures import NATS, REWARD
from ..stats.totals import HELD_OUT, Judged
from ..words import bytes_in_words, counted
from .records import RunEnd, RunFiles, StageEnd

_SET_COLUMNS = (("loss", "loss", "{:.4f}"), ("± error", "standard_error", "{:.4f}"), ("perplexity", "perplexity", "{:,.2f}"),
                ("bits/byte", "bits_per_byte", "{:.4f}"), ("accuracy", "accuracy", "{:.1%}"), ("by edits", "edit_accuracy", "{:.1%}"))


def stage_end_lines(stage: StageEnd) -> list[str]:
    """Say what a stage has done."""
    totals, more = stage.totals, ""
    if totals["cut_prompts"]:
        more += f"; {counted(totals['cut_prompts'], 'prompt')} too long for the context, whose beginning was left out"
    if totals["no_tokens"]:
        more += f"; {counted(totals['no_tokens'], 'sample')} without a token"
    if totals["skipped_batches"]:
        more += f"; {counted(totals['skipped_batches'], 'batch', 'batches')} skipped, whose loss or gradient was not finite"
    if stage.early is not None:
        more += (f"; ended early: no better validation for {stage.early.stale}; the best state, {loss_in_words(stage.early.loss, stage.early.unit)} "
                 f"at {stage.early.samples:,} samples, is {stage.early.best}, and the next stage continues from the last")
    lines = [f"== stage {stage.name} done: {counted(totals['total_train_samples'], 'sample')}, {counted(totals['total_train_tokens'], 'token')}, "
             f"{counted(totals['total_train_steps'], 'step')}, padding {totals['padding'] / max(totals['places'], 1):.1%}, "
             f"{counted(totals['continuations'], 'continuation')}, {counted(totals['forced_cuts'], 'piece')} cut inside a sentence, "
             f"{counted(totals['broken_samples'], 'batch end')} inside a sample{more}"]
    if stage.sources:
        lines.append("   " + "; ".join(_describe_source(name, said) for name, said in stage.sources.items()))
    return lines + [f"   {line}" for line in stage.lost] + [f"   {line}" for line in sets_table(stage.sets)]


def loss_in_words(loss: float, unit: str = NATS, standard_error: float | None = None) -> str:
    """Write a validation loss, or the reward that it is, with its standard error, if that is known."""
    if unit == REWARD:
        return f"reward {-loss:.3f}"
    return f"loss {loss:.3f}{'' if standard_error is None else f' ± {standard_error:.3f}'} {unit}".rstrip()


def judged_in_words(judged: Judged) -> str:
    """Write the loss of a validation."""
    return loss_in_words(judged["loss"], judged.get("unit", NATS), judged.get("standard_error"))


def set_line(name: str, figures: Mapping[str, Any], skipped: Mapping[str, int]) -> str:
    """Say what was found on a named set."""
    error = f" ± {figures['standard_error']:.3f}" if figures["standard_error"] is not None else ""
    bits = f"{figures['bits_per_byte']:.3f} bits per byte, " if figures["bits_per_byte"] is not None else ""
    return (f"evaluation of {name}: loss {figures['loss']:.3f}{error} nats per token, perplexity {figures['perplexity']:,.2f}, {bits}"
            f"of {counted(figures['n_samples'], 'sample')} and {counted(figures['n_tokens'], 'token')}"
            + (f"; left out: {', '.join(f'{count:,} {reason}' for reason, count in skipped.items())}" if skipped else ""))


def sets_table(sets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lay out what was found on each set of samples, and after how many samples of training where these differ."""
    rows = [["set", "samples", "tokens", *(heading for heading, _, _ in _SET_COLUMNS)]]
    rows += [["held out" if name == HELD_OUT else name, f"{one['n_samples']:,}", f"{one['n_tokens']:,}",
              *("-" if one.get(key) is None else form.format(one[key]) for _, key, form in _SET_COLUMNS)] for name, one in sets.items()]
    if len({one["samples"] for one in sets.values()}) > 1:
        for row, after in zip(rows, ["after", *(f"{one['samples']:,}" for one in sets.values())], strict=True):
            row.append(after)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:{'>' if number else '<'}{width}}" for number, (cell, width) in enumerate(zip(row, widths, strict=True)))
            for row in rows] if sets else []


def result_lines(end: RunEnd) -> list[str]:
    """Say what a run has reached, and its memory and compilations."""
    lines = []
    if end.best is not None:
        lines.append(f"best validation {judged_in_words(end.best)} at {counted(end.best['samples'], 'sample')}")
    lines += sets_table(end.sets)
    if end.peak_memory is not None:
        lines.append(f"peak memory {bytes_in_words(end.peak_memory)}")
    if end.graphs is not None:
        lines.append(f"compiled    {counted(end.graphs[0], 'graph')}, {end.graphs[1] or 'none'} of them again")
    return lines


def file_lines(files: RunFiles) -> list[str]:
    """Say where the statistics and the log are, how to draw them, and how to use the model."""
    return [f"statistics  {files.folder}", f"log         {files.log}", f"to plot     {files.plot_command}", f"to write    {files.write_command}"]


def file_fields(end: RunEnd) -> dict[str, Any]:
    """List the same for programs."""
    return {"model": str(end.files.model), "statistics": str(end.files.folder), "log": str(end.files.log), "peak_memory_bytes": end.peak_memory,
            "plot": end.files.plot_command}


def _describe_source(name: str, said: Mapping[str, Any]) -> str:
    """Describe a source's part of a stage, and its mean losses at the end."""
    parts = (("epochs", " {:.2f} epochs"), ("train_loss", " loss {:.3f}"), ("validate_loss", " validation {:.3f}"))
    known = "".join("," + form.format(said[key]) for key, form in parts if said[key] is not None)
    return f"{name} {said['samples']:,} samples, {said['tokens']:,} tokens{known}"
