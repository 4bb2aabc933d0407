"""The flags of `lmp_trainer`: parser, help and settings files, made from the table `plan.options`.  No heavy imports."""
from __future__ import annotations

import argparse
import glob
import json
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..command_line import Parser
from ..documents import read_json_or_yaml
from ..errors import MOST_FAULTS, Faults, UserError, nearest
from ..files import write_text
from ..plan.names import CODE
from ..plan.options import BASIC, FLAGS, GROUPS, names, switch
from ..plan.settings import Settings
from ..plan.used import flags_of_record, is_record

_TABLE = {flag.name: flag for flag in FLAGS}


def parse(argv: list[str], faults: Faults | None = None) -> tuple[Settings, str | None]:
    """Read a command line, and the settings file it names; flags may be written with - or _.

    :param faults: gets the values that are not allowed, and flags that contradict each other, instead of being refused here; those flags are left out.
    :return: the settings, and the file that --dump-config asks for.
    :raises UserError: when a flag is unknown or its value is not allowed, flags contradict each other, or the file names code and is not trusted.
    """
    found = Faults() if faults is None else faults
    typed = {name: value for name, value in vars(_build_parser().read(argv)).items() if value is not None}
    dump, use, trusted = (typed.pop(name, None) for name in ("dump_config", "use_config", "trust_config"))
    for flag in FLAGS:
        if flag.name in typed:
            try:
                typed[flag.name] = flag.check(typed[flag.name])
            except ValueError as allowed:
                found.lines.append(f"--{_dashed(flag.name)} {typed.pop(flag.name)}: allowed is {allowed}.")
                found.left_out.add(flag.name)
    given, others = read_settings(Path(use)) if use else ({}, {})
    given |= typed
    if "optimizer" in given and "optimizer" not in typed and not trusted and CODE.fullmatch(given["optimizer"]):
        raise UserError(f"settings file {use}: has the optimizer {given['optimizer']}, and code of a file is run only if it is trusted: type --optimizer "
                        f"{given['optimizer']} yourself, or --trust-config, or take it out.")
    if "callback" in given and "callback" not in typed and not trusted:
        raise UserError(f"settings file {use}: has the callback {given['callback']}, and code of a file is run only if it is trusted: type --callback "
                        f"{given['callback']} yourself, or --trust-config, or take it out.")
    either = {"dataset", "training_plan"}
    if either <= given.keys() and not either <= typed.keys():  # one of them stands in the file, and what was typed wins
        if not either & typed.keys():
            raise UserError(f"settings file {use}: has both dataset and training_plan; keep one of them.")
        given.pop("training_plan" if "dataset" in typed else "dataset")
    out_dir = given.get("out_dir") or os.environ.get("LMP_DATASETS") or Settings.out_dir
    settings = Settings(**{**others, **given, "out_dir": out_dir}, explicit=frozenset(given), trusted=bool(trusted))
    found.lines += settings.conflicts()
    if faults is None:
        found.refuse()
    return settings, dump


