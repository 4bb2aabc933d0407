"""The table of flags: name, default, limits, help, the plan keys that share them, and what happens when one changes on resuming.

Command line, settings files, plan keys, checkpoints (what differs) and `lmp_plotstats` (which settings to compare) all read this table.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from .. import words
from ..cadence import AUTO, SAVE_SHARE, VALIDATION_SHARE, check_interval
from .names import CODE, OPTIMIZERS, in_words
from .recipes import RECIPES

# In tokens: it holds a prompt (half of it at most), an end token, and the longest character of UTF-8, which takes four.
SMALLEST_CONTEXT = 16
# The keys of a stage whose values may change over it, by parts of a schedule, and the lowest value of each.
CHANGING = {"batch_size": 1, "context_len": SMALLEST_CONTEXT, "weight_decay": 0}
# The largest whole number that any flag or key takes: more tokens than there are, and still exact as a float.
MOST = 10**15


@dataclass(frozen=True, repr=False, eq=False)
class Number:
    """A check of a number's range, for flags, settings files and plan keys alike; texts may have a suffix, see :func:`lmplay.words.number`.

    With `above`, `low` itself is excluded; with `below`, `high` is. `zero` says in plans what 0 means.
    """

    kind: type[int] | type[float]
    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False
    zero: str = ""

    def __call__(self, value: Any) -> Any:
        """Return the number; raises ValueError, saying what is allowed."""
        written = words.number(value) if isinstance(value, str) else None
        try:
            number = self.kind(value if written is None or written != self.kind(written) else written)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(self.allowed) from None
        if self.kind is int and number > min(self.high, MOST):
            raise ValueError(self.allowed if self.high < math.inf else f"{self.allowed}, at most {MOST:,}")
        exact = isinstance(value, str) or (not isinstance(value, bool) and number == value)
        outside = number < self.low or number > self.high or (self.above and number == self.low) or (self.below and number == self.high)
        if not exact or not math.isfinite(number) or outside:
            raise ValueError(self.allowed)
        return number

    @property
    def allowed(self) -> str:
        """The range in words."""
        high = "" if self.high == math.inf else f" to {'below ' * self.below}{self.high:,}"
        return f"{self._word} {'above' if self.above else 'from'} {self.low:g}{high}"

    @property
    def allowed_in_plan(self) -> str:
        """The range in the words of plans."""
        return self.allowed if self.above or self.high < math.inf else f"{self._word}, {self.low:g}{self.zero} or more"

    @property
    def limits(self) -> dict[str, float]:
        """The range as arguments of :func:`pydantic.Field`."""
        limit = min(self.high, MOST) if self.kind is int else self.high
        return {"gt" if self.above else "ge": self.low} | ({} if limit == math.inf else {"lt" if self.below else "le": limit})

    @property
    def _word(self) -> str:
        return "a whole number" if self.kind is int else "a number"


def choice(allowed: Collection[str], code: re.Pattern[str] | None = None) -> Callable[[Any], str]:
    """Make a check that takes one of a few words (its `words`, for the shell to complete), or the name of a class, if there is a pattern for it."""
    def check(value: Any) -> str:
        if value not in list(allowed) and not (code and isinstance(value, str) and code.fullmatch(value)):
            raise ValueError(f"one of {', '.join(allowed)}" + ", or module:Class" * (code is not None))
        return str(value)

    check.words = tuple(allowed)  # type: ignore[attr-defined]
    return check


def matching(pattern: str, allowed: str, *kinds: type) -> Callable[[Any], str]:
    """Make a check that takes texts (and values of other kinds) that match a pattern; `allowed` says so in words."""
    def check(value: Any) -> str:
        if type(value) not in (str, *kinds) or not re.fullmatch(pattern, str(value), re.DOTALL):
            raise ValueError(allowed)
        return str(value)

    return check


def names(value: Any) -> str:
    """Take names with commas between them, or a list of them."""
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(isinstance(name, str) and name for name in listed):
        raise ValueError("names with commas between them")
    return ",".join(listed)


def switch(value: Any) -> bool:
    """Take true or false (settings files only; on the command line a switch stands alone)."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _count_or(word: str) -> Callable[[Any], int | str]:
    """Make a check that takes a whole number from 1, or a word."""
    def check(value: Any) -> int | str:
        try:
            return word if value == word else Number(int, 1)(value)
        except ValueError as allowed:
            raise ValueError(f"{allowed}, or {word}") from None

    return check


