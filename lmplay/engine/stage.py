"""A stage at work: its steps, its validations, its end.  Engine floor."""
from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from torch.profiler import record_function

from ..cadence import AUTO, AUTO_VALIDATIONS, VALIDATION_SHARE, VALIDATION_TOKEN, Cadence, intervals
from ..data.collate import Said
from ..data.continuation import Cutter, Piece
from ..data.stream import nothing_to_train_on
from ..device.memory import free_memory
from ..device.random_state import random_state, restore_random_state, restore_torch_random_state, torch_random_state
from ..errors import LmplayError, TrainingError
from ..objectives import load_objective
from ..objectives.base import Objective
from ..optim.grads import check_grads
from ..optim.optimizers import begin_teacher, optimizers_of, width_ratio
from ..plan.names import DEFAULT_OBJECTIVE, OPTIMIZER_SETTINGS
from ..plan.schedules import UNITS
from ..stats.figures import StageEntry
from ..stats.totals import HELD_OUT, VALIDATION, ModelStats
from ..words import counted
from ..writing.prompting import recorded
from .adapting import begin_adapter, end_adapter, in_words
from .batches import Batches, Grouping, TrainBatch, batches_of
from .budget import TokenBudget
from .by_source import BySource
from .early_stopping import is_over, judge_anew, note_loss, note_lowest
from .evaluate import Evaluation, evaluate, log_probs, validation_done
from .held_out import HeldOut
from .named_sets import NamedSets
from .opening import freeze
from .profile import DATA
from .reference import Reference, find_values
from .reference_model import find_model
from .run import OpenStage, Run
from .step import StepSums, train_step
from .taught import Taught, find_taught
from .teacher import Teacher, ask_about, open_teacher
from .thoughts import open_writer
from .written import judge_written

_T = TypeVar("_T")


