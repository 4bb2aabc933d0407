"""What model and tokenizer a run will have: those of its checkpoint, of an initial model, or new ones.  Engine floor."""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..checkpoints.base import merged, put_on, with_base
from ..checkpoints.format import Verified, load
from ..checkpoints.weights import check_weights
from ..data.stage import StageData
from ..errors import UserError
from ..exp import WITH_WEIGHTS, accepted_settings, build_model, get_experiment, own_defaults, split_name
from ..files import is_state
from ..modules.sharded import parts_of
from ..paths import expanded, plain
from ..plan.schema import Plan
from ..plan.settings import MODEL_KEYS, Settings
from ..tokenizer import Tokenizer, load_tokenizer, train_tokenizer, trained_size, training_options
from ..tokenizer.matching import differing_ids, matched_ids

if TYPE_CHECKING:
    from ..exp.imported import Imported

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_DEFAULT_TRAINED = "train:8192"
# A tokenizer learns from this many characters for each token it is to have.
_CHARACTERS_PER_TOKEN = 1000


@dataclass(frozen=True)
class ModelSpec:
    """What model there will be: its experiment, its arguments but for the vocabulary, and its tokenizer and first weights where a file has them."""

    experiment: str
    args: dict[str, Any]
    tokenizer: Tokenizer | None
    initial_weights: Callable[[Tokenizer, Callable[[str], None]], dict[str, Any]] | None = None
    """Reads the weights to begin with, for a tokenizer, and says what does not fit; None = fresh ones."""
    stored_weights: dict[str, Any] | None = None
    """Those of the file that the arguments are from, which the model must fit."""
    adapted: dict[str, Any] | None = None
    """The model of a checkpoint that was written while an adapter was trained."""

    def check_stored(self, vocab_size: int) -> None:
        """Check by shapes alone that the model is that of its file: made-up arguments could ask for any amount of memory. Raises UserError."""
        if self.stored_weights is not None:
            shapes = self.build(vocab_size, meta=True)
            check_weights(shapes.state_dict(), self.stored_weights, self.experiment)
            if self.adapted is not None:
                put_on(shapes, self.adapted, self.experiment)

    def build(self, vocab_size: int, meta: bool = False, filled: bool = True, part: tuple[int, int] = (0, 1)) -> nn.Module:
        """Build the model.

        :param meta: it has shapes and no weights.
        :param filled: False = its weights are whatever they are; as nothing has been written there, they take hardly any memory yet.
        :param part: the number of a part, and how many there are: the other rows of large weights are left unfilled. Those of the part, and the
            random numbers that are drawn, are those of a model that is whole.
        """
        mode = _Unfilled() if meta or not filled else _PartFilled(*part) if part[1] > 1 else nullcontext()
        with torch.device("meta" if meta else "cpu"), mode:
            return build_model(get_experiment(self.experiment), vocab_size=vocab_size, **self.args)


class _Unfilled(TorchFunctionMode):
    """Leaves out what fills weights: on "meta" there is nothing to fill, and torch would import its compiler for some of it; or the weights come later."""

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        named = kwargs or {}
        if getattr(function, "__module__", "") == "torch.nn.init":
            return args[0] if args else named["tensor"]
        return function(*args, **named)


class _PartFilled(TorchFunctionMode):
    """Keeps some rows of what fills a parameter: it is filled elsewhere, one parameter after the other. The memory of rows that nobody writes is not taken."""

    _METHODS: ClassVar = {"zero_", "fill_", "normal_", "uniform_"}

    def __init__(self, number: int, count: int):
        super().__init__()
        self._number, self._count = number, count

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        named = dict(kwargs or {})
        tensor = args[0] if args else named.pop("tensor", None)
        fills = getattr(function, "__module__", "") == "torch.nn.init" or getattr(function, "__name__", "") in self._METHODS
        if not fills or not isinstance(tensor, nn.Parameter) or not tensor.dim():
            return function(*args, **(kwargs or {}))
        whole = torch.empty_like(tensor, requires_grad=False)
        function(whole, *args[1:], **named)
        rows = [parts_of(one.detach(), self._count)[self._number] for one in (tensor, whole)]
        rows[0].copy_(rows[1])
        return tensor


