"""A stage at work: its batches, its steps, its validations.  Engine floor."""
from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, TypeVar

from ..data.batcher import Batch, Batcher
from ..data.collate import MiniBatch, collate
from ..data.continuation import Cutter, Piece
from ..data.prefetch import Prefetch
from ..data.samples import Sample
from ..data.stream import SampleStream, describe_skipped
from ..data.workers import Workers
from ..device.memory import free_memory, is_out_of_memory
from ..device.random_state import restore_torch_random_state, torch_random_state
from ..errors import TrainingError, UserError
from ..optim.grads import check_grads
from ..optim.optimizers import set_lr, set_weight_decay
from ..plan.curriculum import StageState
from ..plan.schema import Stage
from ..stats.histories import ModelStats
from .budget import choose_room, halve_room
from .by_source import BySource
from .evaluate import Evaluation, evaluate
from .interrupt import Stopped
from .opening import Run, freeze
from .step import StepResult, train_step

# The validation that ends a stage takes so many times the samples of the others, from the first held-out row on: the same for every run.
FINAL_FACTOR = 16
# But on average no more than so many characters each: whatever the tokenizer, the same samples.
FINAL_CHARACTERS = 2000
# Word accuracy in training is measured on the first pieces of each batch: cheap, and enough for a curve.
WATCHED_PIECES = 4
# Samples from which the floor of a stage is worked out.
_FLOOR_SAMPLES = 32
# Batches made ahead of the step: enough to even out short and long ones.
_BATCHES_AHEAD = 4


@dataclass(frozen=True)
class _Prepared:
    """A batch (None at the end of the stage) and its mini-batches with `room` for so many tokens (0 = by pieces).

    `reached` is the position of the samples then; `empty` counts the samples after the last batch that have no token.
    """

    batch: Batch | None
    room: int
    mini_batches: list[MiniBatch]
    reached: dict[str, Any]
    empty: int = 0


Done = TypeVar("Done")


