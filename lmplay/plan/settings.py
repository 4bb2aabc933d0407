"""The settings of a run, with where each came from, and what they mean for a stage.  No torch.

Precedence: what the user typed (on the command line or in a settings file) > stage > `$defaults` (already merged into the stages) > the program's default.
"""
from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, nearest_word
from ..files import NotAFile, check_is_state, is_state
from ..launch import launch
from ..paths import expanded, in_folder, plain
from ..words import seconds_of
from .catalog import DATA_SUFFIXES
from .names import CODE, DEFAULT_OBJECTIVE, OBJECTIVES, OPTIMIZER_SETTINGS, OPTIMIZERS, RESERVED_ENDING
from .options import CHANGING, FLAGS, Options
from .recipes import RECIPES

if TYPE_CHECKING:
    from .schedules import Chain
    from .schema import Plan, Stage
    from .training_keys import OptimizerRule

# The flags that shape a new model, and so can stand in a plan's `$model`.
MODEL_KEYS = tuple(flag.name for flag in FLAGS if "model" in flag.keys and flag.name != "exp")
# Endings of files of other kinds: such a name is not that of a model. A dot before anything else is a part of the name (`dropout0.1`).
_OTHER_FILES = (*DATA_SUFFIXES, ".yaml", ".yml", ".toml", ".py", ".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".gguf", ".onnx", ".pkl", ".npz", ".h5",
                ".png", ".log", ".zip", ".tar")
# The flags that show something and end; those of them that write JSON on request.
_LOOKS = ("save_datasets", "describe", "plot_schedule", "find_lr", "check_plan", "inspect", "show_samples", "show_batch")
_AS_JSON = ("check_plan", "inspect", "show_samples", "show_batch")


