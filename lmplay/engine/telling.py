"""What the report is told of a run, made of the run.  Engine floor."""
from __future__ import annotations

import time
from collections import Counter
from functools import partial

from ..cadence import AUTO, AUTO_SAVES, SAVE_SHARE, VALIDATION_SHARE, Cadence, intervals
from ..checkpoints.best import best_file
from ..data.stream import describe_losses
from ..device.compiled import Compiled
from ..device.memory import memory_there, peak_memory
from ..modules.sharded import is_sharded, place_of
from ..plan.follow import recipe_in_words
from ..plan.schema import Stage
from ..plan.settings import StageSettings
from ..report.hints import hints
from ..report.records import EarlyEnd, RunEnd, RunFiles, RunStart, StageEnd, StageOutline, StageStart, Stop
from ..stats.totals import HELD_OUT
from ..words import counted
from .run import Run
from .stage import StageRunner


def files(run: Run) -> RunFiles:
    """Say where the run's files are."""
    return RunFiles(run.path, run.settings.out_dir)


def run_start(run: Run) -> RunStart:
    """Say what will be done."""
    settings, model, runtime = run.settings, run.model, run.runtime
    parameters = run.parameters()
    trained = sum(parameter.nbytes for parameter in parameters if parameter.requires_grad)
    needed = sum(parameter.nbytes for parameter in parameters)
    if not run.stages or any(stage.settings.adapter is None for stage in run.stages.values()):  # gradients and state of adapters are small
        needed += trained + run.optimizers.state_bytes(trained_only=True)
    if is_sharded(parameters[0]):
        needed //= place_of(parameters[0])[1]
    count, resumed = sum(parameter.numel() for parameter in parameters), bool(run.record.resumes)
    longest = max((stage.settings.context_len for stage in run.stages.values()), default=0)
    hinted = [] if resumed else hints(settings, runtime.device, count, model.args, longest, partial(_steps, run))
    return RunStart(
        files(run), model.experiment, count, model.args, model.tokenizer.name, model.tokenizer.vocab_size, str(runtime.device), runtime.precision,
        settings.compile_model, list(dict.fromkeys(_range(stage.settings) for stage in run.stages.values())), settings.batch_size, settings.mini_batch_size,
        settings.mini_batch_tokens, needed, memory_there(runtime.device), _outlines(run), run.record.progress.samples, resumed, run.changes, hinted,
        run.interrupt.deadline - time.monotonic() if settings.time_limit is not None else None,
        {name: getattr(settings, name) for name in sorted(settings.explicit)},
        recipe_in_words(settings, run.curriculum.plan, model.experiment, model.args))


def _range(settings: StageSettings) -> int | str:
    """Say what the batch size is, or from where to where it goes."""
    chain = settings.batch_size_schedule
    return settings.batch_size if chain is None else f"{min(chain.values):.0f} to {max(chain.values):.0f}"


def stage_start(run: Run, stage: StageRunner) -> StageStart:
    """Say what a stage reads, and how it trains."""
    settings, entry, data = stage.settings, stage.entry, stage.data
    rows, held_out = (dict(zip(data.names, counts, strict=True)) for counts in (data.rows_per_epoch(), data.held_out_rows()))
    return StageStart(stage.name, run.record.progress, stage.stats.totals["total_train_samples"], stage.total, rows, held_out, settings.in_words("batch_size"),
                      settings.in_words("context_len"), settings.lr, settings.lr_schedule.in_words(), stage.n_frozen, entry["floor_nats_per_token"],
                      entry["floor_bits_per_byte"], stage.held_out.is_there, stage.held_out.n_samples, _to_come(run), *_cadences(run, stage), data.reads,
                      stage.named_sets.in_words(), stage.adapter)


def _cadences(run: Run, stage: StageRunner) -> tuple[str, str, list[str]]:
    """Say when the stage will be saved and validated, and warn of what never will be."""
    settings, warnings = run.settings, []
    saves, validations = Cadence(intervals(settings.save_interval, AUTO_SAVES)), stage.validations
    start, end = _counts(stage)
    times = validations.times(start, end)
    if settings.save_interval and saves.times(start, end) == 0:
        warnings.append(f"stage '{stage.name}' is saved at its end only: --save-interval {settings.save_interval} is longer than it.")
    never = ["no rows are held out"] if not stage.held_out.is_there else ["--validation-interval 0"] if not settings.validation_interval else \
        [f"--validation-interval {settings.validation_interval} is longer than it" if settings.validation_interval != AUTO else
         f"the work of one would be more than {VALIDATION_SHARE:.0%} of its own"] if times == 0 else []
    if never and stage.settings.lr_schedule.has_plateau:
        warnings.append(f"the plateau of stage '{stage.name}' never drops, as the stage is not validated before its end: {never[0]}.")
    if never and stage.settings.patience is not None:
        warnings.append(f"early_stopping cannot end stage '{stage.name}', which is not validated before its end: {never[0]}.")
    elif stage.settings.patience is not None and times is not None and times <= stage.settings.patience:
        warnings.append(f"early_stopping cannot end stage '{stage.name}': it is validated {_about(times)} before its end, and patience is "
                        f"{stage.settings.patience}.")
    elif never and stage.held_out.is_there and settings.validation_interval:
        warnings.append(f"stage '{stage.name}' is validated at its end only: {never[0]}.")
    most = f"; at most {SAVE_SHARE:.0%} of the time" if settings.save_interval == AUTO else ""
    bound = f"; at most {VALIDATION_SHARE:.0%} of the work" if settings.validation_interval == AUTO else ""
    often = f" ({_about(times)}){bound}" if times else bound
    return (f"{saves.in_words()}{most}, and at the end of the stage" if settings.save_interval else "at the end of the stage only",
            "at the end of the stage only" if never else f"{validations.in_words()}{often}, and at the end of the stage", warnings)


