"""What `lmp_eval` does: it judges models by data sets.  What is heavy is imported once the flags are known to be right."""
from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoints.lock import Name, NameLock
from ..command_line import Parser, run_program
from ..data.samples import FORMS
from ..errors import UserError, printable
from ..files import check_folder, write_text
from ..paths import expanded
from ..plan.settings import Settings
from ..stats.evaluations import add_evaluation, evaluations_file, read_evaluations

if TYPE_CHECKING:
    from .models import Judged, Place
    from .results import Result
    from .sets import DataSet
    from .windows import Reading

# Seconds to wait for another lmp_eval that writes to the file of evaluations, which takes it a moment.
_PATIENCE = 60
# What is judged of a model on one data set.
Judge = Callable[["Judged"], "list[Result]"]


def run(argv: list[str] | None) -> int:
    """Judge models.

    :param argv: arguments; None = those of the process.
    :return: the exit code: 0, 2 for bad input, that of the request to stop.
    """
    return run_program(_parser(), argv, _check, _evaluate, "stopped; what was finished is in the file of evaluations.")


def _parser() -> Parser:
    """Describe the flags."""
    parser = Parser(prog="lmp_eval", usage="%(prog)s MODEL [MODEL ...] --set SOURCE [flags]", formatter_class=argparse.RawDescriptionHelpFormatter,
                    description="Evaluate one or several models on data sets, and say which is better and whether the difference is more than noise.\n\n"
                    "SOURCE is a data set as in a plan: a file, a folder, a name of the hub, builtin:tales, or a source object in JSON. NAME=SOURCE names it.")
    what, how = parser.add_argument_group("what is judged"), parser.add_argument_group("how")
    written, shots = parser.add_argument_group("texts of --answers"), parser.add_argument_group("prompts of --tasks")
    parser.add_argument("models", metavar="MODEL", nargs="*", help="a model file (.lmp), its name in --out-dir, a state of it (mine.best, mine.STAGE), a "
                        "folder that lmp_export or transformers has written, or hf:NAME of the hub")
    what.add_argument("--set", metavar="[NAME=]SOURCE", dest="texts", action="append", default=[],
                      help="texts: loss, perplexity and bits per byte with a sliding window; may be given several times, as may the flags below")
    what.add_argument("--choices", metavar="[NAME=]SOURCE", action="append", default=[],
                      help="multiple choice: rows with a question, choices and the right one (its number from 0, letter, label or text); acc is by "
                      "probability, acc_norm by probability per character")
    what.add_argument("--preferences", metavar="[NAME=]SOURCE", action="append", default=[],
                      help="rows with prompt, chosen and rejected: how often the chosen answer is the more probable one")
    what.add_argument("--answers", metavar="[NAME=]SOURCE", action="append", default=[],
                      help="rows with a prompt and an answer: whether the model's text has the right answer (exact match, or pass@k with --samples)")
    what.add_argument("--tasks", metavar="NAME", nargs="+", default=[],
                      help="tasks of lm-evaluation-harness (pip install 'lmplay[lm-eval]'), with spaces or commas between them")
    what.add_argument("--include-path", metavar="FOLDER", help="a folder with task files (YAML) of your own for --tasks")
    shots.add_argument("--num-fewshot", metavar="NUMBER", type=int, help="solved examples before each question (default: as many as the task says)")
    shots.add_argument("--apply-chat-template", action="store_true", help="write prompts as chats, with the template of the model")
    shots.add_argument("--fewshot-as-multiturn", choices=("true", "false"),
                       help="with --apply-chat-template: each example is a question and an answer of the chat (default: true), or all are in one question")
    shots.add_argument("--system-instruction", metavar="TEXT", help="what comes first: the system message of a chat, else the beginning of the prompt")
    what.add_argument("--documents", metavar="NUMBER", type=int, help="read the first N documents of each set only")
    how.add_argument("--context", metavar="TOKENS", type=int,
                     help="the largest number of tokens that a token is predicted from (default: the model's context, 4096 at most)")
    how.add_argument("--stride", metavar="TOKENS", type=int, help="how far the window moves over a long text (default: half of --context)")
    written.add_argument("--samples", metavar="NUMBER", type=int, default=1, help="texts for each prompt (default: 1)")
    written.add_argument("--pass-at", metavar="K", type=int, nargs="+", help="the k of pass@k, at most --samples (default: 1 and --samples)")
    written.add_argument("--temperature", metavar="NUMBER", type=float, help="0 = the most probable token each time (default: 0, with several samples 0.8)")
    written.add_argument("--max-tokens", metavar="TOKENS", type=int, default=256, help="write at most N tokens (default: 256)")
    written.add_argument("--stop", metavar="TEXT", action="append", default=[], help="end a text before TEXT; may be given several times")
    written.add_argument("--extract", choices=("auto", "number", "text"), default="auto",
                         help="what is compared: the number after ####, else the last one, or the text; auto = numbers where all answers are (default: auto)")
    written.add_argument("--seed", metavar="NUMBER", type=int, default=0, help="the same seed writes the same texts (default: 0)")
    how.add_argument("--as", metavar="FORM", dest="form", choices=FORMS, help="what a prompt is: text, title, instruction or chat; by default the form of "
                     "the newest training data")
    how.add_argument("--batch-size", metavar="NUMBER", type=int, default=8, help="windows or texts that go through the model at once (default: 8)")
    how.add_argument("--device", metavar="DEVICE", help="cpu, cuda, cuda:N or mps; by default the first available of cuda, mps, cpu")
    how.add_argument("--raw", action="store_true", help="if a run keeps an average of the weights (--ema), use the weights themselves")
    parser.add_argument("--out-dir", metavar="FOLDER", help="where models and data sets are; by default $LMP_DATASETS, else out_gpt")
    parser.add_argument("--json", metavar="FILE",
                        help="write all figures, intervals and comparisons into a JSON file as well; - = print it instead of the table")
    parser.add_argument("--no-record", action="store_true", help="do not write the figures into NAME_eval.json beside the model")
    parser.further = {"no_record", "raw", "form", "batch_size", "stop", "extract", "seed", "fewshot_as_multiturn", "system_instruction"}
    return parser


