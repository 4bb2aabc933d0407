"""What the user is told while a run goes on: banner, progress, validations, summary.  Engine floor.

On a terminal a tqdm line shows the progress; in a file or a job's output a plain line comes every few seconds.
"""
from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..checkpoints.format import checkpoint_bytes, versions
from ..data.stream import describe_losses
from ..device.memory import bytes_in_words, memory_there
from ..errors import tell
from ..optim.optimizers import STATE_COPIES
from ..words import counted
from .console import Console
from .hints import hints
from .progress import Progress, duration, shorten, total_samples

if TYPE_CHECKING:
    from ..data.batcher import Batch
    from ..engine.evaluate import Example
    from ..engine.opening import Run
    from ..engine.stage import StageRunner
    from ..plan.schema import Plan
    from ..plan.settings import Settings

# Seconds between two plain progress lines, and between two printed examples.
_PLAIN_SECONDS = 10.0
_EXAMPLE_SECONDS = 20.0
# Seconds between two looks of the progress line on a terminal.
_SHOWN_SECONDS = 0.3
_EXAMPLE_CHARACTERS = 300


class Report:
    """Speaks to the user, on standard output and in NAME.log; the progress line is on standard error."""

    def __init__(self, command: list[str], quiet: bool = False, verbose: bool = False, log_json: bool = False):
        """
        :param command: the command line, to be said again when the run stops.
        :param quiet: say warnings, errors and the summary only.
        :param verbose: say every validation and every save.
        :param log_json: say it as JSON objects.
        """
        self._command = shlex.join(_to_go_on(command))
        self._voice = Console(quiet, log_json)
        self._voice.say(f"lmplay {__version__}: {shlex.join(command)}", "command", shown=False, command=command, version=__version__)
        self._quiet, self._verbose = quiet, verbose
        self._progress = Progress()
        self._last_line = self._last_example = time.monotonic()
        self._last_shown = 0.0

    def say(self, text: str) -> None:
        """Say something out of the ordinary, even when quiet."""
        self._voice.say(text, level="warning" if text.startswith("WARNING") else "info", always=True)

    def failed(self, text: str) -> None:
        """Put what has ended the run into the log file; the door prints it."""
        self._close_bar()
        self._voice.say(text, "failed", "error", shown=False)

    def banner(self, run: Run) -> None:
        """Say what will be done."""
        runtime, model, settings = run.runner.runtime, run.model, run.settings
        self._voice.open_log(Path(settings.out_dir).expanduser() / f"{run.path.stem}.log")
        parameters = sum(parameter.numel() for parameter in model.module.parameters())
        stages, batches = _stages(run), dict.fromkeys(stage.batch_size for stage in run.stage_settings.values())
        lines = [f"model       {model.experiment}: {parameters:,} parameters, {', '.join(f'{name} {value}' for name, value in model.args.items())}",
                 f"tokenizer   {model.tokenizer.name}: {model.tokenizer.vocab_size:,} tokens",
                 f"device      {runtime.device}, {runtime.precision}{', compiled' if settings.compile_model else ''}, batch {' / '.join(map(str, batches))}, "
                 f"mini-batch {f'{settings.mini_batch_tokens} tokens' if settings.mini_batch_tokens else settings.mini_batch_size}",
                 *_memory(run), f"checkpoint  {run.path}"]
        for number, stage in enumerate(stages, 1):
            length = f" ({stage['samples']:,} samples)" if stage["samples"] is not None and "samples" not in stage["length"] else ""
            lines.append(f"stage {number}/{len(stages)}   {stage['name']} ({stage['state']}): {stage['length']}{length} of {' + '.join(stage['dataset'])}")
        if run.runner.resumes:
            lines.append(f"resumed     at {run.runner.samples:,} samples")
        if self._verbose:
            lines += [f"{name:<11} {value}" for name, value in versions().items()]
            lines.append("flags       " + (", ".join(f"{name} {getattr(settings, name)}" for name in sorted(settings.explicit)) or "none"))
        if run.changes:
            lines += ["since the checkpoint:" if run.runner.resumes else "note:", *(f"  {change}" for change in run.changes)]
        if settings.time_limit is not None:
            lines.append(f"time limit  in {duration(run.interrupt.deadline - time.monotonic())}; stops early enough to save")
        hinted = hints(run)
        lines += [f"hint        {hint}" for hint in hinted]
        self._voice.say("\n".join(lines), "start", experiment=model.experiment, parameters=parameters, model_args=model.args, tokenizer=model.tokenizer.name,
                        vocabulary=model.tokenizer.vocab_size, device=str(runtime.device), precision=runtime.precision, compiled=settings.compile_model,
                        batch_size=settings.batch_size, mini_batch_size=settings.mini_batch_size, checkpoint=str(run.path), stages=stages,
                        samples=run.runner.samples, resumed=bool(run.runner.resumes), changes=run.changes, hints=hinted,
                        memory_bytes=memory_there(runtime.device), memory_needed_bytes=_needed(run))

    def start_stage(self, run: Run, work: StageRunner) -> None:
        """Say what a stage reads, and start its progress line."""
        settings, total = work.settings, work.stream.total
        sources = {source.name: source.n_rows for source in work.data.sources}
        rows = " + ".join(f"{source.name} ({'endless' if source.n_rows is None else f'{source.n_rows:,} rows'})" for source in work.data.sources)
        lines = [f"\n== stage {work.stage.name}: {rows}",
                 f"   batch {settings.batch_size}, context {settings.context_len}, lr {settings.lr:g} {settings.schedule}"
                 + (f", {len(work.frozen)} parameters frozen" if work.frozen else "")]
        floor = work.entry["floor_nats_per_token"]
        if floor is not None:
            lines.append(f"   floor: {floor:.3f} nats per token, {work.entry['floor_bits_per_byte']:.3f} bits per byte: no model can do better on this text")
        if not work.has_validation:
            lines.append("   no validation: no rows are held out")
        self._voice.say("\n".join(lines), "stage", stage=work.stage.name, samples=run.runner.samples, of=total, rows=sources, batch_size=settings.batch_size,
                        context_len=settings.context_len, lr=settings.lr, lr_schedule=settings.schedule, frozen=len(work.frozen), floor=floor,
                        validation=work.has_validation)
        self._last_line = time.monotonic()
        self._progress.start_stage(run)
        if sys.stderr.isatty() and not self._quiet:
            from tqdm import tqdm

            self._voice.bar = tqdm(total=total, initial=work.stats.totals["total_train_samples"], desc=work.stage.name, dynamic_ncols=True, mininterval=0.2,
                                   bar_format="{desc} {percentage:.0f}%|{bar:12}| {n_fmt}/{total_fmt} samples{postfix}" if total else
                                   "{desc} {n_fmt} samples{postfix}")

    def progress(self, run: Run, work: StageRunner, batch: Batch, loss_sum: float, sources: Mapping[str, tuple[float, float]]) -> None:
        """Show a step.

        :param loss_sum: of the batch.
        :param sources: loss sum and tokens of each source in it, where they are told apart.
        """
        now, totals = time.monotonic(), run.runner.stats.totals
        self._progress.add(totals, batch.progress, loss_sum, batch.n_truth, sources)
        if self._voice.bar is not None:
            self._voice.bar.update(len(batch.samples))
            if now - self._last_shown >= _SHOWN_SECONDS:
                self._last_shown = now
                self._voice.bar.set_postfix_str(self._progress.text())
        if now - self._last_line < _PLAIN_SECONDS:
            return
        self._last_line = now
        done, total, lr = work.stats.totals["total_train_samples"], work.stream.total, work.lr
        share = "" if batch.progress is None else f" ({batch.progress:.0%})"
        rate = f"lr {lr:.3g}, " if self._verbose else ""
        self._voice.say(f"{work.stage.name}: {done:,}{f' of {total:,}' if total else ''} samples{share}, {rate}{self._progress.text()}", "progress",
                        shown=self._voice.bar is None, stage=work.stage.name, step=totals["total_train_steps"], samples=run.runner.samples,
                        stage_samples=done, of=total, share=batch.progress, lr=lr, **self._progress.figures())

    def validation(self, sums: dict[str, float], example: Example, final: bool) -> None:
        """Show a validation: its figures in the progress line, and an example now and then."""
        loss = sums["loss_sum"] / sums["n_tokens"]
        accuracy = sums["words_right"] / sums["words"] if sums["words"] else 0.0
        self._progress.validation = loss
        bits = loss * sums["n_tokens"] / sums["n_bytes"] / 0.6931471805599453 if sums["n_bytes"] else None
        floor = sums["nats_sum"] / sums["nats_tokens"] if sums["nats_tokens"] else None
        lines = [f"{'final validation' if final else 'validation'}: loss {loss:.3f} nats per token"
                 + (f", {bits:.3f} bits per byte" if bits is not None else "") + f", word accuracy {accuracy:.1%}"
                 + (f", floor of these samples {floor:.3f}" if floor is not None else "")]
        shown = final or self._verbose or time.monotonic() - self._last_example >= _EXAMPLE_SECONDS
        if shown:
            self._last_example = time.monotonic()
            parts = (("Prompt", example.prompt), ("Truth", example.truth), ("Predicted", example.predicted))
            lines += [f"  {name:<10}{shorten(text, _EXAMPLE_CHARACTERS)}" for name, text in parts]
        self._voice.say("\n".join(lines), "validation", shown=shown, final=final, loss=loss, bits_per_byte=bits, accuracy=accuracy, floor=floor,
                        prompt=example.prompt, truth=example.truth, predicted=example.predicted)

    def end_stage(self, run: Run, work: StageRunner) -> None:
        """Close a stage."""
        from ..checkpoints.best import best_file

        self._close_bar()
        totals = work.stats.totals
        skipped = f"; {counted(totals['no_tokens'], 'sample')} without a token" if totals["no_tokens"] else ""
        if totals["skipped_batches"]:
            skipped += f"; {counted(totals['skipped_batches'], 'batch', 'batches')} passed over, whose loss or gradient was not finite"
        stopped = (f"; ended early: no better validation for {work.state.stale}; the best state, loss {work.state.lowest_loss:.3f} at "
                   f"{work.state.lowest_samples:,} samples, is {best_file(run.path, work.stage.name)}, and the next stage goes on from the last"
                   if work.ended_early else "")
        lines = [f"== stage {work.stage.name} done: {counted(totals['total_train_samples'], 'sample')}, {counted(totals['total_train_tokens'], 'token')}, "
                 f"{counted(totals['total_train_steps'], 'step')}, padding {totals['padding'] / max(totals['places'], 1):.1%}, "
                 f"{counted(totals['continuations'], 'continuation')}, {counted(totals['forced_cuts'], 'piece')} cut inside a sentence, "
                 f"{counted(totals['broken_samples'], 'batch end')} inside a sample{skipped}{stopped}"]
        if sources := work.stats.describe_sources():
            lines.append("   " + "; ".join(_describe_source(name, said) for name, said in sources.items()))
        lost = describe_losses(work.reached)
        lines += [f"   {line}" for line in lost]
        self._voice.say("\n".join(lines), "stage done", stage=work.stage.name, totals=dict(totals), sources=sources, lost=lost, final=work.stats.final,
                        best=work.stats.best, ended_early=work.ended_early)

    def grads(self, stage: str, lines: list[str]) -> None:
        """Say what a look at the gradients found."""
        self._voice.say("\n  ".join([f"gradients of stage {stage}:", *(lines or ["all there, none zero, all finite"])]))

    def compiled(self, text: str) -> None:
        """Say what was compiled."""
        warning = text.startswith("WARNING")
        self._voice.say(text, "compiled", "warning" if warning else "info", always=warning)

    def saved(self, path: Path) -> None:
        """Say that a checkpoint was written (in files and job outputs only; on a terminal it would be noise)."""
        self._voice.say(f"saved {path}", "saved", shown=self._voice.bar is None or self._verbose, checkpoint=str(path))

    def save_failed(self, path: Path, error: OSError) -> None:
        """Say loudly that a checkpoint could not be written."""
        self.say(f"WARNING: {path} could not be written ({error.strerror or error}); the file before it is whole. The next save tries again.")

    def stopped(self, run: Run) -> None:
        """Say what a stopped run has done, where it is, and how to go on."""
        self._close_bar()
        totals, number = run.runner.stats.totals, run.curriculum.number
        samples, steps = (totals[name] - run.began_at[name] for name in ("total_train_samples", "total_train_steps"))
        saved, command = run.path.exists(), self._command + self._undo(run.settings)
        lines = [f"\nstopped ({run.interrupt.reason}) in stage {number + 1}/{len(run.curriculum.states)}, {run.curriculum.states[number].name}, at "
                 f"{counted(run.runner.samples, 'sample')}, {samples:,} of them in {counted(steps, 'step')} of this run", *_best(run), *_peak(run),
                 *_compiled(run), *self._places(run),
                 f"the state is saved in {run.path}. To go on:" if saved else "nothing to save yet. To start again:", f"  {command}"]
        self._voice.say("\n".join(lines), "stopped", always=True, reason=run.interrupt.reason, stage=run.curriculum.states[number].name,
                        samples=run.runner.samples, samples_of_this_run=samples, steps_of_this_run=steps, best=run.runner.stats.best, saved=saved,
                        command=command, **_files(run))

    def stopped_at_once(self, settings: Settings) -> None:
        """Say how to go on after a second request to stop; on standard error."""
        self._close_bar()
        text = f"\nlmp_trainer: stopped at once; what was saved before is whole. To go on:\n  {self._command + self._undo(settings)}"
        self.failed(text)
        tell(text, sys.stderr)

    def unavailable(self, reason: str, saved: bool, settings: Settings) -> None:
        """Say that something outside has gone away, and how to go on when it is back; on standard error, as all that ends a run early."""
        self._close_bar()
        state = "The state is saved; to go on when it is back:" if saved else "Nothing has been changed; to try again:"
        text = f"lmp_trainer: {reason}\n{state}\n  {self._command + self._undo(settings)}"
        self.failed(text)
        tell(text, sys.stderr)

    def weights(self, path: Path | None) -> None:
        """Say where the weights alone are, if they were asked for."""
        if path is not None:
            self._voice.say(f"weights     {path}", "weights", always=True, weights=str(path))

    def done(self, run: Run, weights: Path | None) -> None:
        """Say how a finished run ended."""
        stats = run.runner.stats
        lines = [f"\nplan complete: {counted(run.runner.samples, 'sample')}, {counted(stats.totals['total_train_tokens'], 'token')} in "
                 f"{run.runner.seconds:,.0f} s of training"]
        if stats.final is not None:
            floor = f", {stats.final['loss'] / stats.final['floor'] - 1:+.1%} from its floor {stats.final['floor']:.3f}" if "floor" in stats.final else ""
            lines.append(f"final validation loss {stats.final['loss']:.3f} nats per token{floor}")
        lines += [*_best(run), *_peak(run), *_compiled(run), *([f"weights     {weights}"] if weights is not None else []), f"model       {run.path}",
                  *self._places(run)]
        self._voice.say("\n".join(lines), "done", always=True, samples=run.runner.samples, tokens=stats.totals["total_train_tokens"],
                        seconds=run.runner.seconds, final=stats.final, best=stats.best, weights=weights and str(weights), **_files(run))

    def already_done(self, path: Path, plan: Plan) -> None:
        """Say that there is nothing to do."""
        self._voice.say(f"the plan is complete: {path} has done its {counted(len(plan.stages), 'stage')}. Add a stage to go on, or "
                        "--reset-history to start anew.",
                        "already done", always=True, model=str(path), stages=len(plan.stages))

    def _places(self, run: Run) -> list[str]:
        """Say where the statistics are, and how to look at them."""
        folder = Path(run.settings.out_dir).expanduser()
        return [f"statistics  {folder}", f"log         {folder / f'{run.path.stem}.log'}", f"to plot     {_files(run)['plot']}"]

    def _undo(self, settings: Settings) -> str:
        """Give the flags that undo what a settings file, not the command line, says of starting anew."""
        undo = [(settings.reset_history, " --no-reset-history"), (settings.ignore_optimizer, " --no-ignore-optimizer"),
                (settings.resume != "latest", " --resume latest")]
        return "".join(flag for wanted, flag in undo if wanted) if "--use-config" in self._command.replace("_", "-") else ""

    def _close_bar(self) -> None:
        """Leave the progress line as it is."""
        if self._voice.bar is not None:
            self._voice.bar.close()
            self._voice.bar = None


