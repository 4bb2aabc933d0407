"""What `lmp_export` does: it writes a trained model for other programs.  What is heavy is imported once the flags are known to be right."""
from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..command_line import Parser, run_program
from ..errors import UserError, nearest
from ..files import is_state
from ..paths import expanded
from ..plan.settings import find_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..checkpoints.trained import Trained

DTYPES = ("float32", "bfloat16", "float16")
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


def run(argv: list[str] | None) -> int:
    """Write a model for other programs.

    :param argv: arguments; None = those of the process.
    :return: the exit code: 0, 2 for bad input, that of the request to stop.
    """
    return run_program(_parser(), argv, _check, lambda options: _export(options) if options.adapter_only is None else _export_adapter(options),
                       "stopped; what was half written has been removed.")


def _parser() -> Parser:
    """Describe the flags."""
    parser = Parser(prog="lmp_export", usage="%(prog)s MODEL FOLDER [flags]", description="Write a model that lmp_trainer has trained as a folder of "
                    "transformers: AutoModelForCausalLM.from_pretrained(FOLDER) opens it without custom code.")
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a model file (.lmp), or its name in --out-dir")
    parser.add_argument("folder", metavar="FOLDER", nargs="?", help="where to write; an earlier export there is replaced")
    parser.add_argument("--state", metavar="NAME", default="latest",
                        help="which state of the run: latest, best, a stage, or STAGE.best; MODEL.NAME.lmp is read (default: latest)")
    parser.add_argument("--raw", action="store_true", help="if the run keeps an average of the weights (--ema), use the weights themselves")
    parser.add_argument("--out-dir", metavar="FOLDER", help="where models are; by default $LMP_DATASETS, else out_gpt")
    parser.add_argument("--dtype", choices=DTYPES, help="data type of the weights (default: float32)")
    parser.add_argument("--max-shard-size", metavar="SIZE", help="the largest file of weights, such as 500MB (default: 5GB)")
    parser.add_argument("--no-tokenizer", action="store_true", help="leave the tokenizer out")
    parser.add_argument("--license", metavar="NAME", help="licence of the model, for its card: a name of the hub, such as apache-2.0")
    parser.add_argument("--overwrite", action="store_true", help="replace FOLDER even if it holds files that no export has written (they are lost), and the "
                        "file of --gguf")
    parser.add_argument("--gguf", metavar="FILE", help="write a GGUF file, for llama.cpp, as well; FOLDER may be left out then")
    parser.add_argument("--adapter-only", metavar="FOLDER", help="write only the adapter of a stage, for peft; --state names the stage")
    parser.add_argument("--push", metavar="NAME", help="send the folder to the hub as well, as OWNER/NAME; log in first with `hf auth login`")
    parser.add_argument("--private", action="store_true", help="with --push: a new repository is private")
    parser.further = {"raw", "max_shard_size", "overwrite", "license", "private"}
    return parser


def _check(options: argparse.Namespace) -> None:
    """Refuse values that are not allowed."""
    if options.adapter_only is not None:
        _check_adapter_only(options)
        return
    if options.model is None or (options.folder is None and (options.gguf is None or options.push is not None)):
        raise UserError("give a MODEL and a FOLDER to write: lmp_export mine exported. `lmp_export --help` says more.")
    for_folder = [flag for flag, value in (("--license", options.license), ("--max-shard-size", options.max_shard_size)) if value is not None]
    if options.folder is None and for_folder:
        raise UserError(f"{' and '.join(for_folder)}: only for a FOLDER; give one, or leave {'them' if len(for_folder) > 1 else 'it'} out.")
    options.dtype, options.max_shard_size = options.dtype or "float32", options.max_shard_size or "5GB"
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(KB|MB|GB)", options.max_shard_size, re.IGNORECASE)
    if size is None or float(size[1]) == 0:
        raise UserError(f"--max-shard-size {options.max_shard_size}: allowed is a number above 0 with KB, MB or GB, such as 500MB.")
    if options.private and options.push is None:
        raise UserError("--private: is for --push; give both, or leave it out.")
    options.max_shard_size = int(float(size[1]) * _UNITS[size[2].upper()])


def _check_adapter_only(options: argparse.Namespace) -> None:
    """Refuse what does not go together with `--adapter-only`."""
    if options.model is None:
        raise UserError("give a MODEL: lmp_export mine --state STAGE --adapter-only FOLDER. `lmp_export --help` says more.")
    others = {"FOLDER": options.folder, "--gguf": options.gguf, "--push": options.push, "--private": options.private, "--license": options.license,
              "--no-tokenizer": options.no_tokenizer, "--dtype": options.dtype is not None, "--max-shard-size": options.max_shard_size is not None}
    if given := [name for name, value in others.items() if value]:
        raise UserError(f"--adapter-only {options.adapter_only}: writes that folder alone; leave {' and '.join(given)} out.")


