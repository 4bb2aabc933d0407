"""What `lmp_eval` does: it judges models by data sets.  What is heavy is imported once the flags are known to be right."""
from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..command_line import Parser
from ..data.samples import FORMS
from ..errors import LmplayError, UserError, long_names_refused, printable
from ..files import write_text
from ..plan.settings import Settings
from ..signals import Stop, raise_stop
from ..stats.evaluations import add_evaluation, read_evaluations

if TYPE_CHECKING:
    from .models import Judged, Place
    from .results import Result
    from .sets import DataSet

# What is judged of a model on one data set.
Judge = Callable[["Judged"], "Result"]


def run(argv: list[str] | None) -> int:
    """Judge models.

    :param argv: arguments; None = those of the process.
    :return: the exit code: 0, 2 for bad input, that of the request to stop.
    """
    try:
        options = _parser().read(argv)
        _check(options)
        if argv is None:
            raise_stop()
        with long_names_refused():
            _evaluate(options)
        return 0
    except LmplayError as error:
        for fault in error.faults if isinstance(error, UserError) else [error]:
            print(f"lmp_eval: {fault}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stop:
        with suppress(OSError):
            print("\nlmp_eval: stopped; what was finished is in the file of evaluations.", file=sys.stderr)
        return stop.exit_code if isinstance(stop, Stop) else 130
    except BrokenPipeError:  # the reader has had enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> Parser:
    """Describe the flags."""
    parser = Parser(prog="lmp_eval", usage="%(prog)s MODEL [MODEL ...] --set SOURCE [flags]", formatter_class=argparse.RawDescriptionHelpFormatter,
                    description="Judge one or several models by data sets, each as a whole, and say which is better and whether that is more than noise.\n\n"
                    "SOURCE is a data set as in a plan: a file, a folder, a name of the hub, builtin:tales, or a source object in JSON. NAME=SOURCE names it.")
    what, how = parser.add_argument_group("what is judged"), parser.add_argument_group("how")
    parser.add_argument("models", metavar="MODEL", nargs="*", help="a model file (.lmp), its name in --out-dir, a state of it (mine.best, mine.STAGE), a "
                        "folder that lmp_export or transformers has written, or hf:NAME of the hub")
    what.add_argument("--set", metavar="[NAME=]SOURCE", dest="texts", action="append", default=[],
                      help="texts: loss, perplexity and bits per byte with a sliding window; may be given several times, as may the flags below")
    what.add_argument("--documents", metavar="NUMBER", type=int, help="read the first N documents of each set only")
    how.add_argument("--context", metavar="TOKENS", type=int,
                     help="the most tokens that a token is predicted from (default: the model's context, 4096 at most)")
    how.add_argument("--stride", metavar="TOKENS", type=int, help="how far the window moves over a long text (default: half of --context)")
    how.add_argument("--as", metavar="FORM", dest="form", choices=FORMS, help="what a prompt is: text, title, instruction or chat; by default what the newest "
                     "training data had")
    how.add_argument("--batch-size", metavar="NUMBER", type=int, default=8, help="windows or texts that go through the model at once (default: 8)")
    how.add_argument("--device", metavar="DEVICE", help="cpu, cuda, cuda:N or mps; by default the first available of cuda, mps, cpu")
    how.add_argument("--raw", action="store_true", help="where a run keeps an average of the weights (--ema), take the weights themselves")
    parser.add_argument("--out-dir", metavar="FOLDER", help="where models and data sets are; by default $LMP_DATASETS, else out_gpt")
    parser.add_argument("--json", metavar="FILE",
                        help="write all figures, intervals and comparisons into a JSON file as well; - = print it instead of the table")
    parser.add_argument("--no-record", action="store_true", help="do not write the figures into NAME_eval.json beside the model")
    parser.further = {"no_record", "raw", "form", "batch_size"}
    return parser


def _check(options: argparse.Namespace) -> None:
    """Refuse what is missing, and values out of range, all at once."""
    faults = []
    if not options.models:
        faults.append("give one MODEL or several: lmp_eval mine --set my_texts/. `lmp_eval --help` says more.")
    if not options.texts:
        faults.append("there is nothing to judge by; give --set SOURCE.")
    for name in ("documents", "context", "stride", "batch_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            faults.append(f"--{name.replace('_', '-')} {value}: allowed is a whole number, 1 or more.")
    if options.context and options.stride and options.stride > options.context:
        faults.append(f"--stride {options.stride}: is more than --context {options.context}, so tokens between two windows would be left out; give "
                      f"{options.context} or less.")
    if faults:
        raise UserError(*faults)


def _evaluate(options: argparse.Namespace) -> None:
    """Open the sets and the models, judge each model by each set, and say what was found."""
    from .models import locate, open_model

    out_dir = options.out_dir or os.environ.get("LMP_DATASETS") or Settings.out_dir
    places = locate(options.models, options.out_dir)
    judges = _open_sets(options, Path(out_dir).expanduser() / "datasets")
    from ..device.runtime import choose_device

    device = choose_device(options.device)
    models = [open_model(label, place, options.raw, device, options.form) for label, place in places.items()]
    _check_context(options, models)
    records = [model.place for model in models if model.place is not None and not options.no_record]
    for place in records:
        read_evaluations(place.folder, place.run_name)  # a damaged one is refused before anything is judged
    results: list[Result] = []
    for model in models:
        model.module.to(device)
        for data, judge in judges:
            results.append(judge(model))
            if model.place in records:
                _record(model.place, results[-1])
            for note in data.notes if model is models[0] else []:
                print(printable(note), file=sys.stderr)
        model.module.cpu()
    _tell(results, options.json)


def _open_sets(options: argparse.Namespace, folder: Path) -> list[tuple[DataSet, Judge]]:
    """Open all sets, so that what is wrong with them is known before a model is opened."""
    from .sets import read_set

    judges: list[tuple[DataSet, Judge]] = []
    faults: list[str] = []
    for given in options.texts:
        try:
            judges.append(_texts(read_set("--set", given, folder, options.documents), options))
        except UserError as error:
            faults += error.faults
    names = [data.name for data, _ in judges]
    faults += [f"{data.label}: there is another set named {data.name}; give it a name with NAME=SOURCE." for number, (data, _) in enumerate(judges)
               if data.name in names[:number]]
    if faults:
        raise UserError(*faults)
    return judges


def _texts(data: DataSet, options: argparse.Namespace) -> tuple[DataSet, Judge]:
    """Open a set of texts."""
    from .texts import judge_texts

    texts = data.open_texts()
    for line in texts.reads:
        print(printable(line), file=sys.stderr)

    def judge(model: Judged) -> Result:
        context = options.context or model.usual_context
        return judge_texts(model, data, texts, context, options.stride or max(1, context // 2), options.batch_size)

    return data, judge


def _check_context(options: argparse.Namespace, models: Sequence[Judged]) -> None:
    """Refuse a context that a model does not have."""
    faults = [f"--context {options.context}: is more than the {model.context_len:,} tokens that {model.label} reads; give {model.context_len} or less."
              for model in models if options.context and options.context > model.context_len]
    faults += [f"--stride {options.stride}: is more than the context of {model.label}, {model.usual_context:,} tokens; give {model.usual_context} or less."
               for model in models if options.stride and not options.context and options.stride > model.usual_context]
    if faults:
        raise UserError(*faults)


def _record(place: Place | None, result: Result) -> None:
    """Write what was found beside the run that the model is a state of."""
    if place is not None:
        add_evaluation(place.folder, place.run_name, place.run, {"state": place.state, "samples": place.samples, **result.to_json()})


def _tell(results: Sequence[Result], file: str | None) -> None:
    """Print what was found, and write it into a file where that was asked for."""
    from .results import differences
    from .told import as_json, tables

    found = differences(results)
    content = json.dumps(as_json(results, found), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if file == "-":
        print(content, end="")
        return
    print("\n".join(printable(line) for line in tables(results, found).split("\n")), flush=True)
    if file is not None:
        try:
            write_text(Path(file).expanduser(), content)
        except OSError as error:
            raise UserError(f"--json {file}: cannot be written ({error.strerror or error}).") from None