class StageRunner:
    """Does the work of a stage, from where its state says."""

    def __init__(self, run: Run, stage: Stage, state: StageState):
        self.run, self.stage, self.state = run, stage, state
        self.settings = run.stage_settings[stage.name]
        self.data = run.stage_data[stage.name]
        self.cutter = Cutter(run.model.tokenizer, self.settings.context_len, run.settings.continuation == "estimate")
        self._joined = run.runner.runtime.packs(run.model.module)
        self._measured = run.settings.mini_batch_size == "auto"
        self.stream = self.data.samples()
        self._prefetch = Prefetch(self._prepare, _BATCHES_AHEAD if run.settings.data_workers else 0)
        run.closing.callback(self._prefetch.close)
        self._prepared: _Prepared | None = None
        self._position = state.position  # from which batches are made: what is made ahead and not trained on is made again
        # The samples' position up to the batch trained on, at the end of the stage up to there; the stream itself may be ahead, in another thread.
        self.reached: dict[str, Any] = self.stream.state() if state.position is None else state.position["samples"]
        if not self._measured:  # else the room of a mini-batch is not known yet
            self._prefetch.start()  # beside the look at the validation rows
        self.stats = run.runner.step_stats.setdefault(stage.name, ModelStats())
        self.by_source = BySource(self.data, self.stats)
        self.data_seconds = 0.0  # waited for the batch at hand
        self.ended_early = False
        self.has_validation = self._can_validate()
        self._validation = self.data.validation_samples() if self.has_validation else None
        self._begin()

    @property
    def entry(self) -> dict[str, Any]:
        """What the statistics say of this stage."""
        return self.run.runner.stages[-1]

    @property
    def room(self) -> int:
        """The most tokens that go through the device at once; 0 = it goes by pieces."""
        return self.run.runner.room["tokens"] if self._measured else self.run.settings.room(self.cutter.context_len)

    def next_batch(self) -> Batch | None:
        """Give the next batch; None at the end of the stage, or when a request to stop came before the batch."""
        started = time.perf_counter()
        prepared = self._prefetch.next(self.run.interrupt.requested)
        self.data_seconds = time.perf_counter() - started
        if prepared is None:  # asked to stop meanwhile
            return None
        self._prepared = prepared
        if prepared.batch is None:
            self.reached = prepared.reached
        return prepared.batch

    def step(self, batch: Batch) -> StepResult | None:
        """Do an optimizer step; None when a request to stop came in between, and nothing has changed then."""
        run = self.run
        random_before = torch_random_state()
        sources = self.by_source.numbers(batch)
        set_lr(run.optimizers.optimizer, run.lr_schedulers.lr(self.settings))

        def attempt(room: int) -> StepResult | None:
            mini_batches = self._mini_batches(batch, room)
            return train_step(run.model.module, run.wrapped, run.optimizers.optimizer, run.runner.runtime, mini_batches, grad_clip=self.settings.grad_clip,
                              watch=range(WATCHED_PIECES), interrupted=run.interrupt.requested, sources=sources, forward=self._forward)

        result = self._until_stopped(lambda: self._fit_memory(attempt, max(len(piece.tokens) for piece in batch.pieces) - 1))
        if result is None:
            restore_torch_random_state(random_before)
            return None
        if run.settings.check_grads and run.lr_schedulers.steps == 0:
            run.report.grads(self.stage.name, check_grads(run.model.module))
        run.lr_schedulers.advance(batch.progress)
        self.state.position = batch.position
        self.reached = batch.position["samples"]
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
            skipped = describe_skipped(Counter(self.reached["skipped"]))
            raise UserError(f"stage '{self.stage.name}': there was nothing to train on ({skipped}).")
        self._prefetch.close()
        self.ended_early = self.is_over()
        fresh = self.data.validation_samples() if self.has_validation else None
        if fresh is not None and not self._judge(self._take_final(fresh), final=True):
            return False
        for stats in (self.run.runner.stats, self.stats):
            stats.totals["no_tokens"] += self._prepared.empty if self._prepared is not None else 0
        self.entry.update({"done": True, "skipped": self.reached["skipped"], "replaced": self.reached["replaced"]})
        self.state.done = True
        self.state.position = self.state.validation_position = None
        self.run.lr_schedulers.start_stage()
        return True

    def is_over(self) -> bool:
        """Tell whether validation has not become better for too long."""
        return self.settings.patience is not None and self.state.stale >= self.settings.patience

    @property
    def lr(self) -> float:
        """The learning rate of the newest step."""
        return float(self.run.optimizers.optimizer.param_groups[0]["lr"])

    def _begin(self) -> None:
        """Go to where the state says, and set model and optimizer up for this stage."""
        run = self.run
        if self.state.fingerprints is None:
            self.state.fingerprints = self.data.fingerprints()
            self.state.context_len = self.settings.context_len
            place = run.runner.progress._asdict()
            run.runner.stages.append({"name": self.stage.name, "done": False, **{f"{end}_{unit}": place[unit] for end in ("from", "to")
                                                                                for unit in ("samples", "tokens", "seconds")}, **self._floors()})
        if self.state.validation_position is not None and self._validation is not None:
            self._validation.restore(self.state.validation_position)
        self.frozen = freeze(run.model.module, self.stage, run.settings)
        set_weight_decay(run.optimizers.optimizer, self.settings.weight_decay)
        run.model.module.train()
        if self._measured:
            choose_room(run, self.settings, self._joined)

    def _prepare(self, halted: Callable[[], bool]) -> Iterator[_Prepared]:
        """Make the batches from where the state says, with their mini-batches; runs in a thread of its own, beside training and validation.

        What it shares with them it only reads: sources, tokenizer and cutter; it draws no random numbers.
        """
        count = self.run.settings.data_workers
        with Workers(self.cutter, count) if count > 1 else nullcontext() as workers:
            batcher = Batcher(self.stream, self.cutter, self.settings.batch_size, self.stage.tokens, cutting=workers.cut if workers else None, halted=halted)
            if self._position is not None:
                batcher.restore(self._position)
            while (batch := batcher.next()) is not None:
                room = self.room
                yield _Prepared(batch, room, self._collate(batch.pieces, room), batcher.reached)
            yield _Prepared(None, 0, [], batcher.reached, batcher.empty)

    def _mini_batches(self, batch: Batch, room: int) -> list[MiniBatch]:
        """Give a batch's mini-batches: those made with it, if it is the batch at hand and was made for this room."""
        prepared = self._prepared
        same = prepared is not None and prepared.batch is batch and prepared.room == room
        return prepared.mini_batches if prepared is not None and same else self._collate(batch.pieces, room)

    def _collate(self, pieces: Sequence[Piece], room: int) -> list[MiniBatch]:
        """Make the mini-batches of as many pieces as there is room for, or, where that is 0, of the size that was asked for."""
        size, multiple = self.run.settings.first_mini_batch, self.run.runner.runtime.length_multiple
        return collate(pieces, size, multiple, self.cutter.context_len, room, self._joined)

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

        def attempt(room: int) -> Evaluation | None:
            with self._forward():
                return evaluate(run.model.module, run.wrapped, run.runner.runtime, run.model.tokenizer, self.cutter, samples,
                                lambda pieces: self._collate(pieces, room), run.interrupt.requested, self.by_source.validation_names)

        progress = run.runner.progress
        written = run.prompted.write(run.model.module, run.model.tokenizer, self.settings.context_len, progress.step, run.interrupt.requested)
        judged = self._until_stopped(lambda: self._fit_memory(attempt, self.cutter.context_len)) if written is not None else None
        if judged is None or written is None:
            return False
        if rows := run.prompted.keep(written, progress, self.stage.name):
            run.runner.listeners.samples(rows)
        sums = {**judged.sums, "lr": self.lr}
        loss = sums["loss_sum"] / sums["n_tokens"]
        if not math.isfinite(loss):
            raise TrainingError(f"the validation loss ({loss}) is not finite; the last checkpoint is whole. A lower --lr or --grad-clip 1 may help.")
        run.runner.stats.add_validation(progress, sums, final)
        self.stats.add_validation(progress, sums, final, judged.by_source)
        run.report.validation(sums, judged.example, final)
        run.runner.listeners.validation(progress, sums, final, judged.by_source)
        if final:
            return True
        if self.state.lowest_loss is None or loss < self.state.lowest_loss:
            self.state.lowest_loss, self.state.lowest_samples = loss, run.runner.samples
        if self.state.best_loss is None or loss < self.state.best_loss - self.settings.min_delta:
            self.state.best_loss, self.state.stale = loss, 0
        else:
            self.state.stale += 1
        return True

    def _forward(self) -> AbstractContextManager[None]:
        """Give what goes around forward and backward: where the model is compiled, which takes minutes, they are ended by a request at once."""
        return self.run.interrupt.at_once() if self.run.settings.compile_model else nullcontext()

    def _until_stopped(self, work: Callable[[], Done | None]) -> Done | None:
        """Do something in which requests may be heard at once; None when one was."""
        try:
            return work()
        except Stopped:
            if self.run.interrupt.is_ending:
                raise
            return None

    def _fit_memory(self, work: Callable[[int], Done], longest: int) -> Done:
        """Do something by mini-batches; with `--mini-batch-size auto` halve these when memory runs out, and do it again from its start.

        :param work: is given the room of a mini-batch, in tokens (0 = by pieces).
        :param longest: the tokens of the longest piece that it is done for: with less room than that, it would be alone as before.
        :raises TrainingError: when memory runs out and smaller mini-batches were not asked for, or there are none.
        """
        run, random_before = self.run, torch_random_state()
        while True:
            room = self.room
            try:
                return work(room)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                size = run.settings.first_mini_batch
                smallest = room <= longest if room else size == 1
                if smallest or not self._measured:
                    context_len = self.cutter.context_len
                    told = f"{room:,} tokens" if run.settings.mini_batch_tokens else \
                        f"one piece of up to {min(longest + 1, context_len)} tokens" if smallest else f"{size} pieces of up to {context_len} tokens"
                    raise TrainingError(_no_memory(told, smallest)) from error
            # here the error is gone, and with it what its frames held
            halve_room(run)
            run.optimizers.optimizer.zero_grad(set_to_none=True)
            restore_torch_random_state(random_before)
            free_memory(run.runner.runtime.device)
            run.report.say(f"out of memory with {room:,} tokens in a mini-batch: from here on {self.room:,}; the work at hand is done again")

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


def _no_memory(room: str, smallest: bool) -> str:
    """Say what may help when memory has run out."""
    smaller = "" if smallest else "--mini-batch-size auto finds the size that fits, or give a smaller one (the result stays the same); then "
    return f"out of memory with {room} in a mini-batch; the last checkpoint is whole. What may help: {smaller}--amp, --activation-checkpointing on, " \
        "a smaller --context-len or model."
