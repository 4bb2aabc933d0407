"""What `lmp_generator` does: it writes texts with a trained model.  What is heavy is imported once the flags are known to be right."""
from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..command_line import Parser, ended, replace_broken_input
from ..data.samples import FORMS
from ..errors import UserError, long_names_refused, value_fault
from ..files import json_line
from ..paths import expanded
from ..plan.settings import find_model
from ..signals import raise_stop
from .server_flags import PENALTIES, PORT, add_server_flags, limits_of, server_faults, server_ranges

_FORMS_IN_WORDS = {"title": "a title", "instruction": "an instruction", "chat": "what a user says"}

if TYPE_CHECKING:
    from ..writing.conversation import Conversation
    from ..writing.sampling import Sampling
    from .writer import Writer


def run(argv: list[str] | None) -> int:
    """Write texts.

    :param argv: arguments; None = those of the process.
    :return: the exit code: 0, 2 bad input, that of the request to stop.
    """
    def work() -> int:
        options = _parser().read(argv)
        _check(options)
        if options.serve is not None:
            return _serve(options, argv is None)
        with long_names_refused():
            prompts = _prompts(options)
            writer, conversation = _open(options, 1 if prompts is None else min(len(prompts) * options.samples, options.batch_size))
        if argv is None:
            raise_stop()  # until now a request to stop has ended the process at once
        if conversation is not None:
            from .chat import answer, converse

            if options.ask is None:
                converse(writer, conversation)
            else:
                answer(writer, conversation, options.ask)
        elif prompts is None:
            _talk(writer, options)
        else:
            _write_all(writer, prompts, options)
        return 0

    return ended("lmp_generator", "", work)


def _parser() -> Parser:
    """Describe the flags."""
    parser = Parser(prog="lmp_generator", usage="%(prog)s [flags]", description="Write texts with a model that lmp_trainer has trained.\n\n"
                     "Without a prompt it reads standard input, on a terminal line by line.", formatter_class=argparse.RawDescriptionHelpFormatter)
    what, how = parser.add_argument_group("what to write"), parser.add_argument_group("how tokens are chosen, in this order")
    what.add_argument("--model", metavar="FILE", action="append", help="a model file (.lmp), or its name in --out-dir; by default the newest *_model.lmp "
                      "there; with --serve several times")
    what.add_argument("--raw", action="store_true", help="if the run keeps an average of the weights (--ema), use the weights themselves")
    what.add_argument("--out-dir", metavar="FOLDER", help="where models are; by default $LMP_DATASETS, else out_gpt")
    what.add_argument("--prompt", metavar="TEXT", action="append",
                      help="a prompt: how the text begins, or what --as says; may be given several times, and may be empty")
    what.add_argument("--prompts", metavar="FILE", help="a prompt a line; in a .jsonl file a JSON string or an object with `prompt` a line")
    what.add_argument("--chat", action="store_true", help="chat with the model, which reads the whole conversation; /help lists commands")
    what.add_argument("--ask", metavar="TEXT", help="one question, as in --chat; only its answer is printed")
    what.add_argument("--system", metavar="TEXT", help="with --chat and --ask: the system message of the conversation")
    what.add_argument("--stop", metavar="TEXT", action="append", help="end a text before TEXT; may be given several times")
    what.add_argument("--title", metavar="TEXT", help="title of the text, for models trained on texts with titles (quickstart's, for example); "
                      "a prompt is then how the text goes on")
    what.add_argument("--as", metavar="FORM", dest="form", choices=FORMS, help="what a prompt is: how a text begins (text), its title, an instruction, or what "
                      "a user says in a chat; by default the form of the newest training data. After a title or an instruction comes an empty line")
    what.add_argument("--markup", action="store_true", help="special tokens in a prompt, such as <|endoftext|>, are special; else they are text")
    what.add_argument("--samples", metavar="NUMBER", type=int, default=1, help="texts for each prompt (default: 1)")
    what.add_argument("--max-tokens", metavar="TOKENS", type=int, default=256, help="write at most N tokens (default: 256)")
    what.add_argument("--seed", metavar="NUMBER", type=int, help="the same seed writes the same texts (default: 0)")
    what.add_argument("--batch-size", metavar="TEXTS", type=int, default=16, help="texts written side by side (default: 16)")
    what.add_argument("--device", metavar="DEVICE", help="cpu, cuda, cuda:N or mps; by default the first available of cuda, mps, cpu")
    what.add_argument("--json", action="store_true", help="print a JSON object a text: prompt, title, sample, text")
    how.add_argument("--repetition-penalty", metavar="FACTOR", type=float, default=1.0, help="above 1: tokens of the text become less probable (default: 1)")
    how.add_argument("--temperature", metavar="NUMBER", type=float, default=0.8, help="below 1: safer, above 1: wilder; 0 = greedy (default: 0.8)")
    how.add_argument("--greedy", action="store_true", help="always the most probable token, as --temperature 0")
    how.add_argument("--top-k", metavar="TOKENS", type=int, default=0, help="only the k most probable tokens; 0 = off (default: 0)")
    how.add_argument("--top-p", metavar="SHARE", type=float, default=1.0, help="only the most probable tokens with p of the probability; 1 = off (default: 1)")
    how.add_argument("--min-p", metavar="SHARE", type=float, default=0.0, help="only tokens above a share of the best one's probability; 0 = off (default: 0)")
    parser.further = {*add_server_flags(parser), "prompts", "markup", "system", "stop", "batch_size", "json", "repetition_penalty", "greedy", "min_p"}
    return parser


