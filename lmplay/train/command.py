"""What `lmp_trainer` does.  It sees flags and plans, never tensors: what is heavy is imported once they are known to be right."""
from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.accord import Accord
from ..engine.interrupt import STOPPED_BEFORE_WORK, Interrupt, Stopped
from ..errors import ElsewhereError, Faults, LmplayError, Unavailable, UserError, long_names_refused, tell
from ..hub import waiting
from ..launch import launch
from ..paths import expanded
from ..streams import put
from .flags import parse, write_settings

if TYPE_CHECKING:
    from ..plan.schema import Plan
    from ..plan.settings import Settings
    from ..report.report import Report


def run(argv: list[str] | None) -> int:
    """Train, or do what else the flags ask for.

    :param argv: arguments; None = those of the process, which then ends with this call.
    :return: the exit code: 0 plan complete; 130/143 stopped by Ctrl+C or the terminal / SIGTERM; 75 stopped by a limit or SIGUSR2, or something outside
        has gone away: run it again; 2 bad input; 1 training failed.
    """
    arguments, streams = sys.argv[1:] if argv is None else argv, (sys.stdout, sys.stderr)
    try:
        with Interrupt(until_process_ends=argv is None) as interrupt, long_names_refused(), _joined(interrupt) as accord:
            return accord.alike(lambda: _parse(arguments, interrupt, accord))
    except Stopped as stop:
        if not stop.at_work:  # else the report has told it
            tell(f"\nlmp_trainer: {STOPPED_BEFORE_WORK}", sys.stderr)
        return stop.exit_code
    except UserError as error:
        for fault in error.faults:
            tell(f"lmp_trainer: {fault}", sys.stderr)
        return error.exit_code
    except ElsewhereError as error:
        tell(f"lmp_trainer: {error}", streams[1] if error.is_told_here else sys.stderr)
        return error.exit_code
    except LmplayError as error:
        traceback.print_exc()
        tell(f"lmp_trainer: {error}", sys.stderr)
        return error.exit_code


@contextmanager
def _joined(interrupt: Interrupt) -> Iterator[Accord]:
    """Meet the other processes that a launcher has started, if it has."""
    place = launch()
    if place.size == 1:
        yield Accord()
        return
    from ..engine.together import join

    with join(place, interrupt) as accord:
        yield accord


def _parse(arguments: list[str], interrupt: Interrupt, accord: Accord) -> int:
    """Read the command line, and do what it asks for."""
    settings, dump = parse(arguments, faults := Faults())
    if interrupt.shared:
        faults.lines += [f"{flag}: is for one process; {advice}." for flag, advice in settings.alone(dump).items()]
    if dump is not None:
        faults.refuse()
        write_settings(settings, Path(dump))
        return 0
    return _choose(settings, interrupt, arguments, faults, accord)


def _choose(settings: Settings, interrupt: Interrupt, arguments: list[str], faults: Faults, accord: Accord) -> int:
    """Do what needs no torch; for the rest, import the engine."""
    if {settings.exp, settings.training_plan} & {"list"} or settings.inspect is not None:
        faults.refuse()
    if settings.exp == "list":
        from ..exp import listed

        _print_table(listed())
        return 0
    if settings.inspect is not None:
        from ..preview.inspect import print_state

        return print_state(settings.found(settings.inspect), settings.json)
    from ..plan.load import list_plans, load_plan, nothing_to_read, plan_from_dataset

    if settings.training_plan == "list":
        _print_table(list_plans())
        return 0
    plan = None
    with faults.collected():
        plan = plan_from_dataset(settings.dataset) if settings.dataset is not None else \
            load_plan(settings.training_plan, faults if settings.check_plan else None)
    if plan is None and settings.dataset is not None:
        plan = nothing_to_read()
    if plan is not None and settings.recipe is not None and not faults.lines:
        from ..plan.follow import follow_recipe

        settings, plan = follow_recipe(settings, plan)
    if plan is not None:
        settings.check_trust(plan)
        _check_names(settings, plan, faults)
    if plan is None or not settings.check_plan:  # which looks further, whatever has been found
        faults.refuse()
    assert plan is not None
    if settings.time_limit is not None:
        interrupt.limit(settings.time_limit)
    return _engine(settings, plan, interrupt, [*_program(), *arguments], faults, accord)