def _stages(run: Run) -> list[dict[str, Any]]:
    """Say of each stage of the plan how long it is, and how far it has been followed."""
    return [{"name": stage.name, "state": "done" if state.done else "begun" if state.fingerprints is not None else "to do", "length": _length(stage),
             "samples": total_samples(run, stage), "dataset": [spec.path for spec in stage.dataset]}
            for stage, state in zip(run.curriculum.plan.stages, run.curriculum.states, strict=True)]


def _best(run: Run) -> list[str]:
    """Say which validation was the best."""
    best = run.runner.stats.best
    return [f"best validation loss {best['loss']:.3f} nats per token at {best['samples']:,} samples"] if best is not None else []


def _compiled(run: Run) -> list[str]:
    """Say how often code was made."""
    from ..device.compiled import Compiled

    if not isinstance(run.wrapped, Compiled):
        return []
    return [f"compiled    {counted(run.wrapped.graphs, 'graph')}, {run.wrapped.made_again or 'none'} of them again"]


def _needed(run: Run) -> int:
    """Count the bytes that training takes whatever the mini-batch: weights, gradients of those that are trained, and the optimizer's state of these."""
    trained = sum(parameter.nbytes for parameter in run.model.module.parameters() if parameter.requires_grad)
    return checkpoint_bytes(run.model.module, trained * STATE_COPIES[run.optimizers.kind]) + trained