class StageRunner:
    """Does the work of a stage, from where its state says."""

    def __init__(self, run: Run, stage: OpenStage):
        self.run, self._open, self.stage, self.state, self.settings, self.data = run, stage, stage.stage, stage.state, stage.settings, stage.data
        self.objective = stage.objective
        self.cutter = Cutter(run.model.tokenizer, stage.settings.context_len, run.settings.continuation == "estimate")
        self._prepare = partial(self.objective.prepare, cutter=self.cutter)
        self._reference = Reference() if self.objective.needs_reference else None
        self._taught = Taught() if self.objective.teaching is not None else None
        self._grouping = Grouping(run.settings.first_mini_batch, run.runtime.length_multiple, stage.settings.context_len,
                                  run.runtime.packs(run.device_model.raw), run.runtime.ranks.size, self._reference, self._taught)
        self._budget = TokenBudget(run, stage.settings, self._grouping, self.objective)
        self._answers = open_writer(stage, run.device_model, run.model.tokenizer, run.settings.seed, self._grouping, self._budget.attempts, run.report.say,
                                    lambda: run.optimizers.taught(), run.accord)
        if self._answers is not None:
            run.threads.callback(self._answers.close)
        self.stats = run.record.stage_stats.setdefault(self.stage.name, ModelStats())
        self.stats.declare(stage.objective.figures)
        self.batches = Batches(stage, self.cutter, self._grouping, lambda: self._budget.tokens, run.runtime.data_workers,
                               run.settings.accuracy_pieces, run.runtime.ranks, self.stats.totals["total_train_steps"], run.lr_schedulers.progress or 0.0)
        run.threads.callback(self.batches.close)
        # The samples' position up to the batch trained on, at the end of the stage up to there; the batches are made ahead of it.
        self.reached: dict[str, Any] = self.batches.stream.state() if self.state.position is None else self.state.position["samples"]
        self.by_source = BySource(self.data, self.stats)
        self.data_seconds = 0.0  # waited for the current batch
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
    def n_frozen(self) -> int:
        """The parameter tensors that are not trained; a tied one counts once."""
        return sum(not parameter.requires_grad for parameter in self.run.device_model.raw.parameters())

    @property
    def adapter(self) -> str:
        """What adapter is trained; empty where it is the weights."""
        return "" if self.settings.adapter is None else in_words(self.settings.adapter, self.run.device_model.raw)

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
        if not self._budget.is_measured and self._reference is None and self._taught is None:  # else these are not known yet
            self.batches.start()  # beside the look at the validation rows
        self.held_out = HeldOut(self._open, self._prepare)
        interval = run.settings.validation_interval
        apart = {"tokens": self.held_out.n_tokens * VALIDATION_TOKEN / VALIDATION_SHARE} if interval == AUTO else {}
        self.validations = Cadence(intervals(interval, AUTO_VALIDATIONS), apart)
        self.state.validated = self.state.validated or self.counts()
        self._of_sets = load_objective(DEFAULT_OBJECTIVE)
        self.named_sets = NamedSets(self._open, partial(self._of_sets.prepare, cutter=self.cutter), self.counts())
        if self.state.fingerprints is None:
            self.state.fingerprints = self.data.fingerprints()
            self.state.context_len = self.settings.context_len
            run.record.begin_stage(self.stage.name, self.held_out.floors(), self.objective.loss_unit)
            run.model.forms[self.stage.name] = self.data.forms()
        if judge_anew(self.state, self.held_out.identity):
            run.lr_schedulers.judge_anew()
            for stats in (run.record.stats, self.stats):
                stats.judge_anew()
            self.entry.update(self.held_out.floors())  # type: ignore[typeddict-item]
            samples = "all held-out samples" if self.held_out.n_samples is None else f"the same {counted(self.held_out.n_samples, 'sample')} each time"
            run.report.say(f"stage '{self.name}': validations use other samples than before the checkpoint: from here on {samples}. The best "
                           "validation loss" + (" and early stopping start" if self.settings.patience is not None else " starts") + " again.")
        begin_adapter(run, self.name, self.settings)
        freeze(run.device_model.raw, self.stage, run.settings)
        if (run.optimizers.kind, run.optimizers.settings) != (self.settings.optimizer, self.settings.optimizer_settings):
            average, teacher = run.optimizers.average, run.optimizers.teacher
            run.optimizers = optimizers_of(self.settings, run.device_model.raw)
            run.optimizers.average, run.optimizers.teacher = average, teacher  # the one goes on over all stages, the other in this one
        begin_teacher(run.optimizers, self.settings, run.device_model.raw)
        run.optimizers.adapt_to_width(width_ratio(self.settings, run.device_model.raw))
        run.optimizers.set_weight_decay(self.settings.weight_decay)
        run.optimizers.set_options({name: getattr(self.settings, name) for name in OPTIMIZER_SETTINGS})
        run.device_model.raw.train(self._answers is None)  # dropout would make other probabilities of answers than those they were written with
        self._budget.settle()
        if self._reference is not None:
            self._reference.values = run.accord.from_main(lambda: find_values(run, self._open, self._pieces, self._log_probs))
        if self._taught is not None:
            random_before = random_state()
            assert self.objective.teaching is not None
            with self._budget.lent(f"teacher {self.objective.teaching.name}"):
                self._taught.become(run.accord.from_main(lambda: find_taught(run, self._open, self._pieces, self._asked)))
            self.state.reference = self._taught.header["taught"]
            restore_random_state(random_before)  # the teacher has been built, on one rank
            free_memory(run.runtime.device)
        if self._answers is not None and self._answers.writing.reference:
            self._answers.reference = find_model(run, self._open)

    def next_batch(self) -> TrainBatch | None:
        """Give the next batch; None at the end of the stage, or when a request to stop came before the batch."""
        started = time.perf_counter()
        with record_function(DATA):
            batch = self.batches.next(self.run.interrupt.requested)
        self.data_seconds = time.perf_counter() - started
        if self.batches.end is not None:
            self.reached = self.batches.end.reached
        return batch

    def step(self, batch: TrainBatch) -> tuple[TrainBatch, StepSums] | None:
        """Do an optimizer step, or several with answers that the model writes to the batch's prompts.

        :return: the batch, with these answers, and the sums; None when a request to stop came in between, and nothing has changed then.
        """
        run, random_before = self.run, torch_random_state()
        self._set_rates()
        started, sums = time.perf_counter(), None
        written = self._with_answers(batch)
        seconds = time.perf_counter() - started
        if written is None:
            restore_torch_random_state(random_before)
            return None
        run.accord.begin_step(run.settings.seed, run.record.progress.step)
        try:
            for number in range(1 if self._answers is None else self._answers.writing.updates):
                first, found = number == 0, None  # the others are finished, too, where the first has been done
                for attempt in self._budget.attempts(written.longest):
                    with run.interrupt.until_stopped() if first else nullcontext(), attempt as tokens:
                        found = train_step(run.device_model, run.optimizers, self.objective, written.regrouped(tokens, self._grouping), self.settings.grad_clip,
                                           partial(self._may_stop, first))
                sums = found if sums is None or found is None else sums.plus(found)
                if sums is None:
                    break
        except LmplayError:
            restore_torch_random_state(random_before)
            raise
        run.accord.end_step()
        if sums is None:
            restore_torch_random_state(random_before)
            return None
        if self._answers is not None:
            sums.figures["writing_seconds"] = sums.loss_sum.new_tensor(seconds)
        if run.settings.check_grads and not self._grads_checked:
            self._grads_checked = True
            run.report.grads(self.stage.name, check_grads(run.device_model.raw))
        run.lr_schedulers.advance(batch.batch.progress)
        self.state.position = batch.batch.position
        self.reached = batch.batch.position["samples"]
        return written, sums

    def _set_rates(self) -> None:
        """Give the optimizers the learning rate and the weight decay of the step."""
        run, done = self.run, {unit: float(self.stats.totals[f"total_train_{unit}"]) for unit in UNITS}
        run.optimizers.set_lr(run.lr_schedulers.lr(self.settings, done))
        if (decay := self.settings.weight_decay_schedule) is not None:
            run.optimizers.set_weight_decay(decay.at(run.lr_schedulers.progress or 0.0))

    def _may_stop(self, first: bool) -> bool:
        """Tell whether a request to stop ends an update, the first of its step or another."""
        return first and not self.run.interrupt.shared and self.run.interrupt.requested()

    def counts(self) -> dict[str, float]:
        """How far the run is, and the stage in tenths of its length, as far as that is known."""
        return {**self.run.record.counts(), "tenths": 10 * (self.run.lr_schedulers.progress or 0.0)}

    def note_progress(self) -> None:
        """Note whether a validation and evaluations of named sets are due after the step that has been done."""
        by_clock = any("seconds" in cadence.every for cadence in (self.validations, *self.named_sets.cadences.values()))
        found = self._from_main(self._due) if by_clock else self._due()  # each rank has a clock of its own
        self.state.validation_due, self.state.evaluation_due = found or (False, [])

    def _due(self) -> tuple[bool, list[str]]:
        """Tell whether a validation is due, and which named sets."""
        assert self.state.validated is not None
        return self.validations.due(self.state.validated, self.counts()), self.named_sets.due(self.counts())

    def validate(self) -> bool:
        """Judge the model by the held-out samples, the same ones each time.

        :return: whether it was the best validation of this stage. When a request to stop came in between it is still due: the run that goes on does it.
        """
        best = False
        if self.held_out.is_there:
            found = self._judge(self.held_out.regular)
            if found is None:
                return False
            self.run.lr_schedulers.judged(self.settings, found.loss)
            best = note_loss(self.state, found.loss, self.run.record.progress.samples, self.settings.min_delta)
            self._record(found, final=False)
        self.state.validation_due, self.state.validated = False, self.counts()
        return best

    def evaluate(self, names: Sequence[str]) -> bool:
        """Judge the model by named sets, each as a whole; training goes on with the random numbers that it would have had.

        :param names: those of the sets; one that the model has been judged by at this step is skipped.
        :return: False when a request to stop came in between; the run that goes on does those that are left.
        """
        random_before = torch_random_state()
        for name in names:
            if not self.stats.evaluated_at(name, self.run.record.progress):
                with self.run.optimizers.averaged():
                    found = self._evaluate(partial(self.named_sets.units, name), self._of_sets, [])
                restore_torch_random_state(random_before)
                if found is not None:
                    self._record_set(name, found)
                    self.run.report.evaluation(name, self.stats.describe_set(name), self.named_sets.skipped[name])
                elif self.run.interrupt.stopping():
                    return False
                else:
                    self.run.report.say(f"WARNING: stage '{self.name}': evaluate.{name}: its rows give the tokenizer no token; it is left out.")
            self.named_sets.note_done(name, self.counts())
        return True

    def finish(self, keep_best: Callable[[], None]) -> bool:
        """End the stage: named sets, its last validation, more held-out samples, and what the next stage must not go on with.

        :param keep_best: is called when the last validation is the best of the stage, before the stage counts as done.
        :return: False when a request to stop came in between; the stage is then still to be ended.
        :raises UserError: when there was nothing to train on.
        """
        if not self.stats.totals["total_train_steps"]:
            raise nothing_to_train_on(self.stage.name, Counter(self.reached["skipped"]))
        self.batches.close()
        if (steps := self.run.lr_schedulers.steps) < self.settings.warmup:
            self.run.report.say(f"WARNING: stage '{self.name}': {counted(steps, 'step')}, and its warm-up takes {self.settings.warmup:g}: the learning rate "
                                "has not reached its peak. More epochs, a smaller batch_size or a shorter warm-up may help.")
        if not self.evaluate(self.named_sets.names):
            return False
        if self.held_out.is_there:
            found = self._judge(self.held_out.regular)
            more = self._judge(self.held_out.rest) if found is not None else None
            if found is None or self.run.interrupt.stopping():
                return False
            with self.run.optimizers.averaged():
                written = {} if self._answers is not None else self._written(
                    lambda interrupted: judge_written(self.run.device_model.raw, self.run.model.tokenizer, self.held_out.regular(), self.settings.context_len,
                                                      interrupted))
            if written is None:
                return False
            found.sums.update(written)
            best = note_lowest(self.state, found.loss, self.run.record.progress.samples)
            self._record(found, final=True)
            self._record_set(HELD_OUT, more if more is not None and self.held_out.judges_parts else found.plus(more))
            if best:
                keep_best()
        for stats in (self.run.record.stats, self.stats):
            stats.totals["no_tokens"] += self.batches.end.empty if self.batches.end is not None else 0
        self.entry.update({"done": True, "skipped": self.reached["skipped"], "replaced": self.reached["replaced"]})
        self.state.done = True
        self.state.position = None
        end_adapter(self.run, self.name, self.settings)
        self.run.optimizers.teacher = None
        self.run.lr_schedulers.start_stage()
        return True

    def _with_answers(self, batch: TrainBatch) -> TrainBatch | None:
        """Let the model write answers to the prompts of a batch, where the objective learns from such; None when a request to stop came in between."""
        if self._answers is None:
            return batch
        found = None
        with self.run.interrupt.until_stopped():
            found = self._answers.write_groups(batch.batch.pieces, self.run.record.progress.samples, self.run.interrupt.requested)
        if found is None:
            return None
        sources = [piece.sample.source for piece in found] if batch.sources else []
        return TrainBatch(replace(batch.batch, pieces=found), self._grouping.mini_batches(found, batch.token_budget), batch.token_budget, sources, range(0))

    def _pieces(self) -> Iterator[Piece]:
        """Give all pieces that the stage is trained on, and judged by."""
        for batch in batches_of(self._open, self.cutter):
            yield from batch.pieces
        for unit in chain(self.held_out.regular(), self.held_out.rest()):
            yield from unit

    def _log_probs(self, pieces: list[Piece]) -> list[float]:
        """Compute the log-probabilities of answers by the model as it is; of several ranks only this one does."""
        found: list[float] = []
        pieces = [replace(piece, preferred=None) for piece in pieces]  # the other answer of a pair may be among those before
        for attempt in self._budget.attempts(self.cutter.context_len):
            with attempt as tokens:
                budget = self.run.settings.validation_budget(self.cutter.context_len, tokens)
                found = log_probs(self.run.device_model, pieces, self._grouping.alone().mini_batches(pieces, budget))
        return found

    def _asked(self, teacher: Teacher) -> tuple[str, Callable[[list[Piece]], list[Said]]]:
        """Open a teacher: what identifies its weights, and what asks it about the tokens of pieces; of several ranks only this one does."""
        run, teaching = self.run, self.objective.teaching
        assert teaching is not None
        opened = open_teacher(teacher, run.runtime, self._grouping)

        def ask(pieces: list[Piece]) -> list[Said]:
            found: list[Said] = []
            for attempt in self._budget.attempts(self.cutter.context_len):
                with attempt as tokens:
                    budget = run.settings.validation_budget(self.cutter.context_len, tokens)
                    found = ask_about(opened, pieces, budget, teaching, run.model.tokenizer)
            return found

        return opened.identity, ask

    def _judge(self, units: Callable[[], Iterable[list[Piece]]]) -> Evaluation | None:
        """Judge the model by held-out samples, and let it continue prompts; None when a request to stop came in between, and without samples."""
        run = self.run
        prompting = recorded(run.model.tokenizer, run.model.forms)
        with run.optimizers.averaged() as is_averaged:
            written = self._written(lambda interrupted: run.completions.write(run.device_model.raw, prompting, self.settings.context_len,
                                                                              run.record.progress.step, interrupted))
            if written is None:
                return None
            found = self._evaluate(units, self.objective, self.by_source.validation_names)
        if found is not None and is_averaged:  # the weights themselves, for comparison
            raw = self._evaluate(units, self.objective, ())
            if raw is None:
                return None
            found.sums.update(raw_loss_sum=raw.sums["loss_sum"], raw_tokens=raw.sums["n_tokens"])
        if found is not None and run.is_main and (rows := run.completions.keep(written, run.record.progress, self.stage.name)):
            run.notifier.samples(rows)
        return found

    def _from_main(self, work: Callable[[], _T | None]) -> _T | None:
        """Let rank 0 do work, and return what it has found on all; None when a request to stop came in between."""
        found = None
        with self.run.interrupt.until_stopped():
            found = self.run.accord.from_main(work)
        return found

    def _written(self, write: Callable[[Callable[[], bool]], _T | None]) -> _T | None:
        """Let the model write. Rank 0 does it; where each rank has a part of the weights all write the same, and a request to stop waits for the end.

        :param write: writes, asking a function whether it is interrupted.
        :return: what it gives; None when a request to stop came in between.
        """
        run, found = self.run, None
        if not run.runtime.ranks.shards:
            return self._from_main(lambda: write(run.interrupt.requested))
        with run.interrupt.until_stopped():
            run.completions.newest = run.accord.from_main(lambda: run.completions.newest)
            found = run.accord.alike(partial(self._write_in_unison, write))
        return found

    def _write_in_unison(self, write: Callable[[Callable[[], bool]], _T | None]) -> _T | None:
        """Let all ranks write the same."""
        with self.run.accord.in_unison(self.run.device_model.raw):
            return write(lambda: False)

    def _evaluate(self, units: Callable[[], Iterable[list[Piece]]], objective: Objective, sources: Sequence[str]) -> Evaluation | None:
        """Judge the model by samples; None when a request to stop came in between, and without samples."""
        run, found = self.run, None
        grouping = self._grouping if objective is self.objective else self._grouping.alone()  # of named sets nobody has said anything
        if objective.writing is not None:
            answered = self._best_answers(units)
            if answered is None:
                return None
            units = answered
        for attempt in self._budget.attempts(self.cutter.context_len):
            with run.interrupt.until_stopped(), attempt as tokens:
                budget = run.settings.validation_budget(self.cutter.context_len, tokens)
                found = evaluate(run.device_model, objective, run.model.tokenizer, units(), partial(grouping.mini_batches, token_budget=budget),
                                 run.interrupt.requested, sources, run.accord)
        if found is not None and not math.isfinite(found.loss):
            raise TrainingError(f"the validation loss ({found.loss}) is not finite; the last checkpoint is intact. A lower --lr or --grad-clip 1 may help.")
        return found

    def _best_answers(self, units: Callable[[], Iterable[list[Piece]]]) -> Callable[[], Iterable[list[Piece]]] | None:
        """Let the model answer the prompts of held-out samples; None when a request to stop came in between."""
        assert self._answers is not None
        found = None
        with self.run.interrupt.until_stopped():
            found = self._answers.write_best(units(), self.run.interrupt.requested)
        if found is None:
            return None
        answers = (self._answers.row(piece) for unit in found for piece in unit)
        if self.run.is_main and (rows := self.run.completions.keep_answers(answers, self.run.record.progress, self.stage.name)):
            self.run.notifier.samples(rows)
        return lambda: iter(found)

    def _record(self, found: Evaluation, final: bool) -> None:
        """Take note of a validation."""
        progress, sums = self.run.record.progress, {**found.sums, "lr": self.lr}
        self.run.record.stats.add_validation(progress, sums, final, unit=self.objective.loss_unit)
        self.stats.add_validation(progress, sums, final, found.by_source, self.objective.loss_unit)
        for stats in (self.run.record.stats, self.stats):
            stats.keep_samples(VALIDATION, progress, found.sums, found.samples)
        self.run.report.validation(validation_done(found, final, self.objective))
        self.run.notifier.validation(progress, sums, final, found.by_source)

    def _record_set(self, name: str, found: Evaluation) -> None:
        """Take note of the evaluation of a set."""
        progress, sums = self.run.record.progress, {**found.sums, "lr": self.lr}
        for stats in (self.run.record.stats, self.stats):
            stats.add_set(name, progress, sums)
            stats.keep_samples(name, progress, sums, found.samples)
        self.run.notifier.evaluation(name, progress, sums)