def _check(options: argparse.Namespace) -> None:
    """Refuse values out of range, all at once."""
    ranges = {"samples": (1, None), "max_tokens": (1, None), "batch_size": (1, None), "seed": (0, None), "temperature": (0, 100), "top_k": (0, None),
              "top_p": (0, 1), "min_p": (0, 1), "repetition_penalty": PENALTIES, **server_ranges(options)}
    values = {name: getattr(options, name) for name in ranges if getattr(options, name) is not None}
    faults = [f"--{name.replace('_', '-')} {value}: allowed is a number from {ranges[name][0]}{'' if ranges[name][1] is None else f' to {ranges[name][1]}'}."
              for name, value in values.items() if not ranges[name][0] <= value <= (math.inf if ranges[name][1] is None else ranges[name][1])]
    if options.title and options.form not in (None, "title"):
        faults.append(f"--title and --as {options.form} together: give one of them.")
    faults += [f"{one} and {other} together: give one of them." for one, other in itertools.combinations(
        [flag for flag in ("--prompt", "--prompts", "--chat", "--ask", "--serve") if getattr(options, flag[2:]) not in (None, False)], 2)]
    talks = "--chat" if options.chat else "--ask" if options.ask is not None else None
    faults += [f"{talks} with {flag}: it is not possible; leave {flag} out." for flag, given in
               (("--title", options.title), ("--as", options.form), ("--json", options.json), ("--samples", options.samples > 1)) if talks and given]
    if options.system and not talks and options.serve is None:
        faults.append("--system: only with --chat, --ask or --serve.")
    faults += server_faults(options)
    faults += [f"--{name}: it is no UTF-8 text." for name in ("prompt", "ask", "system", "title", "stop") if not _is_text(getattr(options, name))]
    if any(not stop for stop in options.stop or ()):
        faults.append("--stop: the text is empty.")
    if faults:
        raise UserError(*faults)


def _is_text(given: str | list[str] | None) -> bool:
    """Tell whether texts are Unicode: half a surrogate pair stands for a byte that was none, and no tokenizer takes it."""
    try:
        "".join(given or "").encode()
    except UnicodeEncodeError:
        return False
    return True


def _prompts(options: argparse.Namespace) -> list[str] | None:
    """Collect the prompts; None = read them from the terminal, one after the other, or talk."""
    if options.chat or options.ask is not None:
        return None
    if options.prompt:
        return list(options.prompt)
    if options.prompts:
        return _read_prompts(expanded(options.prompts))
    if options.title:
        return [""]
    if sys.stdin.isatty():
        if options.json:
            raise UserError("--json: only with --prompt, --prompts, or a prompt on standard input that is not a terminal.")
        return None
    try:
        prompt = sys.stdin.read().rstrip("\n")
        prompt.encode()  # in some locales bytes that are no text come as halves of surrogate pairs
    except UnicodeError:
        raise UserError("standard input: it is no UTF-8 text.") from None
    return [prompt]