@dataclass(frozen=True)
class Settings(Options):
    """All flags of `lmp_trainer`, resolved, and the names of those that were typed on the command line or stand in a settings file (`explicit`).

    `trusted` says that code which files name may be run.
    """

    explicit: frozenset[str] = field(default=frozenset())
    trusted: bool = False

    @property
    def first_mini_batch(self) -> int:
        """The mini-batch size to begin with: with `auto`, which is measured in training, the default."""
        return Settings.mini_batch_size if isinstance(self.mini_batch_size, str) else self.mini_batch_size  # type: ignore[return-value]

    @property
    def divides_model(self) -> bool:
        """Whether each of several processes holds a part of the model (`--shard`)."""
        return bool(self.shard) and launch().size > 1

    def token_budget(self, context_len: int) -> int:
        """Return the tokens that a mini-batch may hold, padding included: by default those of `mini_batch_size` full pieces; 0 = count pieces instead."""
        if self.mini_batch_tokens or ("mini_batch_size" in self.explicit and self.mini_batch_size != "auto"):
            return self.mini_batch_tokens
        return self.first_mini_batch * context_len

    def validation_budget(self, context_len: int, training: int) -> int:
        """Return the tokens that a mini-batch of a validation may hold: those of `validation_batch_size` full pieces.

        :param training: those of a mini-batch in training (0 = it counts pieces); used when only the training's size was typed.
        """
        typed = {"mini_batch_size", "mini_batch_tokens"} & self.explicit and "validation_batch_size" not in self.explicit
        return training if typed else self.validation_batch_size * context_len

    @property
    def datasets_folder(self) -> Path:
        """The folder of data sets."""
        return expanded(self.out_dir) / "datasets"

    def experiment(self, plan: Plan) -> str:
        """Choose the experiment of a new model: a typed flag, the plan's, or the default."""
        return self.exp if "exp" in self.explicit else plan.model.exp or self.exp

    def model_file(self, plan: Plan) -> Path:
        """Choose the model file; raises UserError when `--model` cannot be one."""
        if self.model is not None:
            path, given = expanded(self.model), plain(self.model)
            is_folder = path.is_dir() and (os.path.dirname(self.model) != "" or path.name in ("", ".."))  # a name may be that of a folder of data, too
            is_folder = is_folder and not (path.suffix == ".lmp" and is_state(path))
            if is_folder or path.suffix.lower() in _OTHER_FILES:
                raise UserError(f"--model {self.model}: {'is a folder' if is_folder else 'is not a name of a model file'}; give one that ends in .lmp.")
            name = path.name.removesuffix(".lmp")
            if RESERVED_ENDING.fullmatch(name.rpartition(".")[2] if "." in name else ""):
                raise UserError(f"--model {self.model}: its ending is kept for files that a run writes beside its model's; rename the file, or go on from it "
                                "in a model of another name with --resume.")
            return path.with_name(f"{name}.lmp") if os.path.dirname(given) else self.file(f"{name}.lmp")
        experiment = self.experiment(plan)
        kind, _, source = experiment.partition(":")
        name = "_".join(filter(None, (kind, re.sub(r"[^\w.-]+", "_", Path(source).name)))) if source else experiment  # `hf:owner/name` is hf_name
        return expanded(self.out_dir) / f"{name}_model.lmp"

    def file(self, name: str) -> Path:
        """Say where a model file is that a flag names, see :func:`lmplay.paths.in_folder`."""
        return in_folder(name, self.out_dir)

    def found(self, name: str) -> Path:
        """Find a model file that a flag names, with or without .lmp."""
        path = self.file(name)
        return path if path.suffix.lower() in (".lmp", *_OTHER_FILES) or is_state(path) else self.file(f"{plain(name)}.lmp")

    def model_args(self, plan: Plan, own: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
        """Choose the arguments of a new model: typed flags win over the plan's `$model`, which wins over the experiment's own defaults, then the flags'.

        :param own: the experiment's defaults, of which those that are flags are taken: the others stay the constructor's.
        :return: arguments by name, and the names that somebody asked for (the others, also those of a recipe, are left out where a model doesn't accept them).
        """
        in_plan = plan.model.model_dump(exclude_none=True, exclude={"exp", "settings"}) | (plan.model.settings or {})
        typed = {name: getattr(self, name) for name in MODEL_KEYS if name in self.explicit}
        chosen = {**{name: own[name] for name in MODEL_KEYS if name in own}, **in_plan, **typed}
        of_recipe = RECIPES[self.recipe].model.keys() if self.recipe is not None else set()
        return {**{name: getattr(self, name) for name in MODEL_KEYS}, **chosen}, set(chosen) - (of_recipe - typed.keys())

    def typed_conflicts(self, args: dict[str, Any]) -> list[str]:
        """List the typed model flags that a checkpoint's model contradicts, as "--embed-dim 512 (the file's model has 256)"."""
        return [f"--{name.replace('_', '-')} {getattr(self, name)} (the file's model has {args[name]})"
                for name in MODEL_KEYS if name in self.explicit and name in args and args[name] != getattr(self, name)]

    def conflicts(self) -> list[str]:
        """List the flags that contradict each other, a line each; conflicts with the model are found where it is built."""
        looks = [f"--{name.replace('_', '-')}" for name in _LOOKS if getattr(self, name)]
        budget = f"--activation-memory-budget {self.activation_memory_budget:g}"
        sized = [f"--{name.replace('_', '-')}" for name in ("params", "train_for") if getattr(self, name) is not None]
        sizes = [f"--{name.replace('_', '-')}" for name in ("num_blocks", "embed_dim", "num_heads", "initial_model") if name in self.explicit]
        rules = {
            "--params and --train-for together: each chooses the size of the model; give one of them.": len(sized) > 1,
            f"{''.join(sized[:1])} and {' and '.join(sizes)} together: each says how large the model is; give one of them.": bool(sized and sizes),
            f"--train-for {self.train_for}: is no time; give one such as 30m.": self.train_for is not None and not seconds_of(self.train_for),
            "--dataset and --training-plan together: give one of them; --dataset stands for a plan of one stage.":
                {"dataset", "training_plan"} <= self.explicit,
            "--mini-batch-size and --mini-batch-tokens together: each says how much goes through the device at once; give one.":
                self.mini_batch_tokens and "mini_batch_size" in self.explicit,
            f"{budget}: is for compiled code; add --compile-model, or take --activation-checkpointing on.":
                self.activation_memory_budget < 1 and not self.compile_model,
            "--activation-memory-budget and --activation-checkpointing together: each says what is computed again; give one.":
                self.activation_memory_budget < 1 and self.compile_model and self.activation_checkpointing,
            f"--resume {self.resume} and --reset-history together: give one of them.": self.resume != "latest" and self.reset_history,
            f"{' and '.join(looks)} together: each of them shows something and ends; give one.": len(looks) > 1,
            "--show-samples 0: shows nothing; give a number from 1, or leave it out to train.": "show_samples" in self.explicit and not self.show_samples,
            "--quiet and --verbose together: give one of them.": self.quiet and self.verbose,
            f"--shard-reduce-dtype {self.shard_reduce_dtype}: says how --shard sums gradients; add --shard, or leave it out.":
                "shard_reduce_dtype" in self.explicit and not self.shard,
            "--json: is for --check-plan, --inspect, --show-samples and --show-batch; give one of them, or leave it out.":
                self.json and not any(getattr(self, name) for name in _AS_JSON)}
        return [fault for fault, found in rules.items() if found]

    def alone(self, dump: str | None) -> dict[str, str]:
        """List the flags that several processes cannot have, each with what to do instead; `dump` is the file of --dump-config."""
        looks = {f"--{name.replace('_', '-')}": getattr(self, name) for name in _LOOKS}
        looks |= {"--exp list": self.exp == "list", "--training-plan list": self.training_plan == "list", "--dump-config": dump is not None}
        found = {flag: "start it without torchrun" for flag, given in looks.items() if given}
        if self.mini_batch_size == "auto":
            found["--mini-batch-size auto"] = "each would measure another size; give a number, or --mini-batch-tokens"
        if self.train_for is not None:
            found["--train-for"] = "it measures the speed of one; give --params, or the length in the plan"
        return found

    def check_trust(self, plan: Plan) -> None:
        """Refuse a plan that names the class of an optimizer or a reward's function: code is run only where it was typed, or trusted; raises UserError."""
        found = [] if self.trusted else [
            (stage.name, name) for stage in plan.stages
            for name in (stage.optimizer and stage.optimizer.name, *(rule.kind for rule in stage.optimizer_rules or ())) if name and CODE.fullmatch(name)]
        if found and not all(self.optimizer == name and "optimizer" in self.explicit for _, name in found):
            raise UserError(f"stage '{found[0][0]}': has the optimizer {found[0][1]}, and code that a file names is run only if it is trusted: add "
                            f"--trust-config, or type --optimizer {found[0][1]} yourself.")
        rewards = ((stage.name, one.name) for stage in plan.stages for one in (stage.objective and stage.objective.rewards) or () if CODE.fullmatch(one.name))
        if not self.trusted and (code := next(rewards, None)):
            raise UserError(f"stage '{code[0]}': has the reward {code[1]}, and code that a file names is run only if it is trusted: add --trust-config.")

    def to_json(self) -> dict[str, Any]:
        """Return plain values; the names of the typed flags are under `given`, as in the files of all versions."""
        values = asdict(self)
        explicit, _ = values.pop("explicit"), values.pop("trusted")
        return {**values, "given": sorted(explicit)}


def find_model(name: str | None, out_dir: str | None, label: str = "--model") -> Path:
    """Find the model file that a program is to use.

    :param name: a file, or its name in the output folder; None = the newest model there.
    :param out_dir: the output folder; None = the default.
    :param label: what the name is called in messages.
    :raises UserError: when there is none.
    """
    folder = expanded(out_dir or os.environ.get("LMP_DATASETS") or Settings.out_dir)
    if name is not None:
        path = in_folder(name if plain(name).endswith(".lmp") else f"{plain(name)}.lmp", folder)
        try:
            check_is_state(path)
        except NotAFile as error:
            raise UserError(f"{label} {name}: cannot be read ({error.strerror}).") from None
        if not path.exists():
            near = nearest_word(path.stem, [file.stem for file in path.parent.glob("*.lmp")])  # all ends of names are near each other
            hint = f" Did you mean '{near}.lmp'?" if near is not None else ""
            raise UserError(f"{label} {name}: there is no such file as {path}.{hint} Train one with lmp_trainer, or name another.")
        return path
    found = sorted(folder.glob("*_model.lmp"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UserError(f"no *_model.lmp in {folder}; train one with lmp_trainer, or name a file with --model.")
    return found[-1]


def settings_from_json(values: dict[str, Any]) -> Settings:
    """Read back what :meth:`Settings.to_json` wrote, in this version or an earlier one; flags that it lacks have their defaults."""
    return Settings(**{flag.name: values[flag.name] for flag in FLAGS if flag.name in values}, explicit=frozenset(values["given"]))


@dataclass(frozen=True)
class AdapterSettings:
    """The adapter of a stage: `kind` is a key of :data:`lmplay.plan.names.ADAPTERS`, `targets` one of :data:`lmplay.plan.names.ADAPTER_TARGETS`, or patterns
    over the names of layers, `quantize` one of :data:`lmplay.plan.names.QUANTIZED` (None = the weights below it are kept as they are).

    On all linear layers, as Dettmers et al. 2023, "QLoRA", found that an adapter on those of attention alone stays behind training all weights.
    """

    kind: str
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: str | list[str] = "all"
    quantize: str | None = None


@dataclass(frozen=True)
class StageSettings:
    """The settings of one stage.

    `batch_size` is in pieces, `context_len` in tokens, `lr` is the peak learning rate, `lr_schedule` gives its factor, `weight_decay` None = the optimizer's
    default (with a `weight_decay_schedule`, which gives its values, the first of them; with such schedules of the others, `batch_size` and `context_len` are
    the largest that they reach), `lr_width` the width of model that `lr` suits (0 = any), `grad_clip` the largest norm of the gradient (0 = no limit),
    `validation_samples` the samples of a validation (None = all held-out ones), `validation_is_bounded` says that there are fewer where texts are long,
    `patience` the validations without an improvement after which the stage ends (None = never), and `min_delta` the smallest drop of the validation loss, in
    nats a token, that counts as one. `warmup` is in optimizer steps, or, below 1, a fraction of the stage (0 = off). `betas`, `eps` and `momentum` are the
    optimizer's (None = its own), `optimizer_settings` other arguments of its class, `optimizer_rules` the plan's `$optimizer`, and `ema` the decay of the
    average of the weights (0 = none). `objective_settings` are the arguments of the objective's class. `adapter` is what is trained instead of the weights.
    """

    batch_size: int
    context_len: int
    lr: float
    lr_schedule: Chain
    weight_decay: float | None
    grad_clip: float
    validation_samples: int | None
    validation_is_bounded: bool
    patience: int | None
    min_delta: float
    objective: str
    warmup: float
    optimizer: str
    betas: tuple[float, float] | None
    eps: float | None
    momentum: float | None
    optimizer_settings: dict[str, Any] = field(default_factory=dict)
    optimizer_rules: tuple[OptimizerRule, ...] = ()
    ema: float = 0.0
    weight_decay_schedule: Chain | None = None
    batch_size_schedule: Chain | None = None
    context_len_schedule: Chain | None = None
    objective_settings: dict[str, Any] = field(default_factory=dict)
    adapter: AdapterSettings | None = None
    lr_width: int = 0

    @property
    def teacher_decay(self) -> float:
        """The decay of the average of the weights that the objective compares with; 0 = it compares with none."""
        return float(self.objective_settings.get("teacher_decay", 0.0)) if self.objective in OBJECTIVES else 0.0

    @property
    def smallest_batch(self) -> int:
        """The smallest that the batch size gets."""
        return self.batch_size if self.batch_size_schedule is None else round(min(self.batch_size_schedule.values))

    def in_words(self, name: str) -> int | str:
        """Say what `batch_size` or `context_len` is, or how it changes."""
        chain: Chain | None = getattr(self, f"{name}_schedule")
        size: int = getattr(self, name)
        return size if chain is None else chain.in_words()

    def at_mean(self, in_steps: bool) -> StageSettings:
        """Give the same with the mean of a batch size and a context length that change, for estimates.

        :param in_steps: whether the length of the stage is in steps.
        """
        means = {name: chain.mean(harmonic=not in_steps) for name in ("batch_size", "context_len")
                 if (chain := getattr(self, f"{name}_schedule")) is not None}
        return replace(self, **{name: round(mean) for name, mean in means.items()}, **{f"{name}_schedule": None for name in means})  # type: ignore[arg-type]


def resolve_stage(settings: Settings, stage: Stage, model_context_len: int, begun_with: str | None = None) -> StageSettings:
    """Work out the settings of a stage from the run's and its overrides.

    :param model_context_len: the longest piece that the model accepts, in tokens.
    :param begun_with: the optimizer of a stage that has begun.
    :raises UserError: when the stage's pieces would be longer than that, and for a setting that its optimizer does not have.
    """
    def choose(name: str) -> Any:
        override = getattr(stage, name)
        return getattr(settings, name) if override is None or name in settings.explicit else override

    chains = {key: None if key in settings.explicit else stage.chain_of_values(key) for key in CHANGING}
    largest = {key: round(max(chain.values)) for key, chain in chains.items() if chain is not None}
    context_len = model_context_len if stage.context_len is None or "context_len" in settings.explicit else stage.longest_context
    if context_len > model_context_len:
        found = f"context_len reaches {context_len}, which" if chains["context_len"] is not None else f"context_len {context_len}"
        raise UserError(f"stage '{stage.name}': {found} is more than the model's {model_context_len}; "
                        f"lower it, or start a new model with --context-len {context_len}.")
    stopping, decay = stage.early_stopping, chains["weight_decay"]
    planned = stage.validation.samples if stage.validation is not None and "validation_samples" not in settings.explicit else None
    judged = planned or settings.validation_samples
    return StageSettings(
        largest.get("batch_size") or choose("batch_size"), context_len, choose("lr"), stage.lr_chain,
        decay.at(0.0) if decay else choose("weight_decay"), choose("grad_clip"),
        None if judged == "all" else int(judged), planned is None and "validation_samples" not in settings.explicit,
        stopping.patience if stopping else None, stopping.min_delta if stopping else 0.0, stage.objective.name if stage.objective else DEFAULT_OBJECTIVE,
        _warmup(settings, stage), *_optimizer(settings, stage, begun_with), tuple(stage.optimizer_rules or ()), settings.ema, decay,
        chains["batch_size"], chains["context_len"], _objective_settings(stage), adapter_of(stage), choose("lr_width"))


def adapter_of(stage: Stage) -> AdapterSettings | None:
    """Give the adapter of a stage with its defaults; alpha is twice the rank."""
    if stage.adapter is None:
        return None
    said = stage.adapter.model_dump(exclude_none=True)
    rank = said.get("rank", AdapterSettings.rank)
    return AdapterSettings(**{**said, "alpha": float(said.get("alpha", 2 * rank))})


def _objective_settings(stage: Stage) -> dict[str, Any]:
    """List the settings of a stage's objective: those of the plan, and the defaults of the others; of another package's the plan's only."""
    own = stage.objective
    if own is None or own.name not in OBJECTIVES:
        return dict(own.settings or {}) if own is not None else {}
    found = {key: default if getattr(own, key) is None else getattr(own, key) for key, default in OBJECTIVES[own.name].takes.items()}
    return found if own.rewards is None else {**found, "rewards": [reward.to_spec() for reward in own.rewards]}


def _warmup(settings: Settings, stage: Stage) -> float:
    """Choose the length of a stage's warm-up."""
    if settings.disable_optimizer_warmup:
        return 0
    if "optimizer_warmup_steps" in settings.explicit:
        return settings.optimizer_warmup_steps
    share = stage.share_of_plan
    schedule = stage.lr_schedule if share is None else share.schedule
    in_the_middle = share is not None and share.begin > 0
    needs_none = not share.optimizer_is_fresh if share is not None and in_the_middle else isinstance(schedule, list)  # a list says itself how it begins
    default = 0 if needs_none else settings.optimizer_warmup_steps
    return default if stage.warmup is None else stage.warmup


def _optimizer(settings: Settings, stage: Stage, begun_with: str | None) \
        -> tuple[str, tuple[float, float] | None, float | None, float | None, dict[str, Any]]:
    """Choose a stage's optimizer and its settings; raises UserError for a typed flag that it does not know."""
    own = stage.optimizer
    name = begun_with or (settings.optimizer if own is None or "optimizer" in settings.explicit else own.name)
    takes = tuple(OPTIMIZERS[name].takes) if name in OPTIMIZERS else OPTIMIZER_SETTINGS  # of others they are not known
    if faults := [f"--{key}: stage '{stage.name}' is trained with {name}, which takes {' and '.join(takes) or 'none of them'}; leave it out, or choose another "
                  "--optimizer." for key in OPTIMIZER_SETTINGS if getattr(settings, key) is not None and key not in takes]:
        raise UserError(*faults)
    betas, eps, momentum = (getattr(own, key) if getattr(settings, key) is None and own is not None and own.name == name else getattr(settings, key)
                            for key in OPTIMIZER_SETTINGS)
    more = own.settings if own is not None and own.name == name else None
    return name, None if betas is None else tuple(betas), eps, momentum, more or {}