def _check(options: argparse.Namespace) -> None:
    """Refuse what is missing, and values out of range, all at once."""
    faults = []
    if not options.models:
        faults.append("give one MODEL or several: lmp_eval mine --set my_texts/. `lmp_eval --help` says more.")
    options.tasks = [name for given in options.tasks for name in given.split(",") if name]
    if not options.tasks and not any(getattr(options, kind) for kind in _KINDS):
        faults.append("there is nothing to judge by; give --set SOURCE, --choices, --preferences, --answers or --tasks.")
    if options.include_path is not None and not options.tasks:
        faults.append("--include-path: is for --tasks; give both, or leave it out.")
    elif options.include_path is not None and not expanded(options.include_path).is_dir():
        faults.append(f"--include-path {options.include_path}: there is no such folder.")
    faults += [f"--{name.replace('_', '-')}: is for --tasks; give both, or leave it out."
               for name in ("num_fewshot", "apply_chat_template", "fewshot_as_multiturn", "system_instruction")
               if getattr(options, name) not in (None, False) and not options.tasks]
    if options.num_fewshot is not None and options.num_fewshot < 0:
        faults.append(f"--num-fewshot {options.num_fewshot}: allowed is a whole number, 0 or more.")
    if options.fewshot_as_multiturn is not None and not options.apply_chat_template:
        faults.append("--fewshot-as-multiturn: is for chats; give --apply-chat-template, too, or leave it out.")
    for name in ("documents", "context", "stride", "batch_size", "samples", "max_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            faults.append(f"--{name.replace('_', '-')} {value}: allowed is a whole number, 1 or more.")
    if options.context and options.stride and options.stride > options.context:
        faults.append(f"--stride {options.stride}: is more than --context {options.context}, so tokens between two windows would be left out; give "
                      f"{options.context} or less.")
    if options.temperature is None:
        options.temperature = 0.0 if options.samples == 1 else 0.8
    if not 0 <= options.temperature < math.inf:
        faults.append(f"--temperature {options.temperature}: allowed is a number, 0 or more.")
    elif options.samples > 1 and options.temperature == 0:
        faults.append("--samples with --temperature 0: all texts of a prompt would be the same; give a temperature above 0, or one sample.")
    if options.seed < 0:
        faults.append(f"--seed {options.seed}: allowed is a whole number, 0 or more.")
    faults += [f"--pass-at {k}: allowed is a whole number from 1 to the {options.samples} of --samples; to estimate pass@{k}, write at least {k} texts of each."
               for k in options.pass_at or [] if not 1 <= k <= options.samples]
    if any(not stop for stop in options.stop):
        faults.append("--stop: the text is empty.")
    if faults:
        raise UserError(*faults)


def _evaluate(options: argparse.Namespace) -> None:
    """Open the sets and the models, judge each model by each set, and say what was found."""
    from .models import locate, open_model

    out_dir = options.out_dir or os.environ.get("LMP_DATASETS") or Settings.out_dir
    places = locate(options.models, options.out_dir)
    judges = _open_sets(options, expanded(out_dir) / "datasets")
    from ..device.runtime import choose_device

    device = choose_device(options.device)
    models = [open_model(label, place, options.raw, device, options.form) for label, place in places.items()]
    _check_models(options, models)
    records = [model.place for model in models if model.place is not None and not options.no_record]
    for place in records:
        if not os.access(place.folder, os.W_OK | os.X_OK):
            raise UserError(f"evaluations {evaluations_file(place.folder, place.run_name)}: the folder is not writable; --no-record leaves the file out.")
        read_evaluations(place.folder, place.run_name)  # a damaged one is refused before anything is judged
    if options.json not in (None, "-"):
        check_folder(expanded(options.json).parent, "folder of --json")
    results: list[Result] = []
    lost: list[str] = []  # what could not be recorded
    for model in models:
        model.module.to(device)
        for data, judge in judges:
            for result in judge(model):
                results.append(result)
                try:
                    _record(model.place if model.place in records else None, result)
                except UserError as error:
                    lost += error.faults
            for note in data.notes if data is not None and model is models[0] else []:
                print(printable(note), file=sys.stderr)
        model.module.cpu()
    _tell(results, options.json)
    if lost:
        raise UserError(*dict.fromkeys(lost))


def _open_sets(options: argparse.Namespace, folder: Path) -> list[tuple[DataSet | None, Judge]]:
    """Open all sets, so that what is wrong with them is known before a model is opened."""
    from .sets import read_set

    judges: list[tuple[DataSet, Judge]] = []
    faults: list[str] = []
    for kind, (flag, prepare) in _KINDS.items():
        for given in getattr(options, kind):
            try:
                data = read_set(flag, given, folder, options.documents)
                judges.append((data, prepare(data, options)))
            except UserError as error:
                faults += error.faults
    names = [(data.label.split()[0], data.name) for data, _ in judges]
    faults += [f"{data.label}: there is another set named {data.name}; give it a name with NAME=SOURCE." for number, (data, _) in enumerate(judges)
               if names[number] in names[:number]]
    if faults:
        raise UserError(*faults)
    return [*judges, *([(None, _tasks(options))] if options.tasks else [])]


def _texts(data: DataSet, options: argparse.Namespace) -> Judge:
    """Open a set of texts."""
    from .texts import judge_texts

    texts = data.open_texts()
    for line in texts.reads:
        print(printable(line), file=sys.stderr)

    return lambda model: [judge_texts(model, data, texts, _reading(options, model))]


def _choices(data: DataSet, options: argparse.Namespace) -> Judge:
    """Open a set of multiple choice questions."""
    from .choices import judge_choices
    from .rows import read_questions

    questions = read_questions(data)
    return lambda model: [judge_choices(model, data, questions, _reading(options, model))]


def _preferences(data: DataSet, options: argparse.Namespace) -> Judge:
    """Open a set of preferences."""
    from .choices import judge_pairs
    from .rows import read_pairs

    pairs = read_pairs(data)
    return lambda model: [judge_pairs(model, data, pairs, _reading(options, model))]


def _answers(data: DataSet, options: argparse.Namespace) -> Judge:
    """Open a set of prompts with their answers."""
    from .problems import Writing, judge_problems
    from .rows import read_problems

    problems = read_problems(data)
    ks = tuple(dict.fromkeys(options.pass_at or (1, options.samples)))
    writing = Writing(options.samples, ks, options.temperature, options.max_tokens, tuple(options.stop), options.seed, options.extract, options.batch_size)
    return lambda model: [judge_problems(model, data, problems, writing)]


def _tasks(options: argparse.Namespace) -> Judge:
    """Open tasks of lm-evaluation-harness."""
    try:
        from .harness import Prompts, judge_tasks, open_tasks
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "lm_eval":
            raise
        raise UserError("--tasks: the package lm_eval is not installed; pip install 'lmplay[lm-eval]'.") from None
    folder = None if options.include_path is None else str(expanded(options.include_path))
    manager = open_tasks(options.tasks, folder, options.num_fewshot)
    prompts = Prompts(options.num_fewshot, options.apply_chat_template, options.fewshot_as_multiturn != "false", options.system_instruction)
    return lambda model: judge_tasks(model, options.tasks, manager, prompts, options.documents, options.batch_size)


# The sets that can be given, by where their values are: their flag, and what opens one.
_KINDS: dict[str, tuple[str, Callable[[DataSet, argparse.Namespace], Judge]]] = {
    "texts": ("--set", _texts), "choices": ("--choices", _choices), "preferences": ("--preferences", _preferences), "answers": ("--answers", _answers)}


def _reading(options: argparse.Namespace, model: Judged) -> Reading:
    """Say how a model reads texts."""
    from .windows import Reading

    context = options.context or model.usual_context
    return Reading(context, options.stride or max(1, context // 2), options.batch_size)


def _check_models(options: argparse.Namespace, models: Sequence[Judged]) -> None:
    """Refuse a context, or a chat template, that a model does not have."""
    faults = [f"--context {options.context}: is more than the {model.context_len:,} tokens that {model.label} reads; give {model.context_len} or less."
              for model in models if options.context and options.context > model.context_len]
    faults += [f"--stride {options.stride}: is more than the context of {model.label}, {model.usual_context:,} tokens; give {model.usual_context} or less."
               for model in models if options.stride and not options.context and options.stride > model.usual_context]
    faults += [f"--apply-chat-template: {model.label} has no chat template, as it has learned no chats; leave the flag out." for model in models
               if options.apply_chat_template and model.chat_template is None]
    if faults:
        raise UserError(*faults)


def _record(place: Place | None, result: Result) -> None:
    """Write what was found beside the run that the model is a state of, while nobody else writes there."""
    if place is None:
        return
    file = evaluations_file(place.folder, place.run_name)
    # .mine_eval.json.lock: a model may be called mine_eval
    with NameLock([Name(file.with_name(f"{file.name}.lmp"), f"evaluations {file}", "is being written by", "--no-record leaves the file out.")]).held(_PATIENCE):
        add_evaluation(place.folder, place.run_name, place.run, {"state": place.state, "samples": place.samples, **result.to_json()})


def _tell(results: Sequence[Result], file: str | None) -> None:
    """Print what was found, and write it into a file where that was asked for; raises UserError, after printing, when that cannot be written."""
    from .results import differences
    from .told import as_json, tables

    found = differences(results)
    content = json.dumps(as_json(results, found), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if file == "-":
        print(content, end="")
        return
    faults = []
    if file is not None:
        try:
            write_text(expanded(file), content)
        except OSError as error:
            faults = [f"--json {file}: cannot be written ({error.strerror or error})."]
    print("\n".join(printable(line) for line in tables(results, found).split("\n")), flush=True)
    if faults:
        raise UserError(*faults)