def _precision(value: Any) -> bool | str:
    """Take off (False), on (True), or a type of numbers."""
    known: dict[str | bool, bool | str] = {"off": False, "on": True, False: False, True: True, "bfloat16": "bfloat16", "float16": "float16"}
    if not isinstance(value, (str, bool)) or value not in known:
        raise ValueError("off, on, bfloat16 or float16")
    return known[value]


def _sharding(value: Any) -> bool | str:
    """Take off (False), on (True), or node."""
    known: dict[str | bool, bool | str] = {"off": False, "on": True, False: False, True: True, "node": "node"}
    if not isinstance(value, (str, bool)) or value not in known:
        raise ValueError("off, on or node")
    return known[value]


def _blocks(value: Any) -> int:
    """Take off (0), on (1), or N, a whole number from 0."""
    known = {"off": 0, "on": 1, False: 0, True: 1}  # YAML reads off and on as false and true
    try:
        return known[value] if isinstance(value, (str, bool)) and value in known else int(Number(int, 0)(value))
    except ValueError as allowed:
        raise ValueError(f"off, on, or {allowed}") from None


def _two_betas(value: Any) -> tuple[float, float]:
    """Take two numbers with a comma between them, or a list of two."""
    try:
        first, second = (Number(float, 0, 1, below=True)(part) for part in (value.split(",") if isinstance(value, str) else value))
    except (TypeError, ValueError):
        raise ValueError("two numbers from 0 to below 1 with a comma between them, such as 0.9,0.95") from None
    return first, second


def _taken(setting: str) -> str:
    """Say which optimizers take a setting."""
    return f"for {in_words([row.name for row in OPTIMIZERS.values() if setting in row.takes])}"


class Change(Enum):
    """What happens when a run resumes from a checkpoint that has another value."""

    TOLD = "the change is told at the start"
    BITS = "the change is told at the start; only the order of sums differs, so bits may differ"
    BY_STAGE = "the change is told for each stage to come whose value differs, flags and plan taken together"
    KEPT = "the checkpoint's value is used; a flag with another value is refused"
    LOCKED = "the model's value is used; a flag with another value is refused, another one in the plan is told"
    SILENT = "nothing is told: it does not change what is trained, or the plan is compared instead"
    ASIDE = "nothing is told, and `lmp_plotstats` does not compare it between runs: it only says where, for how long, or what is shown"


class Flag(NamedTuple):
    """A row of the table.

    `check` returns the value as it is used, or raises ValueError, saying what is allowed; `keys` holds its titles as a plan key by where the key may be: in a
    `stage` and `$defaults`, in `$model` (`model`), or at the `top`.
    """

    name: str
    default: Any
    group: str
    check: Callable[[Any], Any]
    unit: str
    help: str
    change: Change
    keys: dict[str, str]


T = TypeVar("T")


def _flag(default: T, group: str, check: Callable[[Any], Any], unit: str, help: str, change: Change = Change.TOLD, **keys: str) -> T:
    """Make a field of :class:`Options` that carries a row of the table; its name is the field's."""
    return field(default=default, metadata={"flag": Flag("", default, group, check, unit, help, change, keys)})


