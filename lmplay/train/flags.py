"""The flags of `lmp_trainer`: one table, from which come the parser, the help, and the settings files.  Door; no heavy imports."""
from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..errors import UserError, nearest
from ..files import read_json_or_yaml, write_text
from ..plan.settings import Settings, setting_names


def _number(kind: type, low: float, high: float = math.inf, above: bool = False) -> Callable[[Any], Any]:
    """Make a check of a number's range, for flags and settings files alike."""
    word = "a whole number" if kind is int else "a number"
    allowed = f"{word} {'above' if above else 'from'} {low:g}" + (f" to {high:,}" if high < math.inf else "")

    def check(value: Any) -> Any:
        try:
            number = kind(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(allowed) from None
        exact = isinstance(value, str) or (not isinstance(value, bool) and number == value)
        if not exact or not math.isfinite(number) or number < low or number > high or (above and number == low):
            raise ValueError(allowed)
        return number

    return check


def _choice(*words: str) -> Callable[[Any], str]:
    """Make a check that takes one of a few words."""
    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return str(value)

    return check


def _text(value: Any) -> str:
    """Take a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("a text")
    return value


def _names(value: Any) -> str:
    """Take names with commas between them, or a list of them."""
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError("names with commas between them")
    return ",".join(names)


def _switch(value: Any) -> bool:
    """Take true or false (settings files only; on the command line a switch stands alone)."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _count_or_auto(value: Any) -> int | str:
    """Take a whole number from 1, or `auto`."""
    try:
        return "auto" if value == "auto" else _number(int, 1)(value)
    except ValueError as allowed:
        raise ValueError(f"{allowed}, or auto") from None


def _blocks(value: Any) -> int:
    """Take off, on, or a whole number from 0: of blocks, every so many."""
    words = {"off": 0, "on": 1, False: 0, True: 1}  # YAML reads off and on as false and true
    try:
        return words[value] if isinstance(value, (str, bool)) and value in words else int(_number(int, 0)(value))
    except ValueError as allowed:
        raise ValueError(f"off, on, or {allowed}") from None


def _time(value: Any) -> str:
    """Take HH:MM:SS, or `auto`."""
    if value != "auto" and not (isinstance(value, str) and re.fullmatch(r"\d+:[0-5]\d:[0-5]\d", value)):
        raise ValueError("HH:MM:SS, such as 12:30:00, or auto")
    return str(value)


def _batch_number(value: Any) -> str:
    """Take N or STAGE:N, with N from 1."""
    if not re.fullmatch(r"(.+:)?0*[1-9]\d*", str(value)) or isinstance(value, (bool, float)):
        raise ValueError("N or STAGE:N, with N from 1")
    return str(value)


@dataclass(frozen=True)
class Flag:
    """A row of the table."""

    group: str
    name: str
    check: Callable[[Any], Any]
    unit: str
    help: str


_M, _P, _T, _O, _D, _R, _W = "model", "plan and data", "training", "optimizer", "device and speed", "run", "watching"
FLAGS = (
    Flag(_M, "exp", _text, "NAME", "experiment, a named model family; `list` shows all"),
    Flag(_M, "num_blocks", _number(int, 1), "BLOCKS", "transformer blocks of a new model"),
    Flag(_M, "embed_dim", _number(int, 1), "NUMBERS", "width of a new model, a multiple of --num-heads"),
    Flag(_M, "num_heads", _number(int, 1), "HEADS", "attention heads of a block of a new model"),
    Flag(_M, "context_len", _number(int, 16), "TOKENS", "longest piece a new model can read; if typed, it also goes before the stages' context_len"),
    Flag(_M, "dropout", _number(float, 0, 0.99), "SHARE", "share of activations a new model drops while training"),
    Flag(_M, "tied_head", _switch, "", "head and token embedding of a new model share their weights"),
    Flag(_M, "tokenizer", _text, "NAME", "tokenizer of a new model: a hub name, a folder with tokenizer files, `bytes`, or `train:N` (N tokens, "
         "learned from the plan's text); by default gpt2 where the plan reads from the hub, else train:8192"),
    Flag(_M, "model", _text, "FILE", "checkpoint to go on with, or to make; by default <out-dir>/<exp>_model.lmp"),
    Flag(_M, "initial_model", _text, "FILE", "checkpoint whose weights and tokenizer a new model starts with; never written"),
    Flag(_P, "training_plan", _text, "NAME", "built-in plan or a JSON or YAML file; `list` shows the built-in ones"),
    Flag(_P, "dataset", _text, "PATH", "instead of a plan: one stage over a file, folder, glob, hub name, or builtin:tales (10,000 of them)"),
    Flag(_P, "continuation", _choice("exact", "estimate"), "HOW", "long texts are cut by counting tokens (exact) or also at 1.5 tokens a word (estimate)"),
    Flag(_P, "save_datasets", _switch, "", "save the plan's hub data sets for use without a network, and end"),
    Flag(_P, "data_workers", _number(int, 0, 256), "NUMBER", "what prepares batches ahead of the step: 0 = nothing, 1 = a thread, N = a thread and N processes "
         "that tokenize; changes speed, not the result"),
    Flag(_P, "accept_changed_data", _switch, "", "go on although the data of a begun stage has changed since the checkpoint"),
    Flag(_P, "out_dir", _text, "FOLDER", "where models, statistics and data sets go; by default $LMP_DATASETS, else out_gpt"),
    Flag(_T, "batch_size", _number(int, 1), "PIECES", "pieces of an optimizer step; changes the result"),
    Flag(_T, "mini_batch_size", _count_or_auto, "PIECES", "pieces that go through the device at once; changes speed and memory, not the result "
         "(but for the random numbers of dropout); `auto`: the fastest that fit, measured in tokens at the start, and halved when memory runs out"),
    Flag(_T, "mini_batch_tokens", _number(int, 0), "TOKENS", "the same in tokens: as many pieces as fit, with their padding; by default the room of "
         "--mini-batch-size full pieces, if that is not given either"),
    Flag(_T, "pack", _choice("auto", "on", "off"), "WHEN", "put the pieces of a mini-batch one behind the other, without padding; changes speed, not the "
         "result; auto: on a CPU, if not compiled"),
    Flag(_T, "validation_batch_size", _number(int, 1), "SAMPLES", "held-out samples of a validation; the one that ends a stage takes 16 times as many"),
    Flag(_T, "save_interval", _number(int, 0), "SAMPLES", "save each time so many samples have been trained on; 0 = only at stage ends and stops"),
    Flag(_T, "validation_interval", _number(int, 0), "SAMPLES", "validate each time so many samples have been trained on; 0 = only at stage ends"),
    Flag(_T, "seed", _number(int, 0, 2**31), "NUMBER", "seed of weights, dropout, order and held-out rows"),
    Flag(_T, "reset_history", _switch, "", "start anew: an existing model file is kept under another name and not used"),
    Flag(_T, "default_freeze", _switch, "", "freeze every parameter that no pattern of a stage's `freeze` names"),
    Flag(_T, "check_grads", _switch, "", "after the first step of each stage, list parameters whose gradient is missing, zero or not finite"),
    Flag(_O, "lr", _number(float, 0, above=True), "RATE", "learning rate after the warm-up"),
    Flag(_O, "grad_clip", _number(float, 0), "NORM", "largest norm of a step's gradient; 0 = no limit"),
    Flag(_O, "optimizer", _choice("adamw", "adam", "adagrad", "sgd", "rmsprop"), "NAME", "adamw, adam, adagrad, sgd (momentum 0.9) or rmsprop"),
    Flag(_O, "weight_decay", _number(float, 0), "RATE", "weight decay, not on biases, norms and embeddings; by default the optimizer's: adamw 0.01, others 0"),
    Flag(_O, "optimizer_warmup_fraction", _number(float, 0, 1), "SHARE", "share of the learning rate that the warm-up of a stage starts with"),
    Flag(_O, "optimizer_warmup_steps", _number(int, 0), "STEPS", "optimizer steps that the warm-up of a stage takes"),
    Flag(_O, "disable_optimizer_warmup", _switch, "", "no warm-up"),
    Flag(_O, "ignore_optimizer", _switch, "", "go on with the weights of a checkpoint and a fresh optimizer"),
    Flag(_D, "device", _text, "DEVICE", "cpu, cuda, cuda:N or mps; by default the first there is of cuda, mps, cpu"),
    Flag(_D, "amp", _switch, "", "mixed precision: bfloat16 where the device has it, else float16 with a gradient scaler"),
    Flag(_D, "amp_init_scale", _number(float, 0, above=True), "FACTOR", "what the gradient scaler starts with (float16 only)"),
    Flag(_D, "compile_model", _switch, "", "compile the model with torch.compile: slower to start, faster to train"),
    Flag(_D, "compile_mode", _choice("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"), "MODE", "mode of torch.compile"),
    Flag(_D, "compile_backend", _text, "NAME", "backend of torch.compile"),
    Flag(_D, "activation_checkpointing", _blocks, "off|on|N", "do not keep what each block (on) or every N-th computes, but compute it again in the "
         "backward pass: less memory, slower, the same result; 0 = off"),
    Flag(_D, "activation_memory_budget", _number(float, 0, 1), "SHARE", "of the memory for activations that compiled code may use; below 1 it computes the "
         "cheapest ones again: less memory, slower (with --compile-model)"),
    Flag(_D, "matmul_precision", _choice("highest", "high", "medium"), "WHICH", "of float32 matrix products: faster where the device has TF32 (high) or "
         "bfloat16 (medium), with other results"),
    Flag(_D, "tune_allocator", _switch, "", "on a CPU (Linux), keep freed memory for the next step instead of giving it back to the system"),
    Flag(_R, "keep", _number(int, 0, 1000), "FILES", "older states of the model file that are kept beside it, to fall back on"),
    Flag(_R, "resume", _text, "WHICH", "what to go on from: latest, best (lowest validation loss), or a checkpoint file"),
    Flag(_R, "save_weights_only", _text, "FILE", "at the end of the plan, also write the model without optimizer and history"),
    Flag(_R, "on_nonfinite", _choice("stop", "skip"), "WHAT", "when loss or gradient is not finite: stop before the update, or skip the batch and count it"),
    Flag(_R, "time_limit", _time, "HH:MM:SS", "save and end with exit code 75 before this time since the start of the process has passed; `auto`: before the "
         "end of the SLURM job"),
    Flag(_R, "max_steps", _number(int, 0), "STEPS", "save and end with exit code 75 after so many optimizer steps of this run; 0 = no limit"),
    Flag(_R, "max_samples_this_run", _number(int, 0), "SAMPLES", "save and end with exit code 75 once this run has trained on so many samples; 0 = no limit"),
    Flag(_R, "describe", _switch, "", "print the architecture, the parameters by part and the size of a step, and end"),
    Flag(_R, "inspect", _text, "FILE", "print what a checkpoint holds, and end"),
    Flag(_R, "check_plan", _switch, "", "print what the plan would read and cost, stage by stage, without training, and end"),
    Flag(_R, "show_samples", _number(int, 0), "NUMBER", "print the first samples of each stage as the model will see them, and end"),
    Flag(_R, "show_batch", _batch_number, "[STAGE:]N", "print the N-th batch of a stage (the first, if not named) and where its rows come from, and end"),
    Flag(_R, "json", _switch, "", "print --check-plan, --inspect, --show-samples or --show-batch as JSON"),
    Flag(_W, "track", _names, "NAMES", "also send the figures to: csv, tensorboard, wandb, mlflow; several with commas between them"),
    Flag(_W, "callback", _names, "MODULE:CLASS", "also tell a class of yours, a lmplay.track.callback.Callback; may be given several times"),
    Flag(_W, "sample_prompts", _text, "FILE", "at each validation let the model go on with the prompts in FILE, one a line, an empty line = from nothing; "
         "what it writes is appended to <out-dir>/NAME_samples.jsonl"),
    Flag(_W, "sample_tokens", _number(int, 1), "TOKENS", "write no more than so many for each prompt of --sample-prompts"),
    Flag(_W, "quiet", _switch, "", "say warnings, errors and the summary only; NAME.log has the rest"),
    Flag(_W, "verbose", _switch, "", "say more: every validation and every save"),
    Flag(_W, "log_json", _switch, "", "each line on standard output is a JSON object: time, level, event, and what belongs to it"),
)


class _Parser(argparse.ArgumentParser):
    """An argument parser whose faults are one clear line."""

    def error(self, message: str) -> NoReturn:
        """Refuse a command line."""
        raise UserError(f"{message}. `{self.prog} --help` lists the flags.")


def parse(argv: list[str]) -> tuple[Settings, str | None]:
    """Read a command line, and the settings file it names.

    :param argv: the arguments; flags may be written with - or _.
    :return: the settings, and the file that --dump-config asks for.
    :raises UserError: when a flag is unknown or its value is not allowed.
    """
    parser = _build_parser()
    known, unknown = parser.parse_known_args([_normal(word) for word in argv])
    if unknown:
        flags = [option for action in parser._actions for option in action.option_strings]
        wrong = [word for word in unknown if word.startswith("-")] or unknown  # the value behind an unknown flag is unknown too
        raise UserError(*(
            f"{word}: {'there is no such flag' if word.startswith('-') else 'is not the value of any flag'}.{nearest(word, flags)} "
            f"`{parser.prog} --help` lists them." for word in wrong))
    typed = {name: value for name, value in vars(known).items() if value is not None}
    dump, use = typed.pop("dump_config", None), typed.pop("use_config", None)
    for flag in FLAGS:
        if flag.name in typed:
            try:
                typed[flag.name] = flag.check(typed[flag.name])
            except ValueError as allowed:
                raise UserError(f"--{_dashed(flag.name)} {typed[flag.name]}: allowed is {allowed}.") from None
    given = {**(read_settings(Path(use)) if use else {}), **typed}
    if "dataset" in typed and "training_plan" in typed:
        raise UserError("--dataset and --training-plan together: give one of them; --dataset stands for a plan of one stage.")
    if "dataset" in given and "training_plan" in given:  # one of them stands in the file, and what was typed wins
        if not typed.keys() & {"dataset", "training_plan"}:
            raise UserError(f"settings file {use}: has both dataset and training_plan; keep one of them.")
        given.pop("training_plan" if "dataset" in typed else "dataset")
    return _settings(given), dump


def read_settings(path: Path) -> dict[str, Any]:
    """Read a settings file (--use-config): an object of flags; it counts as typed, below the command line.

    :param path: a JSON or YAML file.
    :return: checked values by name.
    :raises UserError: with a line for each wrong key or value.
    """
    content = read_json_or_yaml(path, "settings file")
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"settings file {path}: found {type(content).__name__}, allowed is an object of flags, such as {{\"lr\": 0.0003}}.")
    table = {flag.name: flag for flag in FLAGS}
    faults, settings = [], {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in table:
            faults.append(f"settings file {path}, key '{key}': there is no such flag.{nearest(name, table)}")
            continue
        try:
            settings[name] = table[name].check(value)
        except ValueError as allowed:
            faults.append(f"settings file {path}, key '{key}': found {json.dumps(value, default=str)}, allowed is {allowed}.")
    if faults:
        raise UserError(*faults)
    return settings


def write_settings(settings: Settings, path: Path) -> None:
    """Write the flags that were given as a settings file (--dump-config); in YAML the other ones follow as comments.

    :param settings: the flags.
    :param path: written as YAML if it ends in .yaml or .yml, else as JSON.
    :raises UserError: when it cannot be written.
    """
    given = {name: getattr(settings, name) for name in setting_names() if name in settings.explicit}
    text = json.dumps(given, indent=2) + "\n"
    if path.suffix.lower() in (".yaml", ".yml"):
        import yaml

        rest = {name: getattr(settings, name) for name in setting_names() if name not in settings.explicit}
        defaults = yaml.safe_dump(rest, sort_keys=False).splitlines()
        text = (yaml.safe_dump(given, sort_keys=False) if given else "") + "\n".join(["# defaults:", *(f"# {line}" for line in defaults)]) + "\n"
    try:
        write_text(path, text)
    except OSError as error:
        raise UserError(f"--dump-config {path}: cannot be written ({error.strerror}).") from None


def _build_parser() -> _Parser:
    """Make the parser from the table."""
    parser = _Parser(prog="lmp_trainer", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="Pretrain a language model from a plan.\n\nWithout network: lmp_trainer --training-plan quickstart",
                     epilog="Ctrl+C saves and stops; the same command goes on. Exit codes: 0 plan complete, 130/143 stopped by Ctrl+C/SIGTERM, 75 by a\n"
                            "limit or SIGUSR2 (all with the state saved: run it again), 2 bad input, 1 training failed.")
    groups = {name: parser.add_argument_group(name) for name in (_M, _P, _T, _O, _D, _R, _W)}
    defaults = Settings()
    for flag in FLAGS:
        default = getattr(defaults, flag.name)
        option = f"--{_dashed(flag.name)}"
        if flag.check is _switch:
            told = f" (default: {'on' if default else 'off'})"
            groups[flag.group].add_argument(option, action=argparse.BooleanOptionalAction, default=None, help=flag.help + told)
        else:
            told = "" if default is None or flag.name == "out_dir" else f" (default: {default})"
            action = "append" if flag.check is _names else "store"
            groups[flag.group].add_argument(option, metavar=flag.unit, default=None, action=action, help=flag.help + told)
    groups[_R].add_argument("--use-config", metavar="FILE", help="read flags from a JSON or YAML file; flags on the command line win")
    groups[_R].add_argument("--dump-config", metavar="FILE", help="write the flags given as such a file, and end")
    return parser


def _settings(given: dict[str, Any]) -> Settings:
    """Fill in the default that the environment can change."""
    import os

    out_dir = given.get("out_dir") or os.environ.get("LMP_DATASETS") or Settings.out_dir
    return Settings(**{**given, "out_dir": out_dir}, explicit=frozenset(given))


def _normal(word: str) -> str:
    """Write a flag with dashes; its value stays as it is."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _dashed(name: str) -> str:
    """Write a setting's name as a flag."""
    return name.replace("_", "-")
