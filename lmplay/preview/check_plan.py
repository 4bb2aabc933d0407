"""`--check-plan`: what a plan would read and what it would cost, measured on a sample of each stage, without training."""
from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..checkpoints.format import checkpoint_bytes
from ..data.round_trip import check_round_trip
from ..data.samples import Sample
from ..data.stage import StageData
from ..data.stream import SampleStream, describe_losses, describe_skipped, nothing_to_train_on
from ..device.memory import peak_memory, wait_for
from ..device.model import DeviceModel
from ..engine.adapting import in_words, tried
from ..engine.batches import Batches, Grouping, TrainBatch
from ..engine.opening import Outline, check_all, freeze, make_model
from ..engine.run import OpenStage
from ..engine.step import train_step
from ..engine.taught import file_bytes
from ..engine.teacher import check_teachers
from ..errors import Faults, UserError
from ..files import check_folder
from ..objectives.base import Objective
from ..optim.optimizers import optimizers_of
from ..optim.set import OptimizerSet
from ..paths import expanded
from ..plan.curriculum import StageState
from ..plan.schema import Plan, Stage
from ..plan.settings import AdapterSettings, Settings, StageSettings
from .check_answers import write_some
from .check_sets import check_sets
from .show import StageView, sample_as_json

# Each stage is measured on this many samples, read for at most this many seconds: the error of the estimates is printed beside them.
_SAMPLES, _SAMPLE_SECONDS = 1000, 15.0
# Samples that are compared for duplicates, which needs no tokens and so is much faster.
_COMPARED, _COMPARED_SECONDS = 50_000, 10.0
_TIMED_SECONDS = 4.0  # for which mini-batches are timed, after a first one that warms up
_PIECES_SHOWN = 1  # of the first sample of each source
_STANDARD_DEVIATIONS = 1.96  # around the mean of a normal distribution, which hold 95 % of it


@dataclass
class _Measured:
    """Measurements of the first samples of a stage.

    `tokens` are the truth tokens of each sample, `whole` says that these are all samples of the stage, `first_samples` are by the number of the source, and
    `reached` is the position behind the rows that have been read.
    """

    tokens: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    whole: bool = False
    first: TrainBatch | None = None
    first_samples: dict[int, Sample] = field(default_factory=dict)
    reached: dict[str, Any] = field(default_factory=dict)

    @property
    def skipped(self) -> Counter[str]:
        """The rows that gave no sample, by reason."""
        return Counter(self.reached["skipped"])

    @property
    def share_of_samples(self) -> float:
        """The share of the rows read that gave a sample."""
        return self.reached["samples"] / (self.reached["samples"] + self.skipped.total())

    @property
    def tokens_per_sample(self) -> float:
        """The mean number of truth tokens."""
        return statistics.fmean(self.tokens)

    def error(self, share: float) -> float:
        """Compute the half width of the 95 % confidence interval of the mean, as a share of the mean; `share` of all samples have been measured."""
        if len(self.tokens) < 2 or self.whole:
            return 0.0
        spread = statistics.stdev(self.tokens) / math.sqrt(len(self.tokens)) * math.sqrt(max(0.0, 1 - share))
        return _STANDARD_DEVIATIONS * spread / self.tokens_per_sample

    def tokens_of_length(self, length: int) -> tuple[int, float]:
        """Estimate the tokens of a stage that takes samples until it has `length` tokens, and the half width of the interval as a share of them.

        The last sample goes beyond the length. What of it does is its residual life in a renewal process, with the moments E[t²] / 2 E[t] and
        E[t³] / 3 E[t] (Feller, "An Introduction to Probability Theory and Its Applications", volume 2, XI.4).
        """
        if self.whole:
            return sum(self.tokens), 0.0
        first, second, third = (statistics.fmean(tokens ** power for tokens in self.tokens) for power in (1, 2, 3))
        beyond = second / (2 * first)
        spread = math.sqrt(max(0.0, third / (3 * first) - beyond ** 2))
        return round(length + beyond), _STANDARD_DEVIATIONS * spread / (length + beyond)


