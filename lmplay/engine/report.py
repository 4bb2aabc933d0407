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

from ..data.stream import describe_losses
from ..errors import tell

if TYPE_CHECKING:
    from ..data.batcher import Batch
    from ..plan.schema import Plan
    from ..plan.settings import Settings
    from .evaluate import Example
    from .run import Run
    from .stagework import StageWork

# Seconds between two plain progress lines, and between two printed examples.
_PLAIN_SECONDS = 10.0
_EXAMPLE_SECONDS = 20.0
_EXAMPLE_CHARACTERS = 300
_NAME_CHARACTERS = 24


class Report:
    """Speaks to the user, on standard output; the progress line is on standard error."""

    def __init__(self, command: list[str]):
        """
        :param command: the command line, to be said again when the run stops.
        """
        self._command = shlex.join(_to_go_on(command))
        self._bar: Any = None
        self._losses: dict[str, float] = {}  # running means; of all under the empty name, then by source
        self._validation = ""
        self._last_line = self._last_example = self._started = time.monotonic()
        self._first_samples = self._first_tokens = 0
        self._first_share: tuple[float, float] | None = None  # share of the stage read at the first step of this run, and when that was

    def say(self, text: str) -> None:
        """Print a line or more, above the progress line."""
        if self._bar is not None:
            self._bar.clear()
        tell(text)
        if self._bar is not None:
            self._bar.refresh()

    def banner(self, run: Run) -> None:
        """Say what will be done."""
        runtime, model = run.runner.runtime, run.model
        parameters = sum(parameter.numel() for parameter in model.module.parameters())
        settings = run.settings
        self.say(f"model       {model.experiment}: {parameters:,} parameters, {', '.join(f'{name} {value}' for name, value in model.args.items())}")
        self.say(f"tokenizer   {model.tokenizer.name}: {model.tokenizer.vocab_size:,} tokens")
        self.say(f"device      {runtime.device}, {runtime.precision}{', compiled' if settings.compile_model else ''}, mini-batch {settings.mini_batch_size}")
        self.say(f"checkpoint  {run.path}")
        for number, (stage, state) in enumerate(zip(run.curriculum.plan.stages, run.curriculum.states, strict=True), 1):
            done = "done" if state.done else "begun" if state.fingerprints is not None else "to do"
            sources = " + ".join(spec.path for spec in stage.dataset)
            self.say(f"stage {number}/{len(run.curriculum.states)}   {stage.name} ({done}): {_length(stage)} of {sources}")
        if run.runner.resumes:
            self.say(f"resumed     at {run.runner.samples:,} samples")
        if run.changes:
            self.say("\n  ".join(["since the checkpoint:" if run.runner.resumes else "note:", *run.changes]))
        if run.settings.time_limit is not None:
            self.say(f"time limit  in {_duration(run.interrupt.deadline - time.monotonic())}; stops early enough to save")

    def start_stage(self, run: Run, work: StageWork) -> None:
        """Say what a stage reads, and start its progress line."""
        settings, total = work.settings, work.stream.total
        rows = " + ".join(f"{source.name} ({'endless' if source.n_rows is None else f'{source.n_rows:,} rows'})" for source in work.data.sources)
        self.say(f"\n== stage {work.stage.name}: {rows}")
        self.say(f"   batch {settings.batch_size}, context {settings.context_len}, lr {settings.lr:g} {settings.schedule}"
                 + (f", {len(work.frozen)} parameters frozen" if work.frozen else ""))
        floor = work.entry["floor_nats_per_token"]
        if floor is not None:
            self.say(f"   floor: {floor:.3f} nats per token, {work.entry['floor_bits_per_byte']:.3f} bits per byte: no model can do better on this text")
        if not work.has_validation:
            self.say("   no validation: no rows are held out")
        self._validation = ""
        self._losses = {name: loss for name, loss in self._losses.items() if not name}  # the sources are others now
        self._started = self._last_line = time.monotonic()
        self._first_share = None
        self._first_samples, self._first_tokens = run.runner.samples, run.runner.stats.totals["total_train_tokens"]
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=work.stats.totals["total_train_samples"], unit="sample", desc=work.stage.name, dynamic_ncols=True)

    def progress(self, run: Run, work: StageWork, batch: Batch, loss_sum: float, sources: Mapping[str, tuple[float, float]]) -> None:
        """Show a step; the losses shown are running means over about 20 steps.

        :param loss_sum: of the batch.
        :param sources: loss sum and tokens of each source in it, where they are told apart.
        """
        for name, (part, n_tokens) in {"": (loss_sum, batch.n_truth), **sources}.items():
            if n_tokens:
                self._losses[name] = self._losses.get(name, part / n_tokens) * 0.95 + part / n_tokens * 0.05
        by_source = ", ".join(f"{_shorten(name, _NAME_CHARACTERS)} {loss:.3f}" for name, loss in sorted(self._losses.items()) if name)
        tokens = run.runner.stats.totals["total_train_tokens"] - self._first_tokens
        elapsed = max(time.monotonic() - self._started, 1e-9)
        text = (f"loss {self._losses.get('', 0.0):.3f}{f' ({by_source})' * bool(by_source)}{self._validation}, {tokens / elapsed:,.0f} tokens/s"
                f"{self._time_left(batch.progress)}")
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(len(batch.samples))
        elif time.monotonic() - self._last_line >= _PLAIN_SECONDS:
            self._last_line = time.monotonic()
            done, total = work.stats.totals["total_train_samples"], work.stream.total
            share = "" if batch.progress is None else f" ({batch.progress:.0%})"
            self.say(f"{work.stage.name}: {done:,}{f' of {total:,}' if total else ''} samples{share}, {text}")

    def validation(self, sums: dict[str, float], example: Example, final: bool) -> None:
        """Show a validation: its figures in the progress line, and an example now and then."""
        loss = sums["loss_sum"] / sums["n_tokens"]
        accuracy = sums["words_right"] / sums["words"] if sums["words"] else 0.0
        self._validation = f", validation {loss:.3f}"
        if not final and time.monotonic() - self._last_example < _EXAMPLE_SECONDS:
            return
        self._last_example = time.monotonic()
        bits = f", {loss * sums['n_tokens'] / sums['n_bytes'] / 0.6931471805599453:.3f} bits per byte" if sums["n_bytes"] else ""
        floor = f", floor of these samples {sums['nats_sum'] / sums['nats_tokens']:.3f}" if sums["nats_tokens"] else ""
        self.say(f"{'final validation' if final else 'validation'}: loss {loss:.3f} nats per token{bits}, word accuracy {accuracy:.1%}{floor}")
        for name, text in (("Prompt", example.prompt), ("Truth", example.truth), ("Predicted", example.predicted)):
            self.say(f"  {name:<10}{_shorten(text)}")

    def end_stage(self, run: Run, work: StageWork) -> None:
        """Close a stage."""
        from .best import best_file

        self._close_bar()
        totals = work.stats.totals
        skipped = f"; {totals['no_tokens']:,} samples without a token" if totals["no_tokens"] else ""
        if totals["skipped_batches"]:
            skipped += f"; {totals['skipped_batches']:,} batches passed over, whose loss or gradient was not finite"
        stopped = (f"; ended early: no better validation for {work.state.stale}; the best state, loss {work.state.lowest_loss:.3f} at "
                   f"{work.state.lowest_samples:,} samples, is {best_file(run.path, work.stage.name)}, and the next stage goes on from the last"
                   if work.ended_early else "")
        self.say(f"== stage {work.stage.name} done: {totals['total_train_samples']:,} samples, {totals['total_train_tokens']:,} tokens, "
                 f"{totals['total_train_steps']:,} steps, padding {totals['padding'] / max(totals['places'], 1):.1%}, "
                 f"{totals['continuations']:,} continuations, "
                 f"{totals['forced_cuts']:,} pieces cut inside a sentence, {totals['broken_samples']:,} batch ends inside a sample{skipped}{stopped}")
        if sources := work.stats.describe_sources():
            self.say("   " + "; ".join(_describe_source(name, said) for name, said in sources.items()))
        for line in describe_losses(work.reached):
            self.say(f"   {line}")

    def grads(self, stage: str, lines: list[str]) -> None:
        """Say what a look at the gradients found."""
        self.say("\n  ".join([f"gradients of stage {stage}:", *(lines or ["all there, none zero, all finite"])]))

    def saved(self, path: Path) -> None:
        """Say that a checkpoint was written (in files and job outputs only; on a terminal it would be noise)."""
        if self._bar is None:
            self.say(f"saved {path}")

    def save_failed(self, path: Path, error: OSError) -> None:
        """Say loudly that a checkpoint could not be written."""
        self.say(f"WARNING: {path} could not be written ({error.strerror or error}); the file before it is whole. The next save tries again.")

    def stopped(self, run: Run) -> None:
        """Say what a stopped run has done, where it is, and how to go on."""
        self._close_bar()
        totals, number = run.runner.stats.totals, run.curriculum.number
        samples, steps = (totals[name] - run.began_at[name] for name in ("total_train_samples", "total_train_steps"))
        self.say(f"\nstopped ({run.interrupt.reason}) in stage {number + 1}/{len(run.curriculum.states)}, {run.curriculum.states[number].name}, at "
                 f"{run.runner.samples:,} samples, {samples:,} of them in {steps:,} steps of this run")
        self.say(f"the state is saved in {run.path}. To go on:" if run.path.exists() else "nothing to save yet. To start again:")
        self.say(f"  {self._command + self._undo(run.settings)}")

    def stopped_at_once(self, settings: Settings) -> None:
        """Say how to go on after a second request to stop; on standard error."""
        self._close_bar()
        tell(f"\nlmp_trainer: stopped at once; what was saved before is whole. To go on:\n  {self._command + self._undo(settings)}", sys.stderr)

    def unavailable(self, reason: str, saved: bool, settings: Settings) -> None:
        """Say that something outside has gone away, and how to go on when it is back; on standard error, as all that ends a run early."""
        self._close_bar()
        state = "The state is saved; to go on when it is back:" if saved else "Nothing has been changed; to try again:"
        tell(f"lmp_trainer: {reason}\n{state}\n  {self._command + self._undo(settings)}", sys.stderr)

    def weights(self, path: Path | None) -> None:
        """Say where the weights alone are, if they were asked for."""
        if path is not None:
            self.say(f"weights     {path}")

    def done(self, run: Run, weights: Path | None) -> None:
        """Say how a finished run ended."""
        stats = run.runner.stats
        self.say(f"\nplan complete: {run.runner.samples:,} samples, {stats.totals['total_train_tokens']:,} tokens in {run.runner.seconds:,.0f} s of training")
        if stats.final is not None:
            floor = f", {stats.final['loss'] / stats.final['floor'] - 1:+.1%} from its floor {stats.final['floor']:.3f}" if "floor" in stats.final else ""
            self.say(f"final validation loss {stats.final['loss']:.3f} nats per token{floor}")
        self.weights(weights)
        self.say(f"model       {run.path}\nstatistics  {Path(run.settings.out_dir).expanduser()}")
        self.say(f"to plot     lmp_plotstats --out-dir {shlex.quote(run.settings.out_dir)}")

    def already_done(self, path: Path, plan: Plan) -> None:
        """Say that there is nothing to do."""
        self.say(f"the plan is complete: {path} has done all of its {len(plan.stages)} stages. Add a stage to go on, or --reset-history to start anew.")

    def _time_left(self, share: float | None) -> str:
        """Say how long the stage will take, by the speed since the first step, which is passed over: it is slow; "" while that is not known."""
        if share is None:
            return ""
        first, at = self._first_share = self._first_share or (share, time.monotonic())
        if share <= first:
            return ""
        minutes, seconds = divmod(round((time.monotonic() - at) * (1 - share) / (share - first)), 60)
        return f", {minutes // 60}:{minutes % 60:02}:{seconds:02} left"

    def _undo(self, settings: Settings) -> str:
        """Give the flags that undo what a settings file, not the command line, says of starting anew."""
        undo = [(settings.reset_history, " --no-reset-history"), (settings.ignore_optimizer, " --no-ignore-optimizer"),
                (settings.resume != "latest", " --resume latest")]
        return "".join(flag for wanted, flag in undo if wanted) if "--use-config" in self._command.replace("_", "-") else ""

    def _close_bar(self) -> None:
        """Leave the progress line as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _to_go_on(command: list[str]) -> list[str]:
    """Leave out of a command what starts anew or goes back: it must not be done again by those who go on."""
    words, value_of = [], ""
    for word in command:
        name = word.replace("_", "-").partition("=")[0] if word.startswith("--") else ""
        if name not in ("--reset-history", "--ignore-optimizer", "--accept-changed-data", "--resume") and value_of != "--resume":
            words.append(word)
        value_of = name if "=" not in word else ""
    return words


def _duration(seconds: float) -> str:
    """Write seconds as h:mm:ss."""
    minutes, seconds = divmod(max(int(seconds), 0), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


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


def _shorten(text: str, most: int = _EXAMPLE_CHARACTERS) -> str:
    """Show the beginning of a text on one line."""
    text = text.replace("\n", "⏎")
    return text if len(text) <= most else text[:most - 1] + "…"
