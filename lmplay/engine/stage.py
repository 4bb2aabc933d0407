"""A stage at work: its steps, its validations, its end.  Engine floor."""
from __future__ import annotations

import math
import time
from collections import Counter
from functools import partial
from typing import Any

from ..cadence import AUTO, AUTO_VALIDATIONS, VALIDATION_SHARE, VALIDATION_TOKEN, Cadence, intervals
from ..data.continuation import Cutter
from ..data.samples import Sample
from ..data.stream import nothing_to_train_on
from ..device.random_state import restore_torch_random_state, torch_random_state
from ..errors import TrainingError, UserError
from ..optim.grads import check_grads
from ..optim.optimizers import build_optimizers
from ..stats.figures import StageEntry
from ..stats.totals import ModelStats
from .batches import Batches, Grouping, TrainBatch
from .budget import TokenBudget
from .by_source import BySource
from .early_stopping import is_over, note_loss
from .evaluate import Evaluation, evaluate, validation_done
from .held_out import HeldOut
from .opening import freeze
from .run import OpenStage, Run
from .step import StepSums, train_step


class StageRunner:
    """Does the work of a stage, from where its state says."""

    def __init__(self, run: Run, stage: OpenStage):
        self.run, self._open, self.stage, self.state, self.settings, self.data = run, stage, stage.stage, stage.state, stage.settings, stage.data
        self.objective = stage.objective
        self.cutter = Cutter(run.model.tokenizer, stage.settings.context_len, run.settings.continuation == "estimate")
        self._prepare = partial(self.objective.prepare, cutter=self.cutter)
        self._grouping = Grouping(run.settings.first_mini_batch, run.runtime.length_multiple, stage.settings.context_len,
                                  run.runtime.packs(run.device_model.raw))
        self._budget = TokenBudget(run, stage.settings, self._grouping, self.objective)
        self.stats = run.record.stage_stats.setdefault(self.stage.name, ModelStats())
        self.stats.declare(stage.objective.figures)
        self.batches = Batches(stage, self._prepare, self._grouping, lambda: self._budget.tokens, run.settings.data_workers,
                               run.settings.accuracy_pieces, self.stats.totals["total_train_steps"])
        run.threads.callback(self.batches.close)
        # The samples' position up to the batch trained on, at the end of the stage up to there; the batches are made ahead of it.
        self.reached: dict[str, Any] = self.batches.stream.state() if self.state.position is None else self.state.position["samples"]
        self.by_source = BySource(self.data, self.stats)
        self.data_seconds = 0.0  # waited for the batch at hand
        self._grads_checked = False

    @property
    def name(self) -> str:
        """The stage's."""
        return self.stage.name

    @property
    def ended_early(self) -> bool:
        """Whether validation has got no better for too long."""
        return is_over(self.state, self.settings)

    @property
    def total(self) -> int | None:
        """The samples of the stage; None where unknown."""
        return self.batches.stream.total

    @property
    def lr(self) -> float:
        """The learning rate of the newest step."""
        return self.run.optimizers.lr

    @property
    def entry(self) -> StageEntry:
        """What the statistics say of this stage."""
        return self.run.record.stages[-1]

    def begin(self) -> None:
        """Start to make batches, and set model and optimizers up for this stage."""
        run = self.run
        if not self._budget.is_measured:  # else it is not known yet
            self.batches.start()  # beside the look at the validation rows
        self.held_out = HeldOut(self._open, self._prepare)
        interval = run.settings.validation_interval
        apart = {"tokens": self.held_out.n_tokens * VALIDATION_TOKEN / VALIDATION_SHARE} if interval == AUTO else {}
        self.validations = Cadence(intervals(interval, AUTO_VALIDATIONS), apart)
        self.state.validated = self.state.validated or self.counts()
        if self.state.fingerprints is None:
            self.state.fingerprints = self.data.fingerprints()
            self.state.context_len = self.settings.context_len
            run.record.begin_stage(self.stage.name, self.held_out.floors())
        self.frozen = freeze(run.device_model.raw, self.stage, run.settings)
        if run.optimizers.kind != self.settings.optimizer:
            run.optimizers = build_optimizers(self.settings.optimizer, run.device_model.raw, self.settings.lr)
        run.optimizers.set_weight_decay(self.settings.weight_decay)
        run.optimizers.set_options({name: getattr(self.settings, name) for name in ("betas", "eps", "momentum")})
        run.device_model.raw.train()
        self._budget.settle()

    def next_batch(self) -> TrainBatch | None:
        """Give the next batch; None at the end of the stage, or when a request to stop came before the batch."""
        started = time.perf_counter()
        batch = self.batches.next(self.run.interrupt.requested)
        self.data_seconds = time.perf_counter() - started
        if self.batches.end is not None:
            self.reached = self.batches.end.reached
        return batch

    def step(self, batch: TrainBatch) -> StepSums | None:
        """Do an optimizer step; None when a request to stop came in between, and nothing has changed then."""
        run, sums = self.run, None
        random_before = torch_random_state()
        run.optimizers.set_lr(run.lr_schedulers.lr(self.settings))
        for attempt in self._budget.attempts(batch.longest):
            with run.interrupt.until_stopped(), attempt as tokens:
                sums = train_step(run.device_model, run.optimizers, self.objective, batch.regrouped(tokens, self._grouping),
                                  self.settings.grad_clip, run.interrupt.requested)
        if sums is None:
            restore_torch_random_state(random_before)
            return None
        if run.settings.check_grads and not self._grads_checked:
            self._grads_checked = True
            run.report.grads(self.stage.name, check_grads(run.device_model.raw))
        run.lr_schedulers.advance(batch.batch.progress)
        self.state.position = batch.batch.position
        self.reached = batch.batch.position["samples"]
        return sums

    def counts(self) -> dict[str, float]:
        """How far the run is, and the stage in tenths of its length, as far as that is known."""
        return {**self.run.record.counts(), "tenths": 10 * (self.run.lr_schedulers.progress or 0.0)}

    def note_progress(self) -> None:
        """Note whether a validation is due after the step that has been done."""
        assert self.state.validated is not None
        self.state.validation_due = self.validations.due(self.state.validated, self.counts())

    def validate(self) -> bool:
        """Judge the model by the next held-out samples, round and round.

        :return: whether it was the best validation of this stage. When a request to stop came in between it is still due: the run that goes on does it.
        """
        best = False
        if self.held_out.is_there:
            loss = self._judge(self.held_out.regular(), final=False)
            if loss is None:
                return False
            best = note_loss(self.state, loss, self.run.record.progress.samples, self.settings.min_delta)
            self.held_out.settle()
        self.state.validation_due, self.state.validated = False, self.counts()
        return best

    def finish(self) -> bool:
        """End the stage: the longer validation, and what the next stage must not go on with.

        :return: False when a request to stop came in between; the stage is then still to be ended.
        :raises UserError: when there was nothing to train on.
        """
        if not self.stats.totals["total_train_steps"]:
            raise nothing_to_train_on(self.stage.name, Counter(self.reached["skipped"]))
        self.batches.close()
        if self.held_out.is_there and self._judge(self.held_out.final(), final=True) is None:
            return False
        for stats in (self.run.record.stats, self.stats):
            stats.totals["no_tokens"] += self.batches.end.empty if self.batches.end is not None else 0
        self.entry.update({"done": True, "skipped": self.reached["skipped"], "replaced": self.reached["replaced"]})
        self.state.done = True
        self.state.position = self.state.validation_position = None
        self.run.lr_schedulers.start_stage()
        return True

    def _judge(self, samples: list[Sample], final: bool) -> float | None:
        """Validate by samples, take note of it, and give the loss; None when a request to stop came in between, and nothing has changed then."""
        run, progress, found = self.run, self.run.record.progress, None
        written = run.completions.write(run.device_model.raw, run.model.tokenizer, self.settings.context_len, progress.step, run.interrupt.requested)
        for attempt in self._budget.attempts(self.cutter.context_len) if written is not None else ():
            with run.interrupt.until_stopped(), attempt as tokens:
                found = evaluate(run.device_model, self.objective, run.model.tokenizer, samples, self._prepare,
                                 partial(self._grouping.mini_batches, token_budget=tokens), run.interrupt.requested, self.by_source.validation_names)
        if found is None or written is None:
            if not run.interrupt.requested():
                raise UserError(f"stage '{self.name}': the samples of a validation have nothing to learn; give more of them (--validation-batch-size), or "
                                "another `validation`.")
            return None
        if rows := run.completions.keep(written, progress, self.stage.name):
            run.notifier.samples(rows)
        loss = found.sums["loss_sum"] / found.sums["n_tokens"]
        if not math.isfinite(loss):
            raise TrainingError(f"the validation loss ({loss}) is not finite; the last checkpoint is whole. A lower --lr or --grad-clip 1 may help.")
        self._record(found, final)
        return loss

    def _record(self, found: Evaluation, final: bool) -> None:
        """Take note of a validation."""
        progress, sums = self.run.record.progress, {**found.sums, "lr": self.lr}
        self.run.record.stats.add_validation(progress, sums, final)
        self.stats.add_validation(progress, sums, final, found.by_source)
        self.run.report.validation(validation_done(found, final))
        self.run.notifier.validation(progress, sums, final, found.by_source)