def choose_model(settings: Settings, plan: Plan, path: Path, stored: dict[str, Any] | None, verified: Verified | None = None) -> ModelSpec:
    """Decide what model there will be: that of the checkpoint, of the initial model, or a new one.

    :param settings: the run's; model flags that were typed must agree with the file's.
    :param plan: its `$model` is for new models.
    :param path: the model file.
    :param stored: what is in it; None when a new model is made.
    :param verified: what is known of the initial model, see :func:`lmplay.checkpoints.format.read`.
    :return: the model to build.
    :raises UserError: when flags and file disagree, or the experiment is unknown.
    """
    source = path
    if stored is None and (imported := open_initial(settings)) is not None:
        return _of_others(settings, plan, imported)
    if stored is None and settings.initial_model is not None:
        source = settings.found(settings.initial_model)
        stored = with_base(source, load(source, parts=("model",), mmap=settings.divides_model, verified=verified), verified)
        stored = {**stored, "model": merged(stored["model"])}
    experiment = get_experiment(settings.experiment(plan))
    if stored is None:
        kind, source_name = split_name(experiment.name)
        opened = {}
        if source_name:
            from ..exp.hf import open_source

            opened = open_source(source_name, with_weights=kind == WITH_WEIGHTS)
        args, chosen = settings.model_args(plan, own_defaults(experiment) | opened)
        args |= {name: value for name, value in opened.items() if name not in MODEL_KEYS}
        accepted = accepted_settings(experiment)
        kept = args if accepted is None else {name: value for name, value in args.items() if name in accepted or name in chosen}
        return ModelSpec(experiment.name, kept, None, _weights_of(experiment.name))
    built = stored["model"]["state_args"]
    faults = settings.typed_conflicts(built["args"])
    if built["experiment"] != experiment.name and ("exp" in settings.explicit or plan.model.exp):
        faults.insert(0, f"experiment {experiment.name} (the file's model is {built['experiment']})")
    if "tokenizer" in settings.explicit and settings.tokenizer != built["tokenizer"]["name"]:
        faults.append(f"--tokenizer {settings.tokenizer} (the file's model has {built['tokenizer']['name']})")
    if faults:
        raise UserError(f"model {source} does not fit {', '.join(faults)}. Leave that out to use the file's model, "
                        "or choose another --model file for a new one.")
    adapted = stored["model"] if "adapter" in built else None
    weights = stored["model"]["state" if adapted is None else "base"]
    return ModelSpec(built["experiment"], dict(built["args"]), Tokenizer(built["tokenizer"]),
                     (lambda *_: weights) if source is not path or adapted is not None else None, weights, adapted)


def open_initial(settings: Settings) -> Imported | None:
    """Open the model of others that `--initial-model` names: a folder of transformers, a name on its hub, or nanoGPT's `ckpt.pt`; None = a file of ours."""
    name = settings.initial_model
    if name is None or plain(name).endswith(".lmp"):
        return None
    path, label = expanded(name), f"--initial-model {name}"
    context_len = settings.context_len if "context_len" in settings.explicit else None
    if path.suffix == ".pt":
        from ..exp.imported import open_nanogpt

        found = open_nanogpt(settings.file(name), label, context_len)
        return found if settings.tokenizer is None else replace(found, tokenizer=None)
    is_of_hub = _HUB_NAME.fullmatch(name) is not None and not path.parent.is_dir()
    if is_state(settings.found(name)) or not (path.is_dir() or is_of_hub):
        return None
    from ..exp.imported import open_transformers

    return open_transformers(name, label, context_len)


