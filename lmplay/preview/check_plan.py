"""`--check-plan`: what a plan would read and what it would cost, measured on a sample of each stage, without training.  Engine floor."""
from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from ..checkpoints.format import checkpoint_bytes, tensor_bytes
from ..checkpoints.rotation import find
from ..data.batcher import Batcher
from ..data.collate import MiniBatch, collate
from ..data.continuation import Cutter, Piece
from ..data.samples import Sample
from ..data.stage import StageData
from ..data.stream import SampleStream
from ..device.memory import bytes_in_words, peak_memory, wait_for
from ..device.random_state import seed_everything
from ..device.runtime import Runtime
from ..engine.model_spec import make_tokenizer, plan_model
from ..engine.opening import open_stages
from ..engine.step import train_step
from ..errors import TrainingError
from ..optim.optimizers import build_optimizer
from ..plan.curriculum import Curriculum
from ..plan.schema import Plan, Stage
from ..plan.settings import Settings, StageSettings, resolve_stage
from ..report.report import Report
from .show import Look, sample_as_json, sample_in_words

# Samples of a stage that are cut and batched, and how long (seconds) that may take: the error of the estimates is printed beside them.
_SAMPLES, _SAMPLE_SECONDS = 1000, 15.0
# Samples that are compared for duplicates, which needs no tokens and so is much faster.
_COMPARED, _COMPARED_SECONDS = 50_000, 10.0
# Mini-batches are timed for so long (seconds), after a first one that warms up.
_TIMED_SECONDS = 4.0
# Of the first sample of each source, so many pieces are shown.
_PIECES_SHOWN = 1
# Of a normal distribution, 95 % lie within so many standard deviations.
_STANDARD_DEVIATIONS = 1.96


@dataclass
class _Looked:
    """What the sample of a stage showed."""

    tokens: list[int] = field(default_factory=list)  # to be learned, by sample
    counts: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    whole: bool = False  # the sample is all of the stage
    first: list[MiniBatch] = field(default_factory=list)
    first_samples: dict[int, Sample] = field(default_factory=dict)  # by the number of the source

    @property
    def tokens_per_sample(self) -> float:
        """The mean."""
        return statistics.fmean(self.tokens)

    def error(self, share: float) -> float:
        """Give the half width of the 95 % interval around the mean, as a share of it.

        :param share: the part of all samples that was looked at; the error of a sample of everything is 0.
        """
        if len(self.tokens) < 2 or self.whole:
            return 0.0
        spread = statistics.stdev(self.tokens) / math.sqrt(len(self.tokens)) * math.sqrt(max(0.0, 1 - share))
        return _STANDARD_DEVIATIONS * spread / self.tokens_per_sample


def audit(settings: Settings, plan: Plan, report: Report) -> dict[str, Any]:
    """Look at every stage of a plan, from its start, and time a few steps.

    :param settings: the run's; a model file that exists gives its model and tokenizer, and is not written.
    :param plan: the plan.
    :param report: is told what is noticed.
    :return: plain values: `stages`, one dictionary each, and what they come to.
    :raises UserError: for all that is wrong with the plan's data, at once.
    """
    path = settings.model_file(plan)
    found = None if settings.reset_history else find(path, [stage.name for stage in plan.stages])
    model_plan = plan_model(settings, plan, path, found.content if found is not None else None)
    stage_settings = {stage.name: resolve_stage(settings, stage, model_plan.args["context_len"]) for stage in plan.stages}
    stage_data = open_stages(settings, Curriculum(plan), stage_settings, report)
    tokenizer = model_plan.tokenizer or make_tokenizer(settings, plan, stage_data)
    seed_everything(settings.seed)
    runtime = Runtime(settings)
    module = model_plan.build(tokenizer.vocab_size).to(runtime.device)
    optimizer = build_optimizer(settings.optimizer, module, settings.lr, settings.weight_decay)
    timer = _Timer(module, runtime.wrap(module, model_plan.args["context_len"], report.compiled), optimizer, runtime)
    stages = []
    for stage in plan.stages:
        own = stage_settings[stage.name]
        cutter = Cutter(tokenizer, own.context_len, settings.continuation == "estimate")
        group = partial(collate, mini_batch_size=settings.first_mini_batch, multiple=runtime.length_multiple, most=own.context_len,
                        room=settings.room(own.context_len), joined=runtime.packs(module))
        looked = _look(stage_data[stage.name], stage, own, cutter, group)
        look = Look(stage, own.batch_size, stage_data[stage.name], tokenizer, cutter)
        stages.append({**_estimate(stage, stage_data[stage.name], looked, timer), **_compare(stage_data[stage.name]),
                       "first_samples": [sample_as_json(look, sample, _PIECES_SHOWN) for _, sample in sorted(looked.first_samples.items())]})
    state = checkpoint_bytes(module, tensor_bytes(optimizer.state_dict()))
    seconds = [stage["seconds"] for stage in stages]
    return {"model": model_plan.experiment, "parameters": sum(parameter.numel() for parameter in module.parameters()),
            "tokenizer": tokenizer.name, "vocabulary": tokenizer.vocab_size, "device": str(runtime.device), "precision": runtime.precision,
            "stages": stages, "seconds": None if None in seconds else sum(seconds), "peak_memory_bytes": peak_memory(runtime.device),
            # The newest state, the older ones, one of each stage, the best, and the one being written.
            "checkpoint_bytes": state, "checkpoints_bytes": state * (1 + settings.keep + len(plan.stages) + 1 + 1)}


