"""The door `lmp_plotstats`: draws the statistics of an output folder.  May import the stats floor and the ground, after the flags are read."""
from __future__ import annotations

import argparse
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..errors import UserError, nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .runs import Curve

DESCRIPTION = """Draw the statistics that lmp_trainer writes: a picture beside each *_stats.json, all_train.png and all_validate.png with all models
together, and all_train_diff.png and all_validate_diff.png with each model minus the one that got farthest. Then list the models.
A damaged file is named, the others are drawn, and the exit code is 2."""
X_CHOICES = ("samples", "tokens", "seconds")
HEADINGS = ("model", "experiment", "samples", "tokens", "time", "train loss", "validation", "best", "bits/byte")


def main(argv: list[str] | None = None) -> int:
    """Draw what the flags ask for.

    :param argv: the command line without the program's name; None = that of the process.
    :return: 0, or 2 where something was wrong with the input; what could be drawn then is drawn.
    """
    try:
        arguments = _build_parser().parse_args([_with_hyphens(word) for word in (sys.argv[1:] if argv is None else argv)])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # a letter without a font is drawn as a box, and once is clear enough
            faults = _draw(arguments)
    except UserError as error:
        faults = list(error.faults)
    except KeyboardInterrupt:
        return 130
    for fault in faults:
        print(f"lmp_plotstats: {fault}", file=sys.stderr)
    return 2 if faults else 0


class _Parser(argparse.ArgumentParser):
    """An argument parser whose faults are one clear line."""

    def error(self, message: str) -> NoReturn:
        """Refuse a command line."""
        raise UserError(f"{message}. `{self.prog} --help` lists the flags.")


def _build_parser() -> argparse.ArgumentParser:
    """Describe the flags."""
    parser = _Parser(prog="lmp_plotstats", description=DESCRIPTION, allow_abbrev=False)
    folder = os.environ.get("LMP_DATASETS") or "out_gpt"
    parser.add_argument("--out-dir", type=Path, default=Path(folder), metavar="FOLDER", help="where the statistics are (default: $LMP_DATASETS, else out_gpt)")
    parser.add_argument("--models", nargs="+", action="extend", metavar="NAME", help="draw and compare only these models (default: all)")
    parser.add_argument("--x", nargs="+", choices=X_CHOICES, default=X_CHOICES, help="what the curves are drawn over, one column each (default: all three)")
    smoothing = """smooth training curves by a centred mean over this many points, or this share of a curve's points if below 1; 0 = off; no mean reaches
        across the end of a stage, and values that were not measured are left out (default: 2 %% of the points, at least 5; off below 20 points)"""
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report with everything in one file that any browser opens, instead of pictures")
    parser.add_argument("--smooth", type=_smoothing, metavar="POINTS", help=smoothing)
    return parser


def _with_hyphens(word: str) -> str:
    """Accept `_` for `-` in the name of a flag, but leave its value alone."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _smoothing(text: str) -> float:
    """Read the value of --smooth."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is neither 0 (off), a share of the points below 1, nor a number of points")
    return value


def _draw(arguments: argparse.Namespace) -> list[str]:
    """Read the folder, write all pictures, print them and the table.

    :param arguments: the parsed flags.
    :return: a line for each file that could not be used.
    :raises UserError: where nothing can be drawn: no folder, no statistics, a model that is not there; where a picture cannot be written.
    """
    from .plot import draw_curve, draw_differences, draw_together
    from .runs import KINDS, read_folder

    folder: Path = arguments.out_dir
    curves, faults = read_folder(folder)
    curves = _selected(curves, arguments, faults)
    if arguments.html:
        from .html import write_report

        write_report(curves, folder, arguments.html, arguments.smooth)
        print(arguments.html)
        return faults
    by_key = {(curve.model, curve.kind, curve.stage): curve for curve in curves}
    for curve in curves:
        validation = by_key.get((curve.model, "validate", curve.stage)) if curve.kind == "train" else None
        _write(draw_curve(curve, validation, arguments.x, arguments.smooth), curve.path.with_suffix(".png"))
    for kind in KINDS:
        whole = [curve for curve in curves if curve.kind == kind and curve.stage is None]
        if len(whole) > 1:
            _write(draw_together(whole, arguments.x, arguments.smooth), folder / f"all_{kind}.png")
            _write(draw_differences(whole, arguments.x, arguments.smooth), folder / f"all_{kind}_diff.png")
        else:
            found = f"only {whole[0].model} has" if whole else "no model has"
            print(f"no all_{kind}.png, no all_{kind}_diff.png: they compare models, and {found} {kind} statistics of a whole run")
    print()
    print(_table(curves))
    return faults


def _selected(curves: list[Curve], arguments: argparse.Namespace, faults: list[str]) -> list[Curve]:
    """Keep the models asked for; raises UserError where that leaves nothing, or names a model that is not there."""
    names = sorted({curve.model for curve in curves})
    if not curves:
        raise UserError(*(faults or [f"--out-dir {arguments.out_dir}: no statistics (*_stats.json) in it; lmp_trainer writes them while it trains."]))
    unknown = [name for name in arguments.models or [] if name not in names]
    if unknown:
        raise UserError(*faults, *(f"--models {name}: not in {arguments.out_dir}, which has {', '.join(names)}.{nearest(name, names)}" for name in unknown))
    return [curve for curve in curves if not arguments.models or curve.model in arguments.models]


def _write(figure: Figure, path: Path) -> None:
    """Save a picture and say so."""
    from .plot import save

    save(figure, path)
    print(path)


def _table(curves: list[Curve]) -> str:
    """Lay out one line for each model, with `-` for what is not known."""
    from .plot import compact
    from .runs import Curve

    rows: list[Sequence[str]] = [HEADINGS]
    for model, experiment in dict.fromkeys((curve.model, curve.experiment) for curve in curves):
        whole = {curve.kind: curve for curve in curves if curve.model == model and curve.stage is None}
        train, validation = whole.get("train"), whole.get("validate")
        rows.append((
            model,
            experiment,
            _cell(train, Curve.last, "samples", compact),
            _cell(train, Curve.last, "tokens", compact),
            _cell(train, Curve.last, "seconds", _duration),
            _cell(train, Curve.last, "loss", "{:.4f}".format),
            _cell(validation, Curve.last, "loss", "{:.4f}".format),
            _cell(validation, Curve.lowest, "loss", "{:.4f}".format),
            _cell(validation, Curve.last, "bits_per_byte", "{:.4f}".format),
        ))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = "<<" + ">" * (len(HEADINGS) - 2)
    return "\n".join("  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip() for row in rows)


def _cell(curve: Curve | None, pick: Callable[[Curve, str], float], name: str, form: Callable[[float], str]) -> str:
    """Write one value of a curve, or `-` where there is none."""
    value = math.nan if curve is None else pick(curve, name)
    return "-" if math.isnan(value) else form(value)


def _duration(seconds: float) -> str:
    """Write a duration with its two largest units: ``33.1s``, ``12m 05s``, ``3h 20m``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02}m"


if __name__ == "__main__":
    sys.exit(main())