def _engine(settings: Settings, plan: Plan, interrupt: Interrupt, command: list[str], faults: Faults, accord: Accord) -> int:
    """Describe, save data sets, or train."""
    from ..device.machine import cores_are_taken

    # Threads that wait for each other spin for a moment: with a core for each that is faster by a tenth to a quarter, but beside other programs
    # half as fast as with threads that sleep. The variable must be set before torch is loaded.
    if "OMP_WAIT_POLICY" not in os.environ and cores_are_taken():
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    from ..report.report import Report

    report = Report(command, settings.quiet, settings.verbose, settings.log_json, logs=launch().rank == 0)
    waiting.say, waiting.stopped = report.say, interrupt.requested
    try:
        with long_names_refused():
            return accord.alike(lambda: _work(settings, plan, interrupt, report, faults, accord))
    except Unavailable as error:
        report.unavailable(str(error), interrupt.at_work, settings)
        return interrupt.exit_code or error.exit_code
    except Stopped as stop:
        if stop.at_work:
            report.stopped_at_once(settings)
        raise
    except UserError as error:
        report.failed("\n".join(f"lmp_trainer: {fault}" for fault in error.faults))
        raise
    except Exception:
        report.failed(traceback.format_exc())
        raise


def _work(settings: Settings, plan: Plan, interrupt: Interrupt, report: Report, faults: Faults, accord: Accord) -> int:
    """Do what the flags ask for."""
    say = partial(tell, stream=sys.stderr)  # standard output is for what a preview prints
    if settings.save_datasets:
        from ..data.save import save_sources

        save_sources(plan.sources(), settings.datasets_folder, report.say)
        return 0
    if (settings.params is not None or settings.train_for is not None) and not faults.lines:
        from ..preview.sizes import choose_sizes

        plan = choose_sizes(settings, plan, say)
    if settings.describe:
        from ..preview.describe import describe

        put(describe(settings, plan))
        return 0
    if settings.plot_schedule is not None:
        from ..preview.plot_schedule import plot_schedule

        put(plot_schedule(settings, plan, expanded(settings.plot_schedule), say))
        return 0
    if settings.find_lr is not None:
        from ..preview.find_lr import find_lr

        put(find_lr(settings, plan, expanded(settings.find_lr), say))
        return 0
    if settings.check_plan:
        from ..preview.check_plan import check_plan
        from ..preview.check_plan_text import to_text

        found = check_plan(settings, plan, say, faults)
        put(json.dumps(found, indent=2) if settings.json else to_text(found))
        return 0
    if settings.show_samples or settings.show_batch is not None:
        from ..preview.show import show

        put(show(settings, plan, say))
        return 0
    from ..track.callback import Naming
    from ..track.opening import listed, open_callbacks

    callbacks = None
    if launch().rank == 0:
        callbacks = open_callbacks(settings.track, settings.callback, report.say,
                                   Naming(settings.track_project, settings.track_name, tuple(listed(settings.track_tags))))
    from ..engine.loop import train
    from ..engine.opening import open_run

    run = open_run(settings, plan, report, interrupt, callbacks, accord)
    if run is None:
        return 0
    with run.closing:
        return train(run)


def _check_names(settings: Settings, plan: Plan, faults: Faults) -> None:
    """Find unknown experiments and tokenizers, which needs their names only."""
    from ..exp import get_experiment
    from ..tokenizer import trained_size

    with faults.collected():
        get_experiment(settings.experiment(plan))
    with faults.collected():
        trained_size(settings.tokenizer or plan.tokenizer or "")


def _program() -> list[str]:
    """Give the beginning of the command that started this process, as far as it is known."""
    place, here = launch(), os.environ.get("LOCAL_WORLD_SIZE", "")
    if place.size == 1:
        return ["lmp_trainer"]
    return ["torchrun", *([f"--nproc_per_node={here}"] if here == str(place.size) else ["..."]), "-m", "lmplay.train"]


def _print_table(rows: list[tuple[str, str]]) -> None:
    """Print names with a line each."""
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        put(f"{name:<{width}}  {text}")
