"""What `lmp_plotstats` does: it draws the statistics of an output folder.  Imports what is heavy after the flags are read."""
from __future__ import annotations

import argparse
import json
import math
import os
import warnings
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..command_line import Parser, ended
from ..errors import UserError, long_names_refused, nearest, printable
from ..web.address import add_flags, listen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .compare import Comparison, Idea
    from .runs import Curve

DESCRIPTION = """Draw the statistics that lmp_trainer writes: a picture beside each *_stats.json, all_train.png and all_validate.png with all models
together, and all_train_diff.png and all_validate_diff.png with each model minus the one that got farthest, or minus --baseline. Then list the models
and the settings that differ, and say which is better and whether the difference is more than noise. Models that differ only in the seed are one idea. A
damaged file is named, the others are drawn, and the exit code is 2."""
X_CHOICES = ("samples", "tokens", "seconds")
FORMATS = ("png", "svg", "pdf")
WATCH_SECONDS = 10.0
SERVER_PORT, SERVER_SECONDS = 8001, 5.0


def run(argv: list[str] | None) -> int:
    """Draw what the flags ask for.

    :param argv: the command line without the program's name; None = that of the process.
    :return: 0, or 2 for bad input, after drawing what could be drawn.
    """
    def work() -> int:
        arguments = _build_parser().read(argv)
        _check(arguments)
        with warnings.catch_warnings(), long_names_refused():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # a letter without a font is drawn as a box, and once is clear enough
            if arguments.serve is not None:
                _serve(arguments)
                return 0
            if arguments.watch:
                from .watch import watch

                watch(arguments.out_dir, arguments.watch, lambda changed: _draw(arguments, changed))
            if faults := _draw(arguments):
                raise UserError(*faults)
        return 0

    return ended("lmp_plotstats", "", work)


def _build_parser() -> Parser:
    """Describe the flags."""
    parser = Parser(prog="lmp_plotstats", usage="%(prog)s [flags]", description=DESCRIPTION)
    folder = os.environ.get("LMP_DATASETS") or "out_gpt"
    parser.add_argument("--out-dir", type=Path, default=Path(folder), metavar="FOLDER", help="where the statistics are (default: $LMP_DATASETS, else out_gpt)")
    parser.add_argument("--models", nargs="+", action="extend", type=_model_name, metavar="NAME", help="draw and compare only these models (default: all)")
    parser.add_argument("--x", nargs="+", choices=X_CHOICES, default=X_CHOICES, help="what the curves are drawn over, one column each (default: all three)")
    smoothing = """smooth training curves by a centred mean over this many points, or this share of a curve's points if below 1; 0 = off; no mean reaches
        across the end of a stage, and values that were not measured are left out (default: 2 %% of the points, at least 5; off below 20 points)"""
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with everything in one file that any browser opens, instead of pictures")
    parser.add_argument("--smooth", type=_smoothing, metavar="POINTS", help=smoothing)
    parser.add_argument("--baseline", type=_model_name, metavar="NAME",
                        help="subtract this model in the pictures of differences (default: the one that got farthest)")
    parser.add_argument("--theme", choices=("light", "dark"), help="background of pictures and report (default: light; the report follows the browser)")
    parser.add_argument("--format", type=_formats, default=("png",), metavar="KINDS", help="kinds of pictures: png, svg, pdf, or several with commas "
                        "(default: png)")
    parser.add_argument("--watch", nargs="?", type=_seconds, const=WATCH_SECONDS, metavar="SECONDS", help="check every N seconds whether the statistics have "
                        f"changed, and redraw the plots that show them, until Ctrl+C (without a number: {WATCH_SECONDS:g})")
    add_flags(parser, SERVER_PORT, "serve the report to browsers and keep it up to date; with --watch N it checks every N seconds")
    parser.add_argument("--json", action="store_true", help="print the table as JSON, and draw nothing")
    parser.further = {"x", "smooth", "theme", "format", "json", "token"}
    return parser