def _look(data: StageData, stage: Stage, own: StageSettings, cutter: Cutter, group: Callable[[list[Piece]], list[MiniBatch]]) -> _Looked:
    """Cut and batch the first samples of a stage, in the order of training."""
    looked, started = _Looked(), time.monotonic()
    batcher = Batcher(data.samples(), cutter, own.batch_size, stage.tokens)
    of_sample: Counter[int] = Counter()
    while len(looked.tokens) < _SAMPLES and time.monotonic() - started < _SAMPLE_SECONDS:
        batch = batcher.next()
        if batch is None:
            looked.whole = True
            break
        mini_batches = group(batch.pieces)
        looked.first = looked.first or mini_batches
        looked.batches += 1
        looked.counts.update(batch.counts())
        looked.counts.update(padding=sum(part.n_padding for part in mini_batches), places=sum(part.tokens.numel() for part in mini_batches))
        for piece in batch.pieces:
            looked.first_samples.setdefault(piece.sample.source, piece.sample)
            of_sample[id(piece.sample)] += piece.n_truth
            if piece.last:
                looked.tokens.append(of_sample.pop(id(piece.sample)))
    return looked


def _estimate(stage: Stage, data: StageData, looked: _Looked, timer: _Timer) -> dict[str, Any]:
    """Work out what the whole stage comes to."""
    rows = [{"name": source.name, "rows": source.n_rows} for source in data.sources]
    if not looked.tokens:
        raise TrainingError(f"stage '{stage.name}': no sample could be read within {_SAMPLE_SECONDS:g} s.")
    samples: float | None = data.samples().total
    if looked.whole:
        samples = len(looked.tokens)
    elif stage.tokens is not None:
        samples = stage.tokens / looked.tokens_per_sample
    share = len(looked.tokens) / samples if samples else 0.0
    steps = None if samples is None else math.ceil(samples * looked.batches / len(looked.tokens))
    timer.time(looked.first)
    seconds = None if steps is None else steps * (timer.seconds_per_update + timer.seconds_per_place * looked.counts["places"] / looked.batches)
    return {"name": stage.name, "sources": rows, "samples": None if samples is None else round(samples), "samples_looked_at": len(looked.tokens),
            "tokens": None if samples is None else stage.tokens or round(samples * looked.tokens_per_sample),
            "tokens_error": 0.0 if stage.tokens else looked.error(share), "pieces_per_sample": looked.counts["pieces"] / len(looked.tokens),
            "forced_cut_share": looked.counts["forced_cuts"] / looked.counts["pieces"],
            "padding_share": looked.counts["padding"] / looked.counts["places"], "steps": steps, "seconds": seconds}


def _compare(data: StageData) -> dict[str, Any]:
    """Count samples that are there twice, and validation samples that are trained on."""
    seen: set[int] = set()
    rows, duplicates = 0, 0
    for sample in _rows(data.samples()):
        rows += 1
        key = hash((sample.prompt, sample.truth))
        duplicates += key in seen
        seen.add(key)
    validation = data.validation_samples()
    held_out = [hash((sample.prompt, sample.truth)) in seen for sample in _rows(validation)] if validation is not None else []
    return {"compared": rows, "duplicates": duplicates, "validation_compared": len(held_out), "validation_overlap": sum(held_out)}


def _rows(stream: SampleStream) -> Iterator[Sample]:
    """Give the samples of a stream, each row once, as far as there is time."""
    known: set[tuple[int, int]] = set()
    most = min(_COMPARED, stream.rows_per_epoch or _COMPARED)
    ends = time.monotonic() + _COMPARED_SECONDS
    # A weighted mix gives rows of its small sources again and again before all of the others have come.
    for _ in range(2 * most):
        sample = stream.next() if len(known) < most and time.monotonic() < ends else None
        if sample is None:
            return
        if (sample.source, sample.row) not in known:
            known.add((sample.source, sample.row))
            yield sample