def _of_others(settings: Settings, plan: Plan, imported: Imported) -> ModelSpec:
    """Begin with a model of others; raises UserError where it does not fit what was typed, or has no tokenizer and none is given."""
    label = f"--initial-model {settings.initial_model}"
    args = imported.args | ({"dropout": settings.dropout} if "dropout" in settings.explicit else {})
    faults = settings.typed_conflicts(args)
    wanted = get_experiment(settings.experiment(plan))
    if wanted.target != get_experiment(imported.experiment).target and ("exp" in settings.explicit or plan.model.exp):
        faults.insert(0, f"experiment {wanted.name} (it becomes a {imported.experiment})")
    if faults:
        raise UserError(f"{label}: does not fit {', '.join(faults)}. Leave that out to use it as it is.")
    own = load_tokenizer(imported.tokenizer) if imported.tokenizer is not None else None
    if own is None and settings.tokenizer is None:
        raise UserError(f"{label}: has no tokenizer; give the one that it was trained with by --tokenizer.")

    def read(tokenizer: Tokenizer, say: Callable[[str], None]) -> dict[str, Any]:
        from ..exp.imported import fit_rows

        is_other = own is not None and tokenizer.spec != own.spec
        matched = matched_ids(tokenizer, own) if own is not None and is_other else list(range(tokenizer.vocab_size))
        ids = [number if number is not None and number < imported.rows else None for number in matched]
        rows = imported.rows if own is None else min(imported.rows, own.vocab_size)
        if own is None:
            say(f"WARNING: {label}: has no tokenizer, so tokens of {tokenizer.name} are those of the same ids.")
        n_new = ids.count(None)
        if is_other:
            say(f"{label}: of the {len(ids):,} tokens of {tokenizer.name}, {len(ids) - n_new:,} are found in its own vocabulary by their text.")
        if n_new:
            say(f"WARNING: {label}: has no rows for {n_new:,} of the {len(ids):,} tokens of {tokenizer.name}; they begin with the mean of all.")
        return fit_rows(imported.read(), ids, rows)

    given = own if settings.tokenizer is None else None if trained_size(settings.tokenizer) else load_tokenizer(settings.tokenizer)
    return ModelSpec(imported.experiment, args, given, read)


def _weights_of(experiment: str) -> Callable[[Tokenizer, Callable[[str], None]], dict[str, Any]] | None:
    """Say where a new model has its weights from; None = fresh ones."""
    kind, source = split_name(experiment)
    if kind != WITH_WEIGHTS:
        return None

    def read(tokenizer: Tokenizer, say: Callable[[str], None]) -> dict[str, Any]:
        from ..exp.hf import read_own_weights

        _check_ids(tokenizer, source, say)
        return read_own_weights(source)

    return read


def _check_ids(tokenizer: Tokenizer, source: str, say: Callable[[str], None]) -> None:
    """Refuse a tokenizer whose ids are other tokens than those that the weights of `hf:` were trained with; raises UserError."""
    if tokenizer.name == source:
        return
    try:
        own = load_tokenizer(source)
    except UserError as error:
        say(f"WARNING: experiment {WITH_WEIGHTS}:{source}: its own tokenizer cannot be read ({error.faults[0].partition(' Ways out:')[0]}), so nothing says "
            f"whether the ids of {tokenizer.name} are the same tokens there.")
        return
    if others := [number for number in differing_ids(tokenizer, own) if number < own.vocab_size]:  # beyond them are rows that mean nothing yet
        raise UserError(f"experiment {WITH_WEIGHTS}:{source}: its weights are for its own tokenizer, and {len(others):,} of the {tokenizer.vocab_size:,} ids "
                        f"of {tokenizer.name} are other tokens there. Leave --tokenizer and $tokenizer out; or start with fresh weights, --exp "
                        f"hf-fresh:{source}; or let --initial-model {source} find the rows of the same tokens, where it can read that kind of model.")


def make_tokenizer(settings: Settings, plan: Plan, stage_data: Sequence[StageData]) -> Tokenizer:
    """Make the tokenizer of a new model.

    :param settings: what the user said.
    :param plan: its `$tokenizer` comes after that; then gpt2 where it reads from the hub, else one trained on its text.
    :param stage_data: the open stages, for a tokenizer that learns from them.
    :return: the tokenizer.
    """
    name = tokenizer_name(settings, plan)
    options = training_options(name)
    if options is None:
        return load_tokenizer(name)
    size, digits = options
    budget = size * _CHARACTERS_PER_TOKEN // len(stage_data)
    return train_tokenizer((text for data in stage_data for text in data.texts(budget)), size, digits)


def check_tokenizer(settings: Settings, plan: Plan) -> None:
    """Load the tokenizer of a new model, unless it is still to be trained; raises UserError when it is not there."""
    name = tokenizer_name(settings, plan)
    if trained_size(name) is None:
        load_tokenizer(name)


def tokenizer_name(settings: Settings, plan: Plan) -> str:
    """Choose the tokenizer of a new model."""
    from ..data.sources import opener_of

    hub = any(opener_of(spec.path).remote for stage in plan.stages for spec in stage.dataset)
    own = split_name(settings.experiment(plan))[1]
    return settings.tokenizer or plan.tokenizer or own or ("gpt2" if hub else _DEFAULT_TRAINED)