def check_plan(settings: Settings, plan: Plan, say: Callable[[str], None], faults: Faults | None = None) -> dict[str, Any]:
    """Read the first part of every stage of a plan, and time a few steps.

    :param settings: of the command line; with an existing model file, its model and tokenizer are used, and the file is not changed.
    :param say: called with a line when code has been compiled.
    :param faults: what has been found wrong already.
    :return: plain values: `stages`, a dictionary each, and their totals.
    :raises UserError: for all that is wrong with flags, model and data, at once.
    """
    def from_the_start(ahead: Outline) -> list[tuple[Stage, StageState]]:
        return [(stage, StageState(stage.name, rules=state.rules)) for stage, state in zip(ahead.plan.stages, ahead.curriculum.states, strict=True)]

    faults = faults or Faults()
    for folder in {settings.model_file(plan).parent, expanded(settings.out_dir)}:
        with faults.collected():
            check_folder(folder, "output folder")
    runtime, ahead, opened = check_all(settings, plan, from_the_start, say, faults)
    settings = ahead.settings
    model, device_model, optimizers = make_model(ahead.without_adapter(), runtime, opened.values(), say, say)
    check_round_trip(model.tokenizer, ((name, stage.data) for name, stage in opened.items()), say, refuse=ahead.found is None)
    check_teachers(opened.values(), settings, model.tokenizer)
    module, tokenizer, timer = model.module, model.tokenizer, Timer(device_model, optimizers)
    found = [_check_stage(settings, stage, StageView(settings, stage, tokenizer), timer) for stage in opened.values()]
    seconds = [stage["seconds"] for stage in found]
    evaluating = [one["seconds_in_all"] for stage in found for one in stage["evaluate"]]
    size = checkpoint_bytes(module, max(optimizers_of(stage.settings, module).state_bytes() for stage in opened.values()))
    return {"model": ahead.spec.experiment, "parameters": sum(parameter.numel() for parameter in module.parameters()),
            "tokenizer": tokenizer.name, "vocabulary": tokenizer.vocab_size, "device": str(runtime.device), "precision": runtime.precision,
            "stages": found, "seconds": None if None in seconds else sum(seconds), "peak_memory_bytes": peak_memory(runtime.device),
            "evaluation_seconds": None if None in evaluating else sum(evaluating),
            # The newest state, the older ones, one of each stage, the best, and the one being written.
            "checkpoint_bytes": size, "checkpoints_bytes": size * (1 + settings.keep + len(plan.stages) + 1 + 1)}


def _check_stage(settings: Settings, stage: OpenStage, view: StageView, timer: Timer) -> dict[str, Any]:
    """Measure a stage, and estimate the whole of it."""
    model, context_len = timer.model, stage.settings.context_len
    grouping = Grouping(settings.first_mini_batch, model.runtime.length_multiple, context_len, model.runtime.packs(model.raw))
    stage = replace(stage, settings=stage.settings.at_mean(in_steps=stage.stage.steps is not None))
    cutter = view.cutter.with_context(stage.settings.context_len)
    measured = _measure(Batches(stage, cutter, grouping, lambda: settings.token_budget(context_len), workers=0, accuracy_pieces=0))
    if measured.first is None or not measured.tokens:
        if measured.whole:
            raise nothing_to_train_on(stage.stage.name, measured.skipped)
        raise UserError(f"stage '{stage.stage.name}': no sample could be read within {_SAMPLE_SECONDS:g} s ({describe_skipped(measured.skipped)}).")
    with tried(model.raw, stage.settings):
        freeze(model.raw, stage.stage, settings)
        timer.use(stage.settings)
        answers, writing = None, stage.objective.writing
        if writing is not None:
            answers = write_some(stage, model, view.tokenizer, settings.seed, grouping, measured.first)
        timer.time(stage.objective, answers.batch if answers is not None else measured.first)
        trained: dict[str, Any] = {"adapter": in_words(stage.settings.adapter, model.raw)} if stage.settings.adapter is not None else {}
    estimate = _estimate(stage, measured, timer)
    if answers is not None and writing is not None and estimate["steps"] is not None:
        seconds = answers.seconds + writing.updates * timer.seconds_per_slot * answers.slots
        estimate |= {"seconds": estimate["steps"] * writing.updates * timer.seconds_per_update + estimate["samples"] * seconds,
                     "tokens": round(estimate["samples"] * answers.tokens), "tokens_error": 0.0}
    if stage.objective.teaching is not None and estimate["tokens"] is not None:
        per_epoch = stage.data.open_samples().rows_per_epoch
        once = 1.0 if per_epoch is None else min(1.0, per_epoch * measured.share_of_samples / estimate["samples"])
        trained["teacher_bytes"] = file_bytes(stage.objective.teaching, view.tokenizer.vocab_size, round(once * estimate["tokens"]))
    length = {unit: estimate[unit] for unit in ("samples", "tokens", "steps", "seconds")}
    return {**estimate, **trained, "cut_short": stage.settings.lr_schedule.cut_short(length),
            "evaluate": check_sets(settings, stage, view, model, grouping, length), **_compare(stage.data),
            "first_samples": [sample_as_json(view, sample, _PIECES_SHOWN if sample.rejected is None else None)
                              for _, sample in sorted(measured.first_samples.items())]}