def _read_prompts(path: Path) -> list[str]:
    """Read a prompt a line."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--prompts {path}: cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8 text'}).") from None
    if not lines:
        raise UserError(f"--prompts {path}: holds no prompt; write one a line.")
    if path.suffix.lower() != ".jsonl":
        return lines
    prompts = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(f"--prompts {path}, prompt {number}: not valid JSON ({value_fault(error)}).") from None
        value = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(value, str) or not _is_text(value):
            raise UserError(f"--prompts {path}, prompt {number}: allowed is a JSON string, or an object with a string as `prompt`.")
        prompts.append(value)
    return prompts


def _open(options: argparse.Namespace, texts: int) -> tuple[Writer, Conversation | None]:
    """Load the model, to write N texts side by side; begin a conversation where one is asked for."""
    path = find_model((options.model or [None])[0], options.out_dir)
    from ..checkpoints.trained import open_trained
    from ..device.runtime import choose_device
    from ..writing.conversation import Conversation, for_conversation
    from ..writing.prompting import recorded
    from .writer import Writer

    device = choose_device(options.device)
    trained = open_trained(path, options.raw)
    if options.model is None:
        print(f"model {path}", file=sys.stderr)
    prompting = recorded(trained.tokenizer, trained.forms, options.form, options.markup)
    talks = options.chat or options.ask is not None
    if talks:
        prompting, remark = for_conversation(prompting, trained.forms)
        if remark:
            print(remark, file=sys.stderr)
    elif options.form is None and prompting.form != "text" and not options.title:
        print(f"a prompt is read as {_FORMS_IN_WORDS[prompting.form]}, as in the training data; --as text|title|instruction|chat says otherwise",
              file=sys.stderr)
    writer = Writer(trained.module.to(device), prompting, trained.context_len, _sampling(options), options.max_tokens, options.seed or 0,
                    (*(options.stop or ()), *prompting.stop_texts))
    return writer.faster(texts), Conversation(prompting, trained.context_len, options.max_tokens, options.system or "") if talks else None


def _sampling(options: argparse.Namespace) -> Sampling:
    """Say how tokens are chosen."""
    from ..writing.sampling import Sampling

    return Sampling(options.repetition_penalty, 0.0 if options.greedy else options.temperature, options.top_k, options.top_p, options.min_p)


def _serve(options: argparse.Namespace, takes_signals: bool) -> int:
    """Serve models until a request to stop; what is wrong is found before the models are loaded.

    :param takes_signals: this is the program of the process.
    """
    with long_names_refused():
        paths = [find_model(name, options.out_dir) for name in options.model or [None]]
    try:
        from .server import open_server
    except ImportError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise UserError(f"--serve: the package {error.name} is not installed; pip install 'lmplay[serve]'.") from None
    with open_server(options, paths, PORT, limits_of(options), _sampling(options)) as run:
        if takes_signals:
            raise_stop()
        run()
    return 0


def _write_all(writer: Writer, prompts: list[str], options: argparse.Namespace) -> None:
    """Write every sample of every prompt; a single one is shown as it comes."""
    jobs = [(number, prompt, sample) for number, prompt in enumerate(prompts, 1) for sample in range(1, options.samples + 1)]
    if len(jobs) == 1 and not options.json:
        _stream(writer, prompts[0], options.title, 0)
        return
    for start in range(0, len(jobs), options.batch_size):
        batch = jobs[start:start + options.batch_size]
        texts = [""] * len(batch)
        for step in writer.write([writer.prompting.ids(prompt, options.title) for _, prompt, _ in batch], start):
            texts = [text + (part or "") for text, part in zip(texts, step, strict=True)]
        for (number, prompt, sample), text in zip(batch, texts, strict=True):
            if options.json:
                print(json_line({"prompt": prompt, "title": options.title, "sample": sample, "text": text}), end="", flush=True)
            else:
                between = writer.prompting.after(prompt) if not options.title else ""
                print(f"=== prompt {number}, sample {sample}\n{prompt}{between}{text}\n", flush=True)


def _stream(writer: Writer, prompt: str, title: str | None, number: int) -> None:
    """Write one text and show it as it comes."""
    print(prompt + (writer.prompting.after(prompt) if not title else ""), end="", flush=True)
    for step in writer.write([writer.prompting.ids(prompt, title)], number):
        print(step[0] or "", end="", flush=True)
    print(flush=True)


def _talk(writer: Writer, options: argparse.Namespace) -> None:
    """Take a prompt after the other from the terminal."""
    replace_broken_input()
    print("A line is how a text begins; an empty one lets the model begin; Ctrl+D ends.", file=sys.stderr)
    number = 0
    while True:
        try:
            prompt = input("> ")
        except EOFError:
            print()
            return
        for _ in range(options.samples):
            _stream(writer, prompt, options.title, number)
            number += 1