class _Timer:
    """Times forward and backward by place (a token or padding), and the update."""

    def __init__(self, raw: nn.Module, wrapped: nn.Module, optimizer: torch.optim.Optimizer, runtime: Runtime):
        self._raw, self._wrapped, self._optimizer, self._runtime = raw, wrapped, optimizer, runtime
        self.seconds_per_place = self.seconds_per_update = 0.0

    def time(self, mini_batches: Sequence[MiniBatch]) -> None:
        """Measure with the mini-batches of one batch: the first warms up, then from the shortest on, as many as there is time for."""
        self._step(mini_batches[:1])
        self.seconds_per_update = self._seconds(self._optimizer.step)
        places, seconds = 0, 0.0
        for mini_batch in reversed(mini_batches):
            took = self._seconds(partial(self._step, [mini_batch])) - self.seconds_per_update
            places, seconds = places + mini_batch.tokens.numel(), seconds + max(took, 0.0)
            if seconds > _TIMED_SECONDS:
                break
        self.seconds_per_place = seconds / places

    def _step(self, mini_batches: Sequence[MiniBatch]) -> None:
        """Do a step on a model that nobody keeps."""
        train_step(self._raw, self._wrapped, self._optimizer, self._runtime, mini_batches, grad_clip=0.0, watch=range(0), interrupted=lambda: False)

    def _seconds(self, work: Callable[[], Any]) -> float:
        """Time something, the device's share of it included."""
        wait_for(self._runtime.device)
        started = time.perf_counter()
        work()
        wait_for(self._runtime.device)
        return time.perf_counter() - started


def show_audit(report: dict[str, Any]) -> str:
    """Write what :func:`audit` found for people.

    :param report: its result.
    :return: several lines.
    """
    lines = [f"model       {report['model']}: {report['parameters']:,} parameters", f"tokenizer   {report['tokenizer']}: {report['vocabulary']:,} tokens",
             f"device      {report['device']}, {report['precision']}"]
    for stage in report["stages"]:
        sources = (f"{source['name']} ({'rows not counted' if source['rows'] is None else format(source['rows'], ',') + ' rows'})"
                   for source in stage["sources"])
        lines += ["", f"== stage {stage['name']}: {', '.join(sources)}", *(f"   {name:<12}{text}" for name, text in _stage_lines(stage))]
    for stage in report["stages"]:
        for sample in stage["first_samples"]:
            lines += ["", *sample_in_words(f"first sample of {sample['source']}", sample)][:-1]
    memory = "unknown" if report["peak_memory_bytes"] is None else bytes_in_words(report["peak_memory_bytes"])
    lines += ["", f"in all      {_duration(report['seconds'])} of training on {report['device']} as it was just now, without validations",
              f"memory      {memory} at its peak here",
              f"disk        {bytes_in_words(report['checkpoint_bytes'])} a checkpoint, at most {bytes_in_words(report['checkpoints_bytes'])} for all "
              "that are kept"]
    return "\n".join(lines)


def _stage_lines(stage: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Give name and text of each line about a stage."""
    whole = stage["samples"] == stage["samples_looked_at"]
    looked = "all were looked at" if whole else f"{stage['samples_looked_at']:,} were looked at"
    yield "samples", f"{_count(stage['samples'])} ({looked}), {stage['pieces_per_sample']:.2f} pieces each, {stage['forced_cut_share']:.1%} of the cuts forced"
    yield "tokens", _count(stage["tokens"]) + (f" ± {stage['tokens_error']:.1%}" if stage["tokens_error"] else "")
    yield "steps", f"{_count(stage['steps'])}, padding {stage['padding_share']:.1%}"
    yield "time", _duration(stage["seconds"])
    yield "twice", f"{stage['duplicates']:,} of {stage['compared']:,} training samples looked at are exact duplicates of another"
    if stage["validation_compared"]:
        yield "overlap", f"{stage['validation_overlap']:,} of {stage['validation_compared']:,} validation samples are among these training samples"
    else:
        yield "validation", "none: no rows are held out"


def _count(value: int | None) -> str:
    """Write a count."""
    return "unknown" if value is None else f"{value:,}"


def _duration(seconds: float | None) -> str:
    """Write a time."""
    if seconds is None:
        return "unknown time"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s" if minutes else f"{rest} s"
