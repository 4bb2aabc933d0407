"""A stage at work: its batches, its steps, its validations.  Engine floor."""
from __future__ import annotations

import math
import time
from itertools import accumulate, islice
from typing import Any

from ..data.batcher import Batch, Batcher
from ..data.collate import collate
from ..data.continuation import Cutter
from ..data.samples import Sample
from ..data.stream import SampleStream, describe_skipped
from ..errors import TrainingError, UserError
from ..optim.grads import check_grads
from ..optim.optimizers import set_lr, set_weight_decay
from ..plan.curriculum import StageState
from ..plan.schema import Stage
from ..stats.modelstats import ModelStats
from .evaluate import evaluate
from .run import Run, freeze
from .runtime import restore_torch_random_state, torch_random_state
from .step import StepResult, train_step

# The validation that ends a stage takes so many times the samples of the others, from the first held-out row on: the same for every run.
FINAL_FACTOR = 16
# But on average no more than so many characters each: whatever the tokenizer, the same samples.
FINAL_CHARACTERS = 2000
# Word accuracy in training is measured on the first pieces of each batch: cheap, and enough for a curve.
WATCHED_PIECES = 4
# Samples from which the floor of a stage is worked out.
_FLOOR_SAMPLES = 32


class StageWork:
    """Does the work of a stage, from where its state says."""

    def __init__(self, run: Run, stage: Stage, state: StageState):
        self.run, self.stage, self.state = run, stage, state
        self.settings = run.stage_settings[stage.name]
        self.data = run.stage_data[stage.name]
        self.cutter = Cutter(run.model.tokenizer, self.settings.context_len, run.settings.continuation == "estimate")
        self.stream = self.data.samples()
        self.batcher = Batcher(self.stream, self.cutter, self.settings.batch_size, stage.tokens)
        self.stats = run.runner.step_stats.setdefault(stage.name, ModelStats())
        self.data_seconds = 0.0  # waited for the batch at hand
        self.ended_early = False
        self.has_validation = self._can_validate()
        self._validation = self.data.validation_samples() if self.has_validation else None
        self._begin()

    @property
    def entry(self) -> dict[str, Any]:
        """What the statistics say of this stage."""
        return self.run.runner.stages[-1]

    def next_batch(self) -> Batch | None:
        """Give the next batch, or None at the end of the stage."""
        started = time.perf_counter()
        batch = self.batcher.next()
        self.data_seconds = time.perf_counter() - started
        return batch

    def step(self, batch: Batch) -> StepResult | None:
        """Do an optimizer step; None when a request to stop came in between, and nothing has changed then."""
        run = self.run
        random_before = torch_random_state()
        mini_batches = collate(batch.pieces, run.settings.first_mini_batch, run.runner.runtime.length_multiple, self.cutter.context_len - 1)
        set_lr(run.optimizers.optimizer, run.lr_schedulers.lr(self.settings))
        result = train_step(run.model.module, run.wrapped, run.optimizers.optimizer, run.runner.runtime, mini_batches, grad_clip=self.settings.grad_clip,
                            watch=range(WATCHED_PIECES), interrupted=run.interrupt.requested)
        if result is None:
            restore_torch_random_state(random_before)
            return None
        if run.settings.check_grads and run.lr_schedulers.steps == 0:
            run.report.grads(self.stage.name, check_grads(run.model.module))
        run.lr_schedulers.advance(batch.progress)
        self.state.position = batch.position
        return result

    def validate(self) -> bool:
        """Judge the model by the next held-out samples, round and round.

        :return: whether it was the best validation of this stage. When a request to stop came in between it is still due: the run that goes on does it.
        """
        lowest = self.state.lowest_loss
        if self._validation is not None:
            samples = self._take(self._validation, self.settings.validation_samples)
            if not self._judge(samples, final=False):
                return False
            self.state.validation_position = self._validation.state()
        self.state.validation_due = False
        return self.state.lowest_loss != lowest

    def finish(self) -> bool:
        """End the stage: the longer validation, and what the next stage must not go on with.

        :return: False when a request to stop came in between; the stage is then still to be ended.
        :raises UserError: when there was nothing to train on.
        """
        if not self.stats.totals["total_train_steps"]:
            raise UserError(f"stage '{self.stage.name}': there was nothing to train on ({describe_skipped(self.stream.skipped)}).")
        self.ended_early = self.is_over()
        fresh = self.data.validation_samples() if self.has_validation else None
        if fresh is not None and not self._judge(self._take_final(fresh), final=True):
            return False
        self.entry["done"] = True
        self.state.done = True
        self.state.position = self.state.validation_position = None
        self.run.lr_schedulers.start_stage()
        return True

    def is_over(self) -> bool:
        """Tell whether validation has not become better for too long."""
        return self.settings.patience is not None and self.state.stale >= self.settings.patience

    def place(self) -> dict[str, float]:
        """Say where the run is, for the statistics."""
        totals = self.run.runner.stats.totals
        return {"step": totals["total_train_steps"], "samples": totals["total_train_samples"], "tokens": totals["total_train_tokens"],
                "seconds": self.run.runner.seconds, "lr": self.run.optimizers.optimizer.param_groups[0]["lr"]}

    def _begin(self) -> None:
        """Go to where the state says, and set model and optimizer up for this stage."""
        run = self.run
        if self.state.fingerprints is None:
            self.state.fingerprints = self.data.fingerprints()
            self.state.context_len = self.settings.context_len
            place = self.place()
            run.runner.stages.append({"name": self.stage.name, "done": False, **{f"{end}_{unit}": place[unit] for end in ("from", "to")
                                                                                for unit in ("samples", "tokens", "seconds")}, **self._floors()})
        if self.state.position is not None:
            self.batcher.restore(self.state.position)
        if self.state.validation_position is not None and self._validation is not None:
            self._validation.restore(self.state.validation_position)
        self.frozen = freeze(run.model.module, self.stage, run.settings)
        set_weight_decay(run.optimizers.optimizer, self.settings.weight_decay)
        run.model.module.train()

    def _take_final(self, stream: SampleStream) -> list[Sample]:
        """Take samples for the validation at the end: not so many that long texts make it take longer than the stage."""
        samples = self._take(stream, FINAL_FACTOR * self.settings.validation_samples)
        lengths = accumulate(len(sample.truth) for sample in samples)
        most = FINAL_CHARACTERS * len(samples)
        return samples[:1 + sum(length < most for length in lengths)]

    def _can_validate(self) -> bool:
        """Tell whether there is a held-out row that gives a sample."""
        samples = self.data.validation_samples()
        try:
            return samples is not None and samples.next() is not None
        except UserError:
            return False

    def _take(self, stream: SampleStream, count: int) -> list[Sample]:
        """Take samples for a validation, no row twice."""
        most = stream.rows_per_epoch
        return list(islice(iter(stream.next, None), count if most is None else min(count, most)))

    def _judge(self, samples: list[Sample], final: bool) -> bool:
        """Validate by samples, and take note of it; False when a request to stop came in between, and nothing has changed then."""
        run = self.run
        judged = evaluate(run.model.module, run.wrapped, run.runner.runtime, run.model.tokenizer, self.cutter, samples, run.settings.first_mini_batch,
                          run.interrupt.requested)
        if judged is None:
            return False
        sums, example = judged
        loss = sums["loss_sum"] / sums["n_tokens"]
        if not math.isfinite(loss):
            raise TrainingError(f"the validation loss ({loss}) is not finite; the last checkpoint is whole. A lower --lr or --grad-clip 1 may help.")
        for stats in (run.runner.stats, self.stats):
            stats.add_validation(self.place(), sums, final)
        run.report.validation(sums, example, final)
        if final:
            return True
        if self.state.lowest_loss is None or loss < self.state.lowest_loss:
            self.state.lowest_loss, self.state.lowest_samples = loss, run.runner.samples
        if self.state.best_loss is None or loss < self.state.best_loss - self.settings.min_delta:
            self.state.best_loss, self.state.stale = loss, 0
        else:
            self.state.stale += 1
        return True

    def _floors(self) -> dict[str, float | None]:
        """Work out the lowest loss that any model can reach, where the sources know it."""
        stream = (self.data.validation_samples() if self.has_validation else None) or self.data.samples()
        first = stream.next()
        if first is None or first.nats is None:
            return {"floor_nats_per_token": None, "floor_bits_per_byte": None}
        samples = [first, *self._take(stream, _FLOOR_SAMPLES - 1)]
        if any(sample.nats is None for sample in samples):
            return {"floor_nats_per_token": None, "floor_bits_per_byte": None}
        nats = sum(sample.nats or 0.0 for sample in samples)
        tokens = sum(piece.n_truth for sample in samples for piece in self.cutter.cut(sample))
        n_bytes = sum(len(sample.truth.encode()) for sample in samples)
        return {"floor_nats_per_token": nats / tokens, "floor_bits_per_byte": nats / n_bytes / math.log(2)}
