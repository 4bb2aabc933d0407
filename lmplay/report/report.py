"""What the user is told of a run: banner, progress, validations, summary.  Report floor.

On a terminal a tqdm line shows the progress; in a file or a job's output a plain line comes every few seconds.
"""
from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import __version__
from ..checkpoints.format import versions
from ..errors import tell
from ..plan.options import ONCE
from ..plan.schema import Plan
from ..plan.settings import Settings
from ..stats.figures import NATS, REWARD
from ..words import counted
from .banner import banner_fields, banner_lines, stage_lines
from .console import Console
from .progress import ProgressLine, shorten
from .records import RunEnd, RunStart, StageEnd, StageStart, StepDone, Stop, ValidationDone
from .summary import file_fields, file_lines, judged_in_words, loss_in_words, result_lines, set_line, stage_end_lines

# Seconds between two plain progress lines, and two updates of the progress line on a terminal.
_PLAIN_SECONDS, _SHOWN_SECONDS = 10.0, 0.3
_EXAMPLE_CHARACTERS = 300


class Report:
    """Tells the user, on standard output and in NAME.log; the progress line is on standard error.

    :param command: the command line, which is repeated when the run stops.
    :param quiet: print warnings, errors and the summary only.
    :param verbose: print every validation and every save.
    :param log_json: print JSON objects.
    :param logs: keep NAME.log.
    """

    def __init__(self, command: list[str], quiet: bool = False, verbose: bool = False, log_json: bool = False, logs: bool = True):
        self.command = command
        self._command = shlex.join(_to_go_on(command))
        self._console = Console(quiet, log_json, logs)
        self._console.say(f"lmplay {__version__}: {shlex.join(command)}", "command", shown=False, command=command, version=__version__)
        self._quiet, self._verbose = quiet, verbose
        self._progress = ProgressLine()
        self._last_line = time.monotonic()
        self._last_shown = 0.0

    def say(self, text: str) -> None:
        """Say something out of the ordinary, even when quiet."""
        self._console.say(text, level="warning" if text.startswith("WARNING") else "info", always=True)

    def failed(self, text: str) -> None:
        """Log the error that ended the run; the command prints it."""
        self._close_bar()
        self._console.say(text, "failed", "error", shown=False)

    def banner(self, start: RunStart) -> None:
        """Say what will be done."""
        self._console.open_log(start.files.log)
        self._console.say("\n".join(banner_lines(start, versions() if self._verbose else {})), "start", **banner_fields(start))

    def start_stage(self, stage: StageStart) -> None:
        """Say what a stage reads, and start its progress line."""
        self._console.say("\n".join(stage_lines(stage)), "stage", stage=stage.name, samples=stage.progress.samples, of=stage.total, rows=stage.rows,
                          held_out_rows=stage.held_out, reads=list(stage.reads), batch_size=stage.batch_size, context_len=stage.context_len, lr=stage.lr,
                          lr_schedule=stage.schedule, frozen=stage.frozen, floor=stage.floor, validation=stage.has_validation, saved=stage.saved,
                          validated=stage.validated, sets=list(stage.sets), adapter=stage.adapter)
        for warning in stage.warnings:
            self.say(f"WARNING: {warning}")
        self._last_line = time.monotonic()
        self._progress.start_stage(stage)
        if sys.stderr.isatty() and not self._quiet:
            from tqdm import tqdm

            self._console.bar = tqdm(total=stage.total, initial=stage.samples, desc=stage.name, dynamic_ncols=True, mininterval=0.2,
                                     bar_format="{desc} {percentage:.0f}%|{bar:12}| {n_fmt}/{total_fmt} samples{postfix}" if stage.total else
                                     "{desc} {n_fmt} samples{postfix}")

    def progress(self, step: StepDone) -> None:
        """Show a step."""
        now, stage = time.monotonic(), self._progress.stage
        self._progress.add(step)
        if self._console.bar is not None:
            self._console.bar.update(step.samples)
            if now - self._last_shown >= _SHOWN_SECONDS:
                self._last_shown = now
                self._console.bar.set_postfix_str(self._progress.text())
        if now - self._last_line < _PLAIN_SECONDS:
            return
        self._last_line = now
        share = "" if step.share is None else f" ({step.share:.0%})"
        rate = f"lr {step.lr:.3g}, " if self._verbose else ""
        of = f" of {stage.total:,}" if stage.total else ""
        self._console.say(f"{stage.name}: {step.stage_samples:,}{of} samples{share}, {rate}{self._progress.text()}", "progress",
                          shown=self._console.bar is None, stage=stage.name, step=step.progress.step, samples=step.progress.samples,
                          stage_samples=step.stage_samples, of=stage.total, share=step.share, lr=step.lr, **self._progress.figures())

    def validation(self, found: ValidationDone) -> None:
        """Show a validation: its figures, also in the progress line, and an example."""
        self._progress.validation, self._progress.unit = found.loss, found.unit
        own = "".join(f", {title} {value:.1%}" if unit == "share" else f", {title} {value:.3f} {unit}".rstrip() for title, value, unit in found.own.values())
        words = f", word accuracy {found.accuracy:.1%} (by edit distance {found.edit_accuracy or 0.0:.1%})" if found.accuracy is not None else ""
        unit = found.unit if found.unit != NATS or found.bits_per_byte is not None else ""  # of an objective that does not say it
        loss = "" if found.unit == REWARD and own else loss_in_words(found.loss, unit, found.standard_error)  # the reward is one of its own figures
        lines = [f"{'final validation' if found.final else 'validation'}: {loss}"
                 + (f", {found.bits_per_byte:.3f} bits per byte" if found.bits_per_byte is not None else "")
                 + (own if loss else own.removeprefix(", "))
                 + words
                 + (f", of texts that the model writes {found.written_accuracy:.1%}" if found.written_accuracy is not None else "")
                 + (f", floor of these samples {found.floor:.3f}" if found.floor is not None else "")]
        parts = (("Prompt", found.prompt), ("Truth", found.truth), ("Predicted", found.predicted))
        lines += [f"  {name:<10}{shorten(text, _EXAMPLE_CHARACTERS)}" for name, text in parts]
        figures: dict[str, Any] = {name: value for name, (_, value, _) in found.own.items()}
        self._console.say("\n".join(lines), "validation", **{name: value for name, value in asdict(found).items() if name != "own"}, **figures)

    def evaluation(self, name: str, figures: Mapping[str, Any], skipped: Mapping[str, int]) -> None:
        """Show the evaluation of a named set, with the rows of it that gave no sample, by reason."""
        self._console.say(set_line(name, figures, skipped), "evaluation", set=name, **figures, skipped=dict(skipped))

    def end_stage(self, stage: StageEnd) -> None:
        """Close a stage."""
        self._close_bar()
        self._console.say("\n".join(stage_end_lines(stage)), "stage done", stage=stage.name, totals=dict(stage.totals), sources=stage.sources,
                          lost=stage.lost, final=stage.final, best=stage.best, sets=stage.sets, ended_early=stage.early is not None)

    def grads(self, stage: str, lines: Sequence[str]) -> None:
        """Say what a check of the gradients has found."""
        self._console.say("\n  ".join([f"gradients of stage {stage}:", *(lines or ["all there, none zero, all finite"])]), always=True)

    def compiled(self, text: str) -> None:
        """Say what was compiled."""
        warning = text.startswith("WARNING")
        self._console.say(text, "compiled", "warning" if warning else "info", always=warning)

    def saved(self, path: Path) -> None:
        """Say that a checkpoint was written (not on a terminal, unless verbose)."""
        self._console.say(f"saved {path}", "saved", shown=self._console.bar is None or self._verbose, checkpoint=str(path))

    def save_failed(self, path: Path, error: OSError) -> None:
        """Warn that a file could not be written."""
        self.say(f"WARNING: {path} could not be written ({error.strerror or error}); the previous file is intact. The next save tries again.")

    def best_not_kept(self, path: Path, error: OSError) -> None:
        """Warn that the best state so far could not be copied."""
        self.say(f"WARNING: the state with the lowest loss so far cannot be kept ({error.strerror or error}). Until a better one comes, {path} is that of "
                 "the best state before it, if there was one.")

    def stopped(self, stop: Stop, end: RunEnd, settings: Settings) -> None:
        """Say what a stopped run has done, where its state is, and how to go on."""
        self._close_bar()
        saved, command = end.files.model.exists(), self._command + self._undo(settings)
        done = ", ".join(counted(number, unit) for number, unit in ((end.progress.samples, "sample"), (end.progress.tokens, "token")))
        lines = [f"\nstopped ({stop.reason}) in stage {stop.number}/{stop.stages}, {stop.stage}, at {done}; "
                 f"this run did {counted(stop.steps, 'step')}, {counted(stop.samples, 'sample')}", *result_lines(end), *file_lines(end.files),
                 f"the state is saved in {end.files.model}. To go on:" if saved else "nothing to save yet. To start again:", f"  {command}"]
        self._console.say("\n".join(lines), "stopped", always=True, reason=stop.reason, stage=stop.stage, samples=end.progress.samples,
                          samples_of_this_run=stop.samples, steps_of_this_run=stop.steps, best=end.best, saved=saved, command=command, **file_fields(end))

    def stopped_at_once(self, settings: Settings) -> None:
        """Say how to go on after a second request to stop; on standard error."""
        self._fail(f"\nlmp_trainer: stopped at once; what was saved before is intact. To go on:\n  {self._command + self._undo(settings)}")

    def unavailable(self, reason: str, saved: bool, settings: Settings) -> None:
        """Say that something outside, such as the hub, has gone away, and how to go on when it is back; on standard error."""
        state = "The state is saved; to go on when it is back:" if saved else "Nothing has been changed; to try again:"
        self._fail(f"lmp_trainer: {reason}\n{state}\n  {self._command + self._undo(settings)}")

    def weights(self, path: Path | None) -> None:
        """Say where the weights are, if --save-weights-only was given."""
        if path is not None:
            self._console.say(f"weights     {path}", "weights", always=True, weights=str(path))

    def done(self, end: RunEnd, weights: Path | None) -> None:
        """Say how a finished run ended."""
        final = end.final
        lines = [f"\nplan complete: {counted(end.progress.samples, 'sample')}, {counted(end.progress.tokens, 'token')} in "
                 f"{end.progress.seconds:,.0f} s of training"]
        if final is not None:
            floor = f", {final['loss'] / final['floor'] - 1:+.1%} from its floor {final['floor']:.3f}" if "floor" in final else ""
            lines.append(f"final validation {judged_in_words(final)}{floor}")
        lines += [*result_lines(end), *([f"weights     {weights}"] if weights is not None else []), f"model       {end.files.model}", *file_lines(end.files)]
        self._console.say("\n".join(lines), "done", always=True, samples=end.progress.samples, tokens=end.progress.tokens, seconds=end.progress.seconds,
                          final=final, best=end.best, sets=end.sets, weights=weights and str(weights), **file_fields(end))

    def already_done(self, path: Path, plan: Plan, flags: Sequence[str]) -> None:
        """Say that there is nothing to do, and what to do with flags that differ from those it was done with."""
        lines = [f"the plan is complete: {path} has done its {counted(len(plan.stages), 'stage')}. Add a stage to go on, or --reset-history to start over."]
        if flags:
            given = " and ".join(flags)
            lines += [f"{given}: nothing is left that this could change. To train anew with it and compare, give another --model;",
                      f"to go on training this model with it, add a stage to the plan, or begin a plan with its weights: --initial-model {path} --model NEW."]
        self._console.say("\n".join(lines), "already done", always=True, model=str(path), stages=len(plan.stages), flags=list(flags))

    def _undo(self, settings: Settings) -> str:
        """List the flags that undo what a settings file says about starting anew; on the command line they are left out."""
        undo = [(settings.reset_history, " --no-reset-history"), (settings.ignore_optimizer, " --no-ignore-optimizer"),
                (settings.resume != "latest", " --resume latest")]
        return "".join(flag for wanted, flag in undo if wanted) if "--use-config" in self._command.replace("_", "-") else ""

    def _fail(self, text: str) -> None:
        """Log the end of a run, and print it on standard error."""
        self.failed(text)
        tell(text, sys.stderr)

    def _close_bar(self) -> None:
        """Leave the progress line as it is."""
        if self._console.bar is not None:
            self._console.bar.close()
            self._console.bar = None


def _to_go_on(command: list[str]) -> list[str]:
    """Remove from a command the flags that start anew or go back: going on must not do that again."""
    words, value_of = [], ""
    for word in command:
        name = word.replace("_", "-").partition("=")[0] if word.startswith("--") else ""
        if name.removeprefix("--").replace("-", "_") not in ONCE and value_of not in ("--resume", "--profile"):
            words.append(word)
        value_of = name if "=" not in word else ""
    return words