def read_settings(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a settings file (--use-config): an object of flags, or the record of a run's settings, whose plan counts as typed too.

    :return: checked values by name, which count as typed, below the command line, and values of other flags, in place of their defaults.
    :raises UserError: with a line for each wrong key or value.
    """
    content, others = read_json_or_yaml(path, "settings file"), dict[str, Any]()
    if content is None:
        return {}, {}
    if is_record(content):
        content, others = flags_of_record(content)
        content["training_plan"] = str(path)
    if not isinstance(content, dict):
        raise UserError(f"settings file {path}: found {type(content).__name__}, allowed is an object of flags, such as {{\"lr\": 0.0003}}.")
    faults: list[str] = []
    typed, untyped = ({name: value for key, value in part.items() for name, value in _checked(path, str(key), value, faults)} for part in (content, others))
    if faults:
        raise UserError(*faults)
    return typed, untyped


def _checked(path: Path, key: str, value: Any, faults: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the flag that a key of a settings file stands for, with its checked value, or add to the faults."""
    name = key.replace("-", "_")
    if len(faults) > MOST_FAULTS:
        return
    if name not in _TABLE:
        faults.append(f"settings file {path}, key '{key}': there is no such flag.{nearest(name, _TABLE)}")
        return
    try:
        yield name, _TABLE[name].check(value)
    except ValueError as allowed:
        faults.append(f"settings file {path}, key '{key}': found {json.dumps(value, default=str)}, allowed is {allowed}.")


def write_settings(settings: Settings, path: Path) -> None:
    """Write the typed flags as a settings file (--dump-config): YAML if the path ends in .yaml or .yml, with the other flags as comments, else JSON.

    :raises UserError: when it cannot be written.
    """
    given, rest = ({flag.name: getattr(settings, flag.name) for flag in FLAGS if (flag.name in settings.explicit) is chosen} for chosen in (True, False))
    text = json.dumps(given, indent=2) + "\n"
    if path.suffix.lower() in (".yaml", ".yml"):
        import yaml

        comments = [f"# {line}\n" for line in ["defaults:", *yaml.safe_dump(rest, sort_keys=False).splitlines()]]
        text = "".join([yaml.safe_dump(given, sort_keys=False) if given else "", *comments])
    try:
        write_text(path, text)
    except OSError as error:
        raise UserError(f"--dump-config {path}: cannot be written ({error.strerror}).") from None


def flags_page() -> str:
    """Write docs/flags.md: every flag with its default."""
    lines = ["# Flags of lmp_trainer", "",
             "All flags with their defaults, as `lmp_trainer --help-all` has them. `-` and `_` are the same in a flag's name. A switch has a `--no-` form. "
             "What you type wins over",
             "the plan; a settings file (`--use-config`, JSON or YAML) counts as typed, below the command line. `--dump-config FILE` writes one from the flags "
             "given, `--use-config",
             "NAME_settings.json` repeats a run from its record ([checkpoint.md](checkpoint.md#settings)). This page is made from the table of flags."]
    actions = _build_parser().actions_by_group()
    for group in (*GROUPS, "help"):
        lines += ["", f"## {group[0].upper()}{group[1:]}", "", "| flag | default | what |", "| --- | --- | --- |"]
        lines += (_row(f"--{_dashed(flag.name)}", flag.unit, flag.default, flag.help) for flag in FLAGS if flag.group == group)
        lines += (_row("`, `".join(action.option_strings), action.metavar, False if action.const else action.default, action.help)
                  for action in actions[group] if action.dest not in _TABLE)
    return "\n".join([*lines, ""])


def _row(option: str, unit: Any, default: Any, told: str | None) -> str:
    """Write the row of a flag."""
    shown = ("on" if default else "off") if isinstance(default, bool) else "" if default in (None, argparse.SUPPRESS) else str(default)
    return f"| `{option}{f' {unit}' if unit else ''}` | {shown} | {told} |".replace("%%", "%").replace("off|on|N", "off, on, N")


def _build_parser() -> Parser:
    """Make the parser from the table."""
    parser = Parser(prog="lmp_trainer", usage="%(prog)s [flags]", formatter_class=argparse.RawDescriptionHelpFormatter,
                    description="Pretrain a language model from a plan.\n\nWithout network: lmp_trainer --training-plan quickstart",
                    epilog="Ctrl+C saves and stops; the same command goes on. Exit codes: 0 plan complete, 130/143 stopped by Ctrl+C/SIGTERM, 75 by a\n"
                           "limit or SIGUSR2 (all with the state saved: run it again), 2 bad input, 1 training failed.")
    groups = {name: parser.add_argument_group(name) for name in GROUPS}
    for flag in FLAGS:
        option = f"--{_dashed(flag.name)}"
        if flag.check is switch:
            told = f" (default: {'on' if flag.default else 'off'})"
            groups[flag.group].add_argument(option, action=argparse.BooleanOptionalAction, default=None, help=flag.help + told)
        elif isinstance(flag.default, bool):  # a switch that takes a value, too
            groups[flag.group].add_argument(option, nargs="?", const=True, metavar=flag.unit, default=None, help=f"{flag.help} (default: off)")
            groups[flag.group].add_argument(f"--no-{option[2:]}", dest=flag.name, action="store_false", default=None, help=argparse.SUPPRESS)
        else:
            told = "" if flag.default is None or flag.name == "out_dir" else f" (default: {flag.default})"
            action = "append" if flag.check is names else "store"
            made = groups[flag.group].add_argument(option, metavar=flag.unit, default=None, action=action, help=flag.help + told)
            made.completer = _COMPLETERS.get(flag.name) or partial(_words, getattr(flag.check, "words", ()))  # type: ignore[attr-defined]
    parser.further = {flag.name for flag in FLAGS} - {*BASIC} | {"trust_config", "dump_config"}
    groups["run"].add_argument("--use-config", metavar="FILE", help="read flags from a JSON or YAML file; flags on the command line win")
    groups["run"].add_argument("--trust-config", action="store_true", default=None, help="run the code that a file names: the "
                               "optimizer and callback of --use-config, the optimizers and rewards of a plan")
    groups["run"].add_argument("--dump-config", metavar="FILE", help="write the flags given as such a file, and end")
    return parser


def _words(words: Iterable[str], **_: Any) -> list[str]:
    """List what the shell may complete the value of a flag to."""
    return list(words)


def _experiments(**_: Any) -> list[str]:
    """List the experiments, for the shell."""
    from ..exp import experiments

    return ["list", *experiments()]


def _plans(prefix: str = "", **_: Any) -> list[str]:
    """List the built-in plans and the files that may be one, for the shell."""
    from ..plan.load import list_plans

    return ["list", *(name for name, _ in list_plans()), *(path for end in ("json", "yaml", "yml") for path in glob.glob(f"{glob.escape(prefix)}*.{end}"))]


_COMPLETERS = {"exp": _experiments, "training_plan": _plans}


def _dashed(name: str) -> str:
    """Write a setting's name as a flag."""
    return name.replace("_", "-")