def _export_adapter(options: argparse.Namespace) -> None:
    """Write the adapter that a state, or a stage that is done, has."""
    from .folder import check_target, written_whole

    path, folder = _file_of(options), expanded(options.adapter_only)
    finished = path.parent / "adapters" / f"{path.stem}{path.suffix}"
    check_target(folder, path, options.overwrite)
    from ..checkpoints.base import base_file
    from ..checkpoints.trained import open_adapter
    from .adapter import write_adapter

    trained = open_adapter(path, options.raw)  # of a stage at work, whose earlier attempt may have left another adapter
    if trained is None and options.state != "latest" and finished.is_file():
        path, trained = finished, open_adapter(finished, options.raw)
    if trained is None:
        name = find_model(options.model, options.out_dir, "MODEL").stem
        stages = sorted(file.stem.removeprefix(f"{name}.") for file in finished.parent.glob(f"{name}.*.lmp"))
        there = f" There are those of {', '.join(stages)}: give --state {stages[0]}." if stages else ""
        raise UserError(f"--adapter-only: {path} holds no adapter: it is merged into the weights at the end of its stage.{there}")
    with written_whole(folder, path, options.overwrite) as temporary:
        write_adapter(temporary, trained)
    base = base_file(path, trained.base)
    print(f"{path} is written as {folder}: {trained.settings.kind}, rank {trained.settings.rank}, on {len(trained.layers)} layers; for the model that "
          f"`lmp_export {base} BASE` writes")


def _export(options: argparse.Namespace) -> None:
    """Open the model, and write what was asked for: the folder whole or not at all."""
    from .folder import check_target
    from .gguf_file import check_gguf, check_model, write_gguf
    from .push import check_name

    path = _file_of(options)
    folder, gguf = (None if name is None else expanded(name) for name in (options.folder, options.gguf))
    if folder is not None:
        check_target(folder, path, options.overwrite)
    if gguf is not None:
        if gguf.resolve() == path.resolve() or (folder is not None and folder.resolve() in (gguf.resolve(), *gguf.resolve().parents)):
            raise UserError(f"--gguf {gguf}: is the model file, or in the FOLDER that is written as a whole; give a file elsewhere.")
        check_gguf(gguf, options.overwrite)
    if options.push is not None:
        check_name(options.push)
    from ..checkpoints.trained import open_trained
    from .written import described, made_for_transformers

    trained = open_trained(path, options.raw)
    model = made_for_transformers(trained, options.dtype)
    what = f"{path}{' (the average of its weights)' if trained.averaged else ''} is written as"
    if gguf is not None:
        check_model(model)
        write_gguf(gguf, model, None if options.no_tokenizer else trained.tokenizer, gguf.stem, options.dtype, trained.chat_template, options.overwrite)
        print(f"{what} {gguf}: {described(model, options.dtype)}")
    if folder is not None:
        _write_folder(folder, path, model, trained, options)
        print(f"{what} {folder}: {described(model, options.dtype)}")


def _write_folder(folder: Path, path: Path, model: PreTrainedModel, trained: Trained, options: argparse.Namespace) -> None:
    """Write the folder, and send it to the hub where that was asked for."""
    from .card import write_card
    from .folder import written_whole
    from .push import push
    from .written import described, write_model

    with written_whole(folder, path, options.overwrite) as temporary:
        write_model(temporary, model, trained, options)
        write_card(temporary, trained, options.push or folder.resolve().name, options.state, described(model, options.dtype), options.license,
                   not options.no_tokenizer)
    if options.push is not None:
        print(f"sent to {push(folder, options.push, options.private)}")


def _file_of(options: argparse.Namespace) -> Path:
    """Find the file of a state of a model; raises UserError with those there are."""
    path = find_model(options.model, options.out_dir, "MODEL")
    if options.state == "latest":
        return path
    chosen = path.parent / f"{path.stem}.{options.state}{path.suffix}"
    if chosen.parent != path.parent or not is_state(chosen):
        there = sorted(other.stem.removeprefix(f"{path.stem}.") for other in path.parent.glob(f"{path.stem}.*.lmp"))
        raise UserError(f"--state {options.state}: there is no file {chosen}.{nearest(options.state, there)} {path.name} has the states "
                        f"{', '.join(['latest', *there])}.")
    return chosen