def _measure(batches: Batches) -> _Measured:
    """Cut and batch the first samples of a stage, in the order of training."""
    measured, started = _Measured(), time.monotonic()
    of_sample: Counter[int] = Counter()
    while len(measured.tokens) < _SAMPLES and time.monotonic() - started < _SAMPLE_SECONDS:
        batch = batches.next(lambda: False)
        if batch is None:
            measured.whole = True
            break
        measured.first = measured.first or batch
        measured.batches += 1
        measured.counts.update(batch.batch.counts())
        measured.counts.update(padding=batch.n_padding, slots=batch.n_slots)
        for piece in batch.batch.pieces:
            measured.first_samples.setdefault(piece.sample.source, piece.sample)
            of_sample[id(piece.sample)] += piece.n_truth
            if piece.last:
                measured.tokens.append(of_sample.pop(id(piece.sample)))
    measured.tokens = measured.tokens or [*of_sample.values()]  # where the stage ends before its first sample does: of each, what is learned in it
    batches.close()
    measured.reached = batches.stream.state()
    return measured


def _estimate(stage: OpenStage, measured: _Measured, timer: Timer) -> dict[str, Any]:
    """Estimate samples, tokens, steps and seconds of the whole stage."""
    name, most_tokens, counts, looked_at = stage.stage.name, stage.stage.tokens, measured.counts, len(measured.tokens)
    samples: float | None = stage.data.open_samples().total
    if stage.stage.steps is not None:
        samples = stage.stage.steps * looked_at / measured.batches
    elif measured.whole:
        samples = looked_at
    elif most_tokens is not None:
        samples = most_tokens / measured.tokens_per_sample
    elif samples is not None and stage.stage.samples is None:  # an epoch's rows, of which some are skipped
        samples *= measured.share_of_samples
    share = looked_at / samples if samples else 0.0
    steps = stage.stage.steps or (None if samples is None else math.ceil(samples * measured.batches / looked_at))
    seconds = None if steps is None else steps * (timer.seconds_per_update + timer.seconds_per_slot * counts["slots"] / measured.batches)
    known = None if samples is None else round(samples * measured.tokens_per_sample)
    tokens, error = (known, measured.error(share)) if most_tokens is None else measured.tokens_of_length(most_tokens)
    return {"name": name, "sources": _rows_of_sources(stage.data), "reads": stage.data.reads,
            "samples": None if samples is None else round(samples), "samples_looked_at": looked_at,
            "skipped": dict(measured.skipped), "rows_read": measured.reached["samples"] + measured.skipped.total(),
            "losses": describe_losses(measured.reached), "tokens": tokens, "tokens_error": error, "pieces_per_sample": counts["pieces"] / looked_at,
            "forced_cut_share": counts["forced_cuts"] / counts["pieces"], "cut_prompts": counts["cut_prompts"], "cut_answers": counts["cut_answers"],
            "padding_share": counts["padding"] / counts["slots"],
            "steps": steps, "seconds": seconds}


