"""What `lmp_checkpoint` does with states.  What is heavy is imported once the flags are known to be right."""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ..command_line import Parser, run_program
from ..errors import UserError, nearest
from ..files import NotAFile, check_is_state, size_of
from ..paths import in_folder, plain
from ..plan.settings import Settings, find_model
from ..words import counted

_MOST_SHARDS = 99_999


def run(argv: list[str] | None) -> int:
    """Convert, verify, average or show states.

    :param argv: arguments; None = those of the process.
    :return: the exit code: 0, 2 for bad input and damaged states, that of the request to stop.
    """
    return run_program(_parser(), argv, _check, lambda options: _ACTIONS[options.action](options), "stopped; what was half written has been removed.")


def _parser() -> Parser:
    """Describe the flags."""
    parser = Parser(prog="lmp_checkpoint", formatter_class=argparse.RawDescriptionHelpFormatter, usage="%(prog)s ACTION STATE ... [flags]", description="""\
Work with states of lmp_trainer: model files (.lmp), and folders of shards (--checkpoint-format sharded).

  lmp_checkpoint convert STATE TARGET           write a file as a folder of shards, or a folder as a file
  lmp_checkpoint verify STATE ...               check checksums, and that all is there which a state needs
  lmp_checkpoint average STATE ... --to TARGET  write the mean of several states' weights, as weights alone
  lmp_checkpoint inspect STATE                  print what is in it""")
    parser.add_argument("action", metavar="ACTION", nargs="?", help=", ".join(_ACTIONS))
    parser.add_argument("states", metavar="STATE", nargs="*", help="a model file or folder, or its name in --out-dir (mine, mine.best, mine.STAGE)")
    parser.add_argument("--to", metavar="TARGET", help="with average: what to write")
    parser.add_argument("--format", choices=("file", "sharded"), help="what to write: a file, or a folder of shards (convert: by default what STATE is not; "
                        "average: file)")
    parser.add_argument("--shards", metavar="NUMBER", type=int, help="shards of a folder (default: 1); any number of processes can read them")
    parser.add_argument("--raw", action="store_true", help="with average: where a run keeps an average of the weights (--ema), take the weights themselves")
    parser.add_argument("--overwrite", action="store_true", help="replace TARGET, if it is there")
    parser.add_argument("--json", action="store_true", help="with inspect: as JSON")
    parser.add_argument("--out-dir", metavar="FOLDER", help="where models are; by default $LMP_DATASETS, else out_gpt")
    parser.further = {"raw", "shards"}
    return parser


_FOR = {"convert": {"format", "shards", "overwrite"}, "verify": set[str](), "average": {"to", "format", "shards", "overwrite", "raw"}, "inspect": {"json"}}
_HOW = {"convert": "convert STATE TARGET", "verify": "verify STATE ...", "average": "average STATE STATE ... --to TARGET", "inspect": "inspect STATE"}
_COUNTS = {"convert": (2, 2), "verify": (1, None), "average": (2, None), "inspect": (1, 1)}


def _check(options: argparse.Namespace) -> None:
    """Refuse what does not belong together."""
    if options.action is None:
        raise UserError(f"give an action: {', '.join(_HOW)}. `lmp_checkpoint --help` says more.")
    if options.action not in _ACTIONS:
        raise UserError(f"{options.action}: there is no such action.{nearest(options.action, _HOW)} There are: {', '.join(_HOW)}.")
    least, most = _COUNTS[options.action]
    if len(options.states) < least or (most is not None and len(options.states) > most) or (options.action == "average" and options.to is None):
        raise UserError(f"lmp_checkpoint {_HOW[options.action]} is how it is called; {counted(len(options.states), 'name')} given.")
    others = {name for names in _FOR.values() for name in names} - _FOR[options.action]
    if wrong := [f"--{name}" for name in sorted(others) if getattr(options, name) not in (None, False)]:
        raise UserError(f"{' and '.join(wrong)}: not for {options.action}; leave {'it' if len(wrong) == 1 else 'them'} out.")
    if options.shards is not None and not 1 <= options.shards <= _MOST_SHARDS:
        raise UserError(f"--shards {options.shards}: allowed is a number from 1 to {_MOST_SHARDS}.")
    if options.shards is not None and options.format == "file":
        raise UserError(f"--shards {options.shards}: a file has none; leave it out, or take --format sharded.")


def _convert(options: argparse.Namespace) -> int:
    """Write a state in the other format, or in the one that was asked for."""
    source = find_model(options.states[0], options.out_dir, "STATE")
    target = _target(options.states[1], options)
    kind = options.format or ("sharded" if options.shards or not source.is_dir() else "file")
    from ..checkpoints.converting import convert

    convert(source, target, _shards(options, kind))
    print(f"{source} is written as {target}: {_described(target)}")
    return 0


def _average(options: argparse.Namespace) -> int:
    """Write the mean of states."""
    sources = [find_model(name, options.out_dir, "STATE") for name in options.states]
    target = _target(options.to, options)
    from ..checkpoints.converting import write_state
    from ..checkpoints.mean import mean_of

    write_state(target, mean_of(sources, options.raw, lambda line: print(f"lmp_checkpoint: {line}", file=sys.stderr)),
                _shards(options, options.format or ("sharded" if options.shards else "file")))
    print(f"the mean of {counted(len(sources), 'state')} is written as {target}: weights alone, {_described(target)}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    """Say of each state whether it is whole."""
    from ..checkpoints.checking import check

    faults: list[str] = []
    for name in options.states:
        found = name
        try:
            source = find_model(name, options.out_dir, "STATE")
            found = str(source)
            print(f"{source}: whole, {_described(source)}, {check(source)}")
        except UserError as error:
            faults += [fault if found in fault else f"STATE {found}: {fault}" for fault in error.faults]
    if faults:
        raise UserError(*faults)
    return 0


def _inspect(options: argparse.Namespace) -> int:
    """Print what a state holds."""
    from ..preview.inspect import print_state

    return print_state(find_model(options.states[0], options.out_dir, "STATE"), options.json)


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {"convert": _convert, "verify": _verify, "average": _average, "inspect": _inspect}


def _target(name: str, options: argparse.Namespace) -> Path:
    """Say what is to be written; raises UserError when it is there, and may not be replaced, or is no state."""
    folder = options.out_dir or os.environ.get("LMP_DATASETS") or Settings.out_dir
    name = plain(name) if plain(name).endswith(".lmp") else f"{plain(name)}.lmp"
    path = in_folder(name, folder)
    try:
        check_is_state(path)
    except NotAFile as error:
        raise UserError(f"TARGET {path}: {error.strerror}; give another name.") from None
    if path.exists() and not options.overwrite:
        raise UserError(f"TARGET {path}: is there already; give another name, or add --overwrite.")
    return path


def _shards(options: argparse.Namespace, kind: str) -> int | None:
    """Give the number of shards to write; None = a file."""
    return (options.shards or 1) if kind == "sharded" else None


def _described(path: Path) -> str:
    """Say how large a state is."""
    shards = f" in {counted(sum(1 for _ in path.glob('shard-*.safetensors')), 'shard')}" if path.is_dir() else ""
    return f"{size_of(path):,} bytes{shards}"