_text, _from_0, _from_1 = matching(".+", "a text"), Number(int, 0), Number(int, 1)
_time = matching(r"auto|\d+:[0-5]\d:[0-5]\d", "HH:MM:SS, such as 12:30:00, or auto")
_duration = matching(r"(?=\d)(\d+h)?(\d+m)?(\d+s)?", "a time such as 30m, 2h or 1h30m")
_picture = matching(r".*\.(png|svg|pdf)", "a file that ends in .png, .svg or .pdf")
_batch_number = matching(r"(.+:)?0*[1-9]\d*", "N or STAGE:N, with N from 1", int)
_M, _P, _T, _O, _D, _R, _W = GROUPS = ("model", "plan and data", "training", "optimizer", "device and speed", "run", "watching")
_BITS, _BY_STAGE, _KEPT, _LOCKED, _SILENT, _ASIDE = Change.BITS, Change.BY_STAGE, Change.KEPT, Change.LOCKED, Change.SILENT, Change.ASIDE
_MINI_BATCH = 4  # pieces
_DECAYS = ", ".join(f"{row.name} {row.weight_decay:g}" for row in OPTIMIZERS.values() if row.weight_decay)
_OPTIMIZERS = in_words([*OPTIMIZERS, "a class of a package (module:Class)"]) + "; docs/optimizers.md says what they are good for"