def _check(arguments: argparse.Namespace) -> None:
    """Refuse flags that do not go together."""
    alone = [flag for flag, given in (("--json", arguments.json), ("--html", arguments.html), ("--serve", arguments.serve)) if given]
    faults = [f"{' and '.join(alone)}: choose one of them."] if len(alone) > 1 else []
    if arguments.json and arguments.watch:
        faults.append("--json and --watch: choose one of them.")
    faults += [f"--serve and {flag}: leave {flag} out; the page has its own choice." for flag, given in
               (("--x", arguments.x != X_CHOICES), ("--format", arguments.format != ("png",))) if given and arguments.serve]
    if arguments.token is not None and arguments.serve is None:
        faults.append("--token: only with --serve.")
    if faults:
        raise UserError(*faults)


def _serve(arguments: argparse.Namespace) -> None:
    """Show the report in browsers until Ctrl+C."""
    try:
        from .live import Live, serve
    except ImportError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise UserError(f"--serve: the package {error.name} is not installed; pip install 'lmplay[serve]'.") from None
    from .report import report_content
    from .runs import read_folder
    from .table import describe_evaluations

    def collect(names: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        allowed = [name for name in names if name in (arguments.models or names)]
        chosen = argparse.Namespace(**{**vars(arguments), "models": allowed or arguments.models})
        curves, faults = read_folder(arguments.out_dir)
        curves = _selected(curves, chosen, faults)
        baseline = arguments.baseline if any(curve.model == arguments.baseline for curve in curves) else None
        evaluations, unreadable = describe_evaluations(arguments.out_dir, list(dict.fromkeys(curve.model for curve in curves)))
        return (report_content(curves, arguments.out_dir, arguments.smooth, arguments.theme, baseline, *_compare(curves, chosen), evaluations),
                [*faults, *unreadable])

    live = Live(arguments.out_dir, collect, arguments.theme, arguments.watch or SERVER_SECONDS)
    listening = listen(arguments.serve, SERVER_PORT, arguments.token)
    with listening.socket:
        serve(listening, live)


def _model_name(text: str) -> str:
    """Read the name of a model, or of its file."""
    return Path(text).name.removesuffix(".lmp") or text


def _smoothing(text: str) -> float:
    """Read the value of --smooth."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is neither 0 (off), a share of the points below 1, nor a number of points")
    return value


def _formats(text: str) -> tuple[str, ...]:
    """Read the value of --format."""
    kinds = tuple(dict.fromkeys(text.lower().split(",")))
    unknown = [kind for kind in kinds if kind not in FORMATS]
    if unknown:
        raise argparse.ArgumentTypeError(f"'{unknown[0]}' is none of {', '.join(FORMATS)}; several are written with commas between them")
    return kinds


def _seconds(text: str) -> float:
    """Read the value of --watch."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return value


def _number(text: str) -> float:
    """Read a number; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _draw(arguments: argparse.Namespace, changed: Container[Path] | None = None) -> list[str]:
    """Read the folder, write what the flags ask for, print the paths and the table.

    :param changed: draw only what shows one of these statistics files; None = everything.
    :return: a line for each file that could not be used.
    :raises UserError: when nothing can be drawn (no folder, no statistics, an unknown model), or a picture cannot be written.
    """
    from .compare import comparison_lines, describe_ideas, idea_lines
    from .runs import read_folder
    from .table import describe_evaluations, describe_runs, write_evaluations, write_sets, write_table

    curves, faults = read_folder(arguments.out_dir)
    curves = _selected(curves, arguments, faults)
    runs = describe_runs(curves, arguments.out_dir)
    evaluations, unreadable = describe_evaluations(arguments.out_dir, [run["model"] for run in runs])
    faults += unreadable
    ideas, comparisons = _compare(curves, arguments)
    if arguments.json:
        groups = describe_ideas(ideas)
        for run in runs:
            run["group"] = next((group for group in groups if run["model"] in group["models"]), None)
            mine = [idea.label for idea in ideas if run["model"] in idea.models]
            run["evaluations"] = evaluations.get(run["model"], [])
            run["comparisons"] = [one.to_json() for one in comparisons if one.idea in mine]
        print(json.dumps(runs, indent=2, ensure_ascii=False))
        return faults
    if arguments.html:
        from .report import write_report

        write_report(curves, arguments.out_dir, arguments.html, arguments.smooth, arguments.theme, arguments.baseline, ideas, comparisons,
                     evaluations)
        print(arguments.html)
    else:
        _draw_pictures(curves, arguments, changed)
    blocks = [write_table(runs).split("\n"), write_sets(curves).splitlines(), write_evaluations(evaluations).splitlines(),
              [*idea_lines(ideas), *comparison_lines(comparisons)]]
    print("".join("\n" + "".join(f"{printable(line)}\n" for line in lines) for lines in blocks if lines), end="")
    return faults


def _compare(curves: list[Curve], arguments: argparse.Namespace) -> tuple[list[Idea], list[Comparison]]:
    """Put runs of several seeds together, and compare them with the baseline."""
    from .compare import baseline_of, compare, ideas_of
    from .table import read_settings

    whole = [curve for curve in curves if curve.kind == "validate" and curve.stage is None]
    ideas = ideas_of(whole, {curve.model: read_settings(arguments.out_dir, curve.model) for curve in whole})
    baseline = arguments.baseline if arguments.baseline in [curve.model for curve in whole] else None
    return ideas, compare(ideas, baseline_of(ideas, baseline)) if ideas else []


def _draw_pictures(curves: list[Curve], arguments: argparse.Namespace, changed: Container[Path] | None) -> None:
    """Draw a picture for each file, and those that compare models."""
    from .compare import ideas_of
    from .plot import THEMES, draw_curve, draw_differences, draw_together, same_tokens
    from .runs import KINDS
    from .table import read_settings

    theme, look = THEMES[arguments.theme or "light"], (arguments.x, arguments.smooth)

    def is_due(*shown: Curve | None) -> bool:
        return changed is None or any(curve is not None and curve.path in changed for curve in shown)

    settings = {curve.model: read_settings(arguments.out_dir, curve.model) for curve in curves}
    by_key = {(curve.model, curve.kind, curve.stage): curve for curve in curves}
    for curve in curves:
        validation = by_key.get((curve.model, "validate", curve.stage)) if curve.kind == "train" else None
        if is_due(curve, validation):
            _write(draw_curve(curve, validation, *look, theme), curve.path.with_suffix(""), arguments)
    comparable = same_tokens([curve for curve in curves if curve.kind == "validate" and curve.stage is None])
    for kind in KINDS:
        whole = [curve for curve in curves if curve.kind == kind and curve.stage is None]
        if len(whole) > 1:
            if is_due(*whole):
                ideas = ideas_of(whole, settings)
                _write(draw_together(whole, *look, theme, comparable, ideas), arguments.out_dir / f"all_{kind}", arguments)
                baseline = arguments.baseline if arguments.baseline in [curve.model for curve in whole] else None
                if len(ideas) > 1:
                    _write(draw_differences(whole, *look, baseline, theme, comparable, ideas), arguments.out_dir / f"all_{kind}_diff", arguments)
                elif changed is None:
                    print(f"no all_{kind}_diff: the runs differ in the seed alone")
                if baseline != arguments.baseline:
                    print(f"all_{kind}_diff: {arguments.baseline} has no {kind} statistics of a whole run; each is minus the longest run")
        elif changed is None:
            found = f"only {whole[0].model} has" if whole else "no model has"
            print(f"no all_{kind}, no all_{kind}_diff: they compare models, and {found} {kind} statistics of a whole run")


def _selected(curves: list[Curve], arguments: argparse.Namespace, faults: list[str]) -> list[Curve]:
    """Keep the models asked for; raises UserError for an unknown model, and when there are no curves."""
    names = sorted({curve.model for curve in curves})
    if not curves:
        raise UserError(*(faults or [f"--out-dir {arguments.out_dir}: no statistics (*_stats.json) in it; lmp_trainer writes them while it trains."]))
    asked = [("--models", name) for name in arguments.models or []] + [("--baseline", name) for name in [arguments.baseline] if name is not None]
    unknown = [(flag, name) for flag, name in asked if name not in names]
    if unknown:
        raise UserError(*faults, *(f"{flag} {name}: not in {arguments.out_dir}, which has {', '.join(names)}.{nearest(name, names)}" for flag, name in unknown))
    return [curve for curve in curves if not arguments.models or curve.model in [name for _, name in asked]]


def _write(figure: Figure, stem: Path, arguments: argparse.Namespace) -> None:
    """Save a picture in each format and print the paths."""
    from .plot import save

    for kind in arguments.format:
        path = stem.with_name(f"{stem.name}.{kind}")
        save(figure, path)
        print(path)