def _about(times: int) -> str:
    """Say how often, about."""
    return "about once" if times == 1 else f"about {times} times"


def _counts(stage: StageRunner) -> tuple[dict[str, float], dict[str, float | None]]:
    """Give the run's counts at the start of a stage, and at its end as far as they can be told."""
    totals, expected = stage.stats.totals, stage.held_out.expected
    start = {unit: stage.counts()[unit] - totals[f"total_train_{unit}"] for unit in ("steps", "samples", "tokens")} | {"seconds": 0.0, "tenths": 0.0}
    known = {"samples": stage.total, "tokens": stage.stage.tokens, "steps": stage.stage.steps}
    lengths = {**{unit: expected.get(unit, value) for unit, value in known.items()}, "seconds": None,
               "tenths": 10.0 if stage.data.length_is_known else 0.0}
    return start, {unit: None if more is None else start[unit] + more for unit, more in lengths.items()}


def stage_end(run: Run, stage: StageRunner) -> StageEnd:
    """Say what a stage has done."""
    state, early = stage.state, None
    if stage.ended_early:
        assert state.lowest_loss is not None
        assert state.lowest_samples is not None
        early = EarlyEnd(state.stale, state.lowest_loss, stage.objective.loss_unit, state.lowest_samples, best_file(run.path, stage.name))
    return StageEnd(stage.name, stage.stats.totals, stage.stats.describe_sources(), describe_losses(stage.reached), stage.stats.final, stage.stats.best, early,
                    stage.stats.describe_sets())


def run_end(run: Run) -> RunEnd:
    """Say what a run has reached."""
    run.record.note_memory(peak_memory(run.runtime.device))
    wrapped = run.device_model.wrapped
    return RunEnd(files(run), run.record.progress, run.record.stats.best, run.record.stats.final, run.record.peak_memory,
                  (wrapped.graphs, wrapped.made_again) if isinstance(wrapped, Compiled) else None,
                  {name: figures for name, figures in run.record.stats.describe_sets().items() if name != HELD_OUT})


def stop(run: Run) -> Stop:
    """Say where a run stops, and what it has done since it was opened."""
    number, states = run.curriculum.number, run.curriculum.states
    return Stop(run.interrupt.reason, number + 1, len(states), states[number].name, run.done_here("total_train_samples"), run.done_here("total_train_steps"))


def _outlines(run: Run) -> list[StageOutline]:
    """Say of each stage of the plan how long it is, and how far it has been followed."""
    return [StageOutline(stage.name, "done" if state.done else "begun" if state.fingerprints is not None else "to do", _length(stage),
                         _total_samples(run, stage), [spec.path for spec in stage.dataset])
            for stage, state in zip(run.curriculum.plan.stages, run.curriculum.states, strict=True)]


def _length(stage: Stage) -> str:
    """Say how long a stage is."""
    if stage.samples is not None:
        return counted(stage.samples, "sample")
    if stage.steps is not None:
        return counted(stage.steps, "step")
    return counted(stage.tokens, "token") if stage.tokens is not None else f"{stage.epochs:g} epoch{'s' * (stage.epochs != 1)}"


def _total_samples(run: Run, stage: Stage) -> int | None:
    """Count the samples of a stage; None where that is unknown, or the stage is done."""
    return run.stages[stage.name].data.open_samples().total if stage.name in run.stages else None


def _to_come(run: Run) -> dict[str, int] | None:
    """Add up the lengths of the stages after the one at work; None where one is unknown."""
    lengths: Counter[str] = Counter()
    for stage, _ in run.curriculum.remaining()[1:]:
        unit = next((unit for unit in ("steps", "tokens") if getattr(stage, unit) is not None), "samples")
        total = _total_samples(run, stage) if unit == "samples" else getattr(stage, unit)
        if total is None:
            return None
        lengths[unit] += total
    return dict(lengths)


def _steps(run: Run) -> float:
    """Count the steps of the stages at least, as far as their lengths are known: a sample may have several pieces."""
    steps = 0.0
    for open_stage in run.stages.values():
        stage = open_stage.stage
        settings = open_stage.settings.at_mean(stage.steps is not None)
        in_tokens = stage.tokens / (settings.batch_size * settings.context_len) if stage.tokens is not None else 0
        steps += stage.steps or in_tokens or (_total_samples(run, stage) or 0) / settings.batch_size
    return steps