def _memory(run: Run) -> list[str]:
    """Say what memory there is, and how much of it is spoken for."""
    there = memory_there(run.runner.runtime.device)
    return [f"memory      {bytes_in_words(_needed(run))} for weights, gradients and the optimizer's state, and what a mini-batch takes"
            + (f"; there are {bytes_in_words(there)}" if there is not None else "")]


def _peak(run: Run) -> list[str]:
    """Say how much memory was in use at most."""
    run.runner.note_memory()
    return [] if run.runner.peak_memory is None else [f"peak memory {bytes_in_words(run.runner.peak_memory)}"]


def _files(run: Run) -> dict[str, Any]:
    """Say where things are, for programs."""
    folder = Path(run.settings.out_dir).expanduser()
    return {"model": str(run.path), "statistics": str(folder), "log": str(folder / f"{run.path.stem}.log"),
            "peak_memory_bytes": run.runner.peak_memory, "plot": f"lmp_plotstats --out-dir {shlex.quote(run.settings.out_dir)}"}


def _to_go_on(command: list[str]) -> list[str]:
    """Leave out of a command what starts anew or goes back: it must not be done again by those who go on."""
    words, value_of = [], ""
    for word in command:
        name = word.replace("_", "-").partition("=")[0] if word.startswith("--") else ""
        if name not in ("--reset-history", "--ignore-optimizer", "--accept-changed-data", "--resume") and value_of != "--resume":
            words.append(word)
        value_of = name if "=" not in word else ""
    return words


def _length(stage: Any) -> str:
    """Say how long a stage is."""
    if stage.samples is not None:
        return f"{stage.samples:,} samples"
    return f"{stage.tokens:,} tokens" if stage.tokens is not None else f"{stage.epochs:g} epoch{'s' * (stage.epochs != 1)}"


def _describe_source(name: str, said: Mapping[str, float | None]) -> str:
    """Say what a source has given to a stage, and the mean losses at its end."""
    parts = (("epochs", " {:.2f} epochs"), ("train_loss", " loss {:.3f}"), ("validate_loss", " validation {:.3f}"))
    known = "".join("," + form.format(said[key]) for key, form in parts if said[key] is not None)
    return f"{name} {said['samples']:,} samples, {said['tokens']:,} tokens{known}"