def _rows_of_sources(data: StageData) -> list[dict[str, Any]]:
    """Count the rows of each source, those of them that are trained on, and those that are held out."""
    counts = zip(data.names, data.sources, data.rows_per_epoch(), data.held_out_rows(), strict=True)
    return [{"name": name, "rows": source.n_rows, "rows_trained_on": trained, "rows_held_out": held_out} for name, source, trained, held_out in counts]


def _compare(data: StageData) -> dict[str, Any]:
    """Count exact duplicates among the training samples, and validation samples that are also training samples."""
    def hashes(stream: SampleStream | None) -> list[int]:
        return [hash((sample.prompt, sample.truth, sample.rejected and sample.rejected.truth)) for sample in _rows(stream)] if stream is not None else []

    compared = hashes(data.open_samples())
    seen = set(compared)
    held_out = [key in seen for key in hashes(data.open_validation())]
    return {"compared": len(compared), "duplicates": len(compared) - len(seen), "validation_compared": len(held_out), "validation_overlap": sum(held_out)}


def _rows(stream: SampleStream) -> Iterator[Sample]:
    """Yield the samples of a stream, no row twice, until time is up."""
    known: set[tuple[int, int]] = set()
    most = min(_COMPARED, stream.rows_per_epoch or _COMPARED)
    ends = time.monotonic() + _COMPARED_SECONDS
    # A weighted mix repeats the rows of its small sources before it has given all rows of the large ones.
    for _ in range(2 * most):
        sample = stream.next() if len(known) < most and time.monotonic() < ends else None
        if sample is None:
            return
        if (sample.source, sample.row) not in known:
            known.add((sample.source, sample.row))
            yield sample


class Timer:
    """Times forward and backward pass for each slot of a mini-batch (a token or padding), and the update."""

    def __init__(self, model: DeviceModel, optimizers: OptimizerSet, times: int = 1):
        """
        :param times: how often each of them is done; the median counts.
        """
        self.model, self._optimizers, self._times = model, optimizers, times
        self._adapter: AdapterSettings | None = None
        self.seconds_per_slot = self.seconds_per_update = 0.0

    def use(self, stage: StageSettings) -> None:
        """Time the updates of a stage's optimizer from here on."""
        if self._optimizers.kind != stage.optimizer or stage.adapter is not None or self._adapter is not None:
            self._adapter = stage.adapter
            self._optimizers = optimizers_of(stage, self.model.raw)

    def time(self, objective: Objective, batch: TrainBatch) -> None:
        """Time the mini-batches of a batch: the first warms up, then from the shortest on, as many as there is time for."""
        steps = [partial(train_step, self.model, self._optimizers, objective, replace(batch, mini_batches=[mini_batch]), grad_clip=0.0,
                         interrupted=lambda: False) for mini_batch in batch.mini_batches]  # the model is thrown away afterwards
        steps[0]()
        self.seconds_per_update = self._seconds(self._optimizers.step)
        slots, seconds = 0, 0.0
        for step, mini_batch in zip(steps[::-1], batch.mini_batches[::-1], strict=True):
            seconds += max(self._seconds(step) - self.seconds_per_update, 0.0)
            slots += mini_batch.n_slots
            if seconds > _TIMED_SECONDS:
                break
        self.seconds_per_slot = seconds / slots

    def _seconds(self, work: Callable[[], Any]) -> float:
        """Time some work, on the device too."""
        found = []
        for _ in range(self._times):
            wait_for(self.model.runtime.device)
            started = time.perf_counter()
            work()
            wait_for(self.model.runtime.device)
            found.append(time.perf_counter() - started)
        return statistics.median(found)