@dataclass(frozen=True, init=False, repr=False, eq=False)  # Settings has these methods, and making them takes a moment
class Options:
    """The table: a field for each flag of `lmp_trainer`, in the order of `--help`, with the program's default."""

    exp: str = _flag("gpt2ish", _M, _text, "NAME", "experiment, a named model family; `list` shows all", _LOCKED, model="Experiment")
    num_blocks: int = _flag(6, _M, Number(int, 1, 10_000), "BLOCKS", "transformer blocks of a new model", _LOCKED, model="Blocks")
    embed_dim: int = _flag(768, _M, Number(int, 1, 1_000_000), "NUMBERS", "width of a new model, a multiple of --num-heads", _LOCKED, model="Width")
    num_heads: int = _flag(12, _M, Number(int, 1, 1_000_000), "HEADS", "attention heads of a block of a new model", _LOCKED, model="Attention heads")
    params: int | None = _flag(None, _M, Number(int, 1000), "NUMBER", "parameters of a new model, such as 10M; chooses its blocks, width and heads", _KEPT)
    context_len: int = _flag(1024, _M, Number(int, SMALLEST_CONTEXT), "TOKENS", "longest piece a new model can read; if typed, it also overrides the stages' "
                             "context_len", _BY_STAGE, stage="Longest piece in tokens", model="Context length in tokens")
    dropout: float = _flag(0.1, _M, Number(float, 0, 1, below=True), "SHARE", "share of activations a new model drops while training", _LOCKED, model="Dropout")
    tied_head: bool = _flag(True, _M, switch, "", "head and token embedding of a new model share their weights", _LOCKED,
                            model="Share the weights of embedding and head")
    tokenizer: str | None = _flag(
        None, _M, _text, "NAME", "tokenizer of a new model: a hub name, a folder with tokenizer files, a `.model` of SentencePiece, a `.tiktoken`, the "
        "`.lmp` of a model that has it, `bytes`, or `train:N` (N tokens, learned from the plan's text); by default gpt2 where the plan reads from the hub, "
        "else train:8192", _LOCKED,
        top="Tokenizer of a new model")
    model: str | None = _flag(None, _M, _text, "FILE", "checkpoint to continue, or to create; without a folder it is in --out-dir; by default "
                              "<exp>_model.lmp", _ASIDE)
    initial_model: str | None = _flag(None, _M, _text, "FILE", "start from the weights and tokenizer of a checkpoint, a folder or hub name of "
                                      "transformers, or a ckpt.pt of nanoGPT", _SILENT)
    training_plan: str = _flag("default", _P, _text, "NAME", "built-in plan or a JSON or YAML file; `list` shows the built-in ones", _SILENT)
    dataset: str | None = _flag(None, _P, _text, "PATH", "instead of a plan: one stage over a file, folder, glob, hub name, or builtin:tales (10,000 of them)",
                                _SILENT)
    continuation: str = _flag("exact", _P, choice(("exact", "estimate")), "HOW", "long texts are cut by counting tokens (exact) or also at 1.5 tokens a word "
                              "(estimate)", _KEPT)
    save_datasets: bool = _flag(False, _P, switch, "", "save the plan's hub data sets for use without a network, and end", _SILENT)
    data_workers: int = _flag(1, _P, Number(int, 0, 256), "NUMBER", "how batches are prepared ahead of the step: 0 = off, 1 = a thread, N = a thread and "
                              "N processes that tokenize; changes speed, not the result; if not given, 2 for an NVIDIA GPU if there are at "
                              "least 4 cores", _ASIDE)
    accept_changed_data: bool = _flag(False, _P, switch, "", "continue although the data of a stage that has begun differs from the checkpoint", _SILENT)
    out_dir: str = _flag("out_gpt", _P, _text, "FOLDER", "where models, statistics and data sets go; by default $LMP_DATASETS, else out_gpt", _ASIDE)
    recipe: str | None = _flag(None, _T, choice(RECIPES), "NAME", "settings of model, optimizer, schedule and batch that go together: "
                               f"{in_words([*RECIPES])}; flags override it", _KEPT)
    train_for: str | None = _flag(None, _T, _duration, "TIME", "training time for a new model, such as 30m or 1h30m: measures the speed of several sizes, "
                                  "chooses a size and its tokens, and prints the table; for a plan of one stage", _KEPT)
    batch_size: int = _flag(50, _T, _from_1, "PIECES", "pieces of an optimizer step; changes the result", _BY_STAGE, stage="Pieces per optimizer step")
    mini_batch_size: int | str = _flag(
        _MINI_BATCH, _T, _count_or("auto"), "PIECES", "pieces that go through the device at once; changes speed and memory, not the result (except the random "
        "numbers of dropout); `auto`: the fastest that fit, measured in tokens at the start, and halved when memory runs out", _BITS)
    mini_batch_tokens: int = _flag(
        0, _T, _from_0, "TOKENS", f"the same in tokens, padding included: as many pieces as fit; if neither is given, the tokens of {_MINI_BATCH} pieces "
        "of full length", _BITS)
    pack: str = _flag("auto", _T, choice(("auto", "on", "off")), "WHEN", "pack the pieces of a mini-batch into one row instead of padding them to one length "
                      "(in half precision on a CPU each is padded to a multiple of 16 tokens); changes speed, not the result; auto: on a CPU, if not compiled; "
                      "on a GPU it needs --amp, and no dropout", _BITS)
    validation_batch_size: int = _flag(4, _T, _from_1, "PIECES", "pieces that go through the device at once in a validation; changes speed and memory, not "
                                       "the result; if only the training's number is given, validation uses that, too", _BITS)
    validation_samples: int | str = _flag(
        64, _T, _count_or("all"), "SAMPLES", "held-out samples of a validation, the same each time, or `all`; by default fewer where texts are long or the "
        "stage is short; the end of a stage judges 16 times as many")
    validation_seed: int = _flag(0, _T, Number(int, 0, 2**31), "NUMBER", "seed that chooses the held-out rows; separate from --seed, so that runs with other "
                                 "seeds are judged on the same samples", _KEPT)
    save_interval: int | str = _flag(
        AUTO, _T, check_interval, "INTERVAL", "save every N samples, or every 500steps, 1Mtokens, 10m; 0 = only at stage ends and stops; auto: every 10,000 "
        f"samples or 5 minutes, whichever comes first, but no more than {SAVE_SHARE:.0%} of the time".replace("%", "%%"))
    validation_interval: int | str = _flag(
        AUTO, _T, check_interval, "INTERVAL", "validate every N samples, or every 500steps, 1Mtokens, 10m (by the clock: the run cannot be repeated); 0 = only "
        f"at stage ends; auto: every 100 samples, at least 10 times in a stage, but no more than {VALIDATION_SHARE:.0%} of its work".replace("%", "%%"))
    accuracy_pieces: int = _flag(4, _T, _from_0, "PIECES", "measure the word accuracy of training on the first N pieces of each batch; more take longer")
    seed: int = _flag(0, _T, Number(int, 0, 2**31), "NUMBER", "seed of weights, dropout and data order", _KEPT)
    reset_history: bool = _flag(False, _T, switch, "", "start over with new weights; the old model file and statistics are kept under other names. To keep "
                                "the weights: --initial-model OLD --model NEW", _ASIDE)
    default_freeze: bool = _flag(False, _T, switch, "", "freeze every parameter that no pattern of a stage's `freeze` names")
    check_grads: bool = _flag(False, _T, switch, "", "after the first step of this run in each stage, list parameters whose gradient is missing (frozen ones "
                              "too), zero or not finite", _SILENT)
    lr: float = _flag(0.0006, _O, Number(float, 0, above=True), "RATE", "learning rate after the warm-up", _BY_STAGE, stage="Peak learning rate")
    lr_width: int = _flag(0, _O, Number(int, 0, zero=" (off)"), "WIDTH", "model width that --lr was tuned for: the learning rates of matrices are "
                          "scaled to the width of this model; 0 = off", _BY_STAGE, stage="Model width that the learning rate was tuned for")
    grad_clip: float = _flag(0.0, _O, Number(float, 0, zero=" (off)"), "NORM", "largest norm of a step's gradient; 0 = no limit", _BY_STAGE,
                             stage="Largest norm of the gradient")
    optimizer: str = _flag("adamw", _O, choice(OPTIMIZERS, CODE), "NAME", _OPTIMIZERS, _BY_STAGE, stage="Optimizer")
    betas: tuple[float, float] | None = _flag(None, _O, _two_betas, "A,B", "decay of the running means of the gradient and of its square "
                                              f"({_taken('betas')}); by default 0.9,0.999", _BY_STAGE)
    eps: float | None = _flag(None, _O, Number(float, 0, above=True), "NUMBER", f"added to the divisor of a step ({_taken('eps')}); by default 1e-8, for "
                              "adagrad 1e-10", _BY_STAGE)
    momentum: float | None = _flag(None, _O, Number(float, 0, 1, below=True), "SHARE", f"share of the step before in each step ({_taken('momentum')}); by "
                                   "default 0.9", _BY_STAGE)
    weight_decay: float | None = _flag(None, _O, Number(float, 0), "RATE", "weight decay, not on biases, norms and embeddings; by default the optimizer's: "
                                       f"{_DECAYS}, others 0", _BY_STAGE, stage="Weight decay")
    ema: float = _flag(0.0, _O, Number(float, 0, 1, below=True), "DECAY", "also keep a running average of the weights with this decay, such as 0.999; "
                       "validation, generation and export use the average; 0 = off", _KEPT)
    optimizer_warmup_fraction: float = _flag(0.1, _O, Number(float, 0, 1), "SHARE", "share of the learning rate that the warm-up of a stage starts with")
    optimizer_warmup_steps: int = _flag(40, _O, _from_0, "STEPS", "optimizer steps that the warm-up of a stage takes")
    disable_optimizer_warmup: bool = _flag(False, _O, switch, "", "no warm-up")
    ignore_optimizer: bool = _flag(False, _O, switch, "", "continue with the weights of a checkpoint and a new optimizer", _SILENT)
    device: str | None = _flag(None, _D, _text, "DEVICE", "cpu, cuda, cuda:N or mps; by default the first available of cuda, mps, cpu", _SILENT)
    amp: bool | str = _flag(False, _D, _precision, "TYPE", "mixed precision in bfloat16 or float16 (with a gradient scaler); without TYPE bfloat16 where the "
                            "device has it, else float16")
    amp_init_scale: float = _flag(65536.0, _D, Number(float, 0, above=True), "FACTOR", "initial scale of the gradient scaler (float16 only)")
    compile_model: bool = _flag(False, _D, switch, "", "compile the model with torch.compile: slower to start, faster to train", _BITS)
    compile_mode: str | None = _flag(None, _D, choice(("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")), "MODE",
                                     "mode of torch.compile", _BITS)
    compile_backend: str = _flag("inductor", _D, _text, "NAME", "backend of torch.compile", _BITS)
    activation_checkpointing: int = _flag(
        0, _D, _blocks, "off|on|N", "recompute the activations of each block (on) or of every N-th in the backward pass instead of keeping them: less memory, "
        "slower, the same result; 0 = off", _BITS)
    activation_memory_budget: float = _flag(
        1.0, _D, Number(float, 0, 1), "SHARE", "share of the memory for activations that compiled code may use; below 1 it recomputes the cheapest ones: less "
        "memory, slower (with --compile-model)", _BITS)
    shard: bool | str = _flag(False, _D, _sharding, "node", "divide weights, gradients and optimizer state over the processes (FSDP2), for models that "
                              "do not fit on one device; `node`: over the processes of each machine, with a copy on each machine", _BITS)
    shard_reduce_dtype: str = _flag("float32", _D, choice(("float32", "bfloat16")), "TYPE", "data type in which --shard sums gradients over processes; "
                                    "bfloat16 halves the traffic")
    matmul_precision: str = _flag("highest", _D, choice(("highest", "high", "medium")), "WHICH", "precision of float32 matrix products: faster where the "
                                  "device has TF32 (high) or bfloat16 (medium), with other results")
    deterministic: bool = _flag(False, _D, switch, "", "bit for bit the same result in each run on a GPU: only deterministic kernels; slower (a CPU "
                                "always gives the same bits)", _BITS)
    tune_allocator: bool = _flag(True, _D, switch, "", "on Linux: on a CPU keep freed memory for the next step instead of giving it back to the system; on "
                                 "a GPU let blocks of memory grow", _SILENT)
    checkpoint_format: str = _flag("file", _R, choice(("file", "sharded")), "FORMAT", "what a state is: a file, which one process writes, or a folder of "
                                   "shards (sharded), which all processes write at the same time, each its part: for large models with --shard", _ASIDE)
    keep: int = _flag(2, _R, Number(int, 0, 1000), "FILES", "older states of the model file that are kept beside it, to fall back on", _ASIDE)
    resume: str = _flag("latest", _R, _text, "WHICH", "what to go on from: latest, best (lowest validation loss), or a checkpoint file", _ASIDE)
    save_weights_only: str | None = _flag(None, _R, _text, "FILE", "at the end of the plan, also write the model without optimizer and history", _ASIDE)
    on_nonfinite: str = _flag("stop", _R, choice(("stop", "skip")), "WHAT", "when loss or gradient is not finite: stop before the update, or skip the batch "
                              "and count it")
    time_limit: str | None = _flag(None, _R, _time, "HH:MM:SS", "save and end with exit code 75 before the process has run for this time; "
                                   "`auto`: before the end of the SLURM job", _ASIDE)
    max_steps: int = _flag(0, _R, _from_0, "STEPS", "save and end with exit code 75 after N optimizer steps of this run; 0 = no limit", _ASIDE)
    max_samples_this_run: int = _flag(0, _R, _from_0, "SAMPLES", "save and end with exit code 75 after this run has trained on N samples; 0 = no limit", _ASIDE)
    describe: bool = _flag(False, _R, switch, "", "print the architecture, the parameters by part and the size of a step, and end", _ASIDE)
    inspect: str | None = _flag(None, _R, _text, "FILE", "print what a checkpoint holds, and end", _ASIDE)
    check_plan: bool = _flag(False, _R, switch, "", "print what the plan would read and cost, stage by stage, without training, and end", _ASIDE)
    plot_schedule: str | None = _flag(None, _R, _picture, "FILE", "draw learning rate, batch "
                                      "size, context length and weight decay over the samples of the plan into FILE, without training, and end", _ASIDE)
    find_lr: str | None = _flag(None, _R, _picture, "FILE", "try learning rates in short runs over the beginning of the first stage, draw "
                                "their losses into FILE, print a suggestion, and end", _ASIDE)
    show_samples: int = _flag(0, _R, _from_0, "NUMBER", "print the first N samples of each stage as the model will see them, and end", _ASIDE)
    show_batch: str | None = _flag(None, _R, _batch_number, "[STAGE:]N", "print the N-th batch of a stage (by default the first stage) and where its rows come "
                                   "from, and end", _ASIDE)
    json: bool = _flag(False, _R, switch, "", "print --check-plan, --inspect, --show-samples or --show-batch as JSON", _ASIDE)
    track: str | None = _flag(None, _W, names, "NAMES", "also send the figures to: csv, tensorboard, wandb, mlflow; several with commas between them", _ASIDE)
    callback: str | None = _flag(None, _W, names, "MODULE:CLASS", "also call your own class, a lmplay.track.callback.Callback; may be given several times",
                                 _ASIDE)
    track_project: str | None = _flag(None, _W, _text, "NAME", "project of Weights & Biases, experiment of MLflow; by default what WANDB_PROJECT and "
                                      "MLFLOW_EXPERIMENT_NAME say, else lmplay", _ASIDE)
    track_name: str | None = _flag(None, _W, _text, "NAME", "the run's name in trackers; by default WANDB_NAME, else the model file's", _ASIDE)
    track_tags: str | None = _flag(None, _W, names, "TAGS", "tags of the run in trackers, with commas between them: TAG or KEY=VALUE; by default what "
                                   "WANDB_TAGS and MLFLOW_TAGS say", _ASIDE)
    sample_prompts: str | None = _flag(
        None, _W, _text, "FILE", "at each validation let the model continue the prompts in FILE, one per line, an empty line = no prompt; after a tab a line "
        "may have the expected text, which the greedy text is compared with by words; the texts are appended to <out-dir>/NAME_samples.jsonl", _ASIDE)
    sample_tokens: int = _flag(100, _W, _from_1, "TOKENS", "write at most N tokens for each prompt of --sample-prompts", _ASIDE)
    sample_count: int = _flag(1, _W, _from_1, "TEXTS", "texts for each prompt of --sample-prompts", _ASIDE)
    sample_temperature: float = _flag(0.8, _W, Number(float, 0), "NUMBER", "temperature of --sample-prompts; 0 = always the most probable token", _ASIDE)
    profile: str | None = _flag(None, _W, matching(r".*\.json(\.gz)?", "a file that ends in .json or .json.gz"), "FILE", "write a trace of 5 steps to "
                                "FILE, and print where the time goes", _ASIDE)
    quiet: bool = _flag(False, _W, switch, "", "print only warnings, errors and the summary; NAME.log has the rest", _ASIDE)
    verbose: bool = _flag(False, _W, switch, "", "print more: versions, flags, the learning rate and every save", _ASIDE)
    log_json: bool = _flag(False, _W, switch, "", "each line on standard output is a JSON object: time, level, event, and its fields", _ASIDE)


# The flags that `--help` shows; `--help-all` has the others too.
BASIC = ("recipe", "exp", "num_blocks", "embed_dim", "num_heads", "context_len", "dropout", "model", "initial_model", "training_plan", "dataset", "out_dir",
         "batch_size", "mini_batch_size", "save_interval", "seed", "reset_history", "lr", "optimizer", "weight_decay", "grad_clip",
         "device", "amp", "time_limit", "check_plan", "show_samples", "describe", "quiet")
# What starts anew or goes back: it is done once, and left out where a command is repeated.
ONCE = ("reset_history", "ignore_optimizer", "accept_changed_data", "resume", "profile")
# Kept flags that files of older versions lack.
ADDED = ("validation_seed", "ema", "recipe", "params", "train_for")
# What is written into the plan that a record of settings has.
WRITTEN = ("recipe", "params", "train_for")
FLAGS: tuple[Flag, ...] = tuple(entry.metadata["flag"]._replace(name=entry.name) for entry in fields(Options))
