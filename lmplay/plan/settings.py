"""The settings of a run, with where each came from, and what they mean for a stage.  Plan floor, no torch.

Precedence: what the user typed (on the command line or in a settings file) > stage > `$defaults` (already merged into the stages) > the program's default.
"""
from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    from .schema import Plan, Stage

# The flags that shape a new model, and so can stand in a plan's `$model`.
MODEL_KEYS = ("num_blocks", "embed_dim", "num_heads", "context_len", "dropout", "tied_head")


@dataclass(frozen=True)
class Settings:
    """All flags of `lmp_trainer`, resolved; the defaults here are the program's."""

    exp: str = "gpt2ish"
    num_blocks: int = 6
    embed_dim: int = 768
    num_heads: int = 12
    context_len: int = 1024
    dropout: float = 0.1
    tied_head: bool = True
    tokenizer: str | None = None
    model: str | None = None
    initial_model: str | None = None
    reset_history: bool = False
    training_plan: str = "default"
    dataset: str | None = None
    continuation: str = "exact"
    save_datasets: bool = False
    data_workers: int = 1
    accept_changed_data: bool = False
    out_dir: str = "out_gpt"
    batch_size: int = 50
    mini_batch_size: int | str = 4
    mini_batch_tokens: int = 0
    pack: str = "auto"
    validation_batch_size: int = 4
    lr: float = 0.0006
    grad_clip: float = 0.0
    optimizer: str = "adamw"
    weight_decay: float | None = None
    optimizer_warmup_fraction: float = 0.1
    optimizer_warmup_steps: int = 40
    disable_optimizer_warmup: bool = False
    ignore_optimizer: bool = False
    default_freeze: bool = False
    check_grads: bool = False
    save_interval: int = 10000
    validation_interval: int = 100
    device: str | None = None
    amp: bool = False
    amp_init_scale: float = 65536.0
    compile_model: bool = False
    compile_mode: str | None = None
    compile_backend: str = "inductor"
    activation_checkpointing: int = 0
    activation_memory_budget: float = 1.0
    matmul_precision: str = "highest"
    tune_allocator: bool = True
    seed: int = 0
    keep: int = 2
    resume: str = "latest"
    save_weights_only: str | None = None
    on_nonfinite: str = "stop"
    time_limit: str | None = None
    max_steps: int = 0
    max_samples_this_run: int = 0
    describe: bool = False
    inspect: str | None = None
    check_plan: bool = False
    show_samples: int = 0
    show_batch: str | None = None
    json: bool = False
    track: str | None = None
    callback: str | None = None
    sample_prompts: str | None = None
    sample_tokens: int = 100
    quiet: bool = False
    verbose: bool = False
    log_json: bool = False
    explicit: frozenset[str] = field(default=frozenset())

    @property
    def first_mini_batch(self) -> int:
        """The mini-batch size; with `auto`, which is measured in training, the default."""
        return Settings.mini_batch_size if isinstance(self.mini_batch_size, str) else self.mini_batch_size  # type: ignore[return-value]

    def room(self, context_len: int) -> int:
        """Give the tokens of a mini-batch: what was asked for, or, where nothing was, the room of `mini_batch_size` full pieces; 0 = go by pieces."""
        if self.mini_batch_tokens or ("mini_batch_size" in self.explicit and self.mini_batch_size != "auto"):
            return self.mini_batch_tokens
        return self.first_mini_batch * context_len

    @property
    def datasets_folder(self) -> Path:
        """Where data sets are kept."""
        return Path(self.out_dir).expanduser() / "datasets"

    def experiment(self, plan: Plan) -> str:
        """Choose the experiment of a new model."""
        return self.exp if "exp" in self.explicit else plan.model.exp or self.exp

    def model_file(self, plan: Plan) -> Path:
        """Choose the model file.

        :raises UserError: when what was given cannot be one.
        """
        if self.model is not None:
            path = Path(self.model).expanduser()
            if path.is_dir() or path.suffix not in ("", ".lmp"):
                raise UserError(f"--model {self.model}: {'is a folder' if path.is_dir() else 'is no name of a model file'}; give one that ends in .lmp.")
            return path.with_suffix(".lmp")
        return Path(self.out_dir).expanduser() / f"{self.experiment(plan)}_model.lmp"

    def model_args(self, plan: Plan, experiment_settings: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
        """Choose what a new model is built with.

        :param plan: its `$model` is below the typed flags.
        :param experiment_settings: the experiment's own, below `$model`.
        :return: arguments by name, and the names that somebody asked for (the others may be left out where a model doesn't take them).
        """
        in_plan = plan.model.model_dump(exclude_none=True, exclude={"exp", "settings"}) | (plan.model.settings or {})
        typed = {name: getattr(self, name) for name in MODEL_KEYS if name in self.explicit}
        chosen = {**experiment_settings, **in_plan, **typed}
        return {**{name: getattr(self, name) for name in MODEL_KEYS}, **chosen}, set(chosen)

    def typed_conflicts(self, args: dict[str, Any]) -> list[str]:
        """List the typed model flags that a checkpoint's model contradicts, as "--embed-dim 512 (the file's model has 256)"."""
        return [f"--{name.replace('_', '-')} {getattr(self, name)} (the file's model has {args[name]})"
                for name in MODEL_KEYS if name in self.explicit and name in args and args[name] != getattr(self, name)]

    def to_json(self) -> dict[str, Any]:
        """Give plain values; the flags that were typed stand under `given`, as in the files of all versions."""
        values = asdict(self)
        explicit = values.pop("explicit")
        return {**values, "given": sorted(explicit)}


@dataclass(frozen=True)
class StageSettings:
    """What holds for one stage."""

    batch_size: int
    context_len: int
    lr: float
    schedule: str
    min_fraction: float | None
    weight_decay: float | None
    grad_clip: float
    validation_samples: int
    patience: int | None
    min_delta: float
    objective: str


def resolve_stage(settings: Settings, stage: Stage, model_context_len: int) -> StageSettings:
    """Work out what holds for a stage.

    :param settings: the run's.
    :param stage: its overrides.
    :param model_context_len: the longest piece the model can take, in tokens.
    :return: the stage's settings.
    :raises UserError: when the stage's pieces would be longer than the model's context.
    """
    def choose(name: str) -> Any:
        override = getattr(stage, name)
        return getattr(settings, name) if override is None or name in settings.explicit else override

    context_len = model_context_len if stage.context_len is None or "context_len" in settings.explicit else stage.context_len
    if context_len > model_context_len:
        raise UserError(f"stage '{stage.name}': context_len {context_len} is more than the model's {model_context_len}; "
                        f"lower it, or start a new model with --context-len {context_len}.")
    schedule, stopping, validation = stage.lr_schedule, stage.early_stopping, stage.validation
    return StageSettings(
        choose("batch_size"), context_len, choose("lr"), schedule.name if schedule else "constant", schedule.min_fraction if schedule else None,
        choose("weight_decay"), choose("grad_clip"),
        validation.samples if validation and validation.samples and "validation_batch_size" not in settings.explicit else settings.validation_batch_size,
        stopping.patience if stopping else None, stopping.min_delta if stopping else 0.0, stage.objective or "next_token")


def setting_names() -> list[str]:
    """List the settings that are flags."""
    return [entry.name for entry in fields(Settings) if entry.name != "explicit"]
