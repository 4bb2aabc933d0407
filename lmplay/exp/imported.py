"""Models of others as experiments of ours: folders of transformers, names on the hub, checkpoints of nanoGPT."""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..hub import first_line, waiting
from ..paths import EXPORT_RECORD, expanded
from ..tokenizer import Tokenizer, load_tokenizer
from . import build_model, get_experiment, gpt2ish, llamaish, modern
from .stored import check_folder

# The experiment of each type of model, and the module that reads its config and its weights.
READERS: dict[str, tuple[str, ModuleType]] = {
    "gpt2": ("gpt2ish", gpt2ish), **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), ("llamaish", llamaish)),
    **dict.fromkeys(("arcee", "apertus"), ("modern", modern))}
_TOKENIZERS = ("tokenizer.json", "vocab.json", "*.model", "*.tiktoken")
# The longest sequence of a new model where nobody asks for one: models of others allow up to a million tokens.
_MOST_CONTEXT = 4096
# What nanoGPT has for GPT-2's vocabulary: as it is, and rounded up.
_GPT2_ROWS = (50257, 50304)


@dataclass(frozen=True)
class Imported:
    """A model of others.

    `args` are the arguments of the experiment but for the vocabulary, of which the model has `rows`. `tokenizer` is what loads its own; None = it has none.
    `read` gives its weights, by the names of the experiment.
    """

    experiment: str
    args: dict[str, Any]
    rows: int
    tokenizer: str | None
    read: Callable[[], dict[str, Tensor]]


def open_transformers(source: str, label: str, context_len: int | None) -> Imported:
    """Open a folder of transformers, or a name on its hub.

    :param label: what it is called in messages.
    :param context_len: the longest sequence to come, in tokens; None = that of the model, but at most 4,096.
    :raises UserError: when it cannot be read, is not whole, needs code of its own, or is of a family that lmplay does not have.
    """
    from .hf import check_source, longest_piece, read_config, read_weights

    is_folder = expanded(source).is_dir()
    if is_folder:
        check_folder(expanded(source), label)
    config = read_config(source, label)
    if getattr(config, "auto_map", None):
        raise UserError(f"{label}: its config names code of its own (auto_map), which lmplay does not run.")
    kind = config.model_type
    otherwise = f" --exp hf:{source} continues from it as it is."
    if kind not in READERS:
        raise UserError(f"{label}: is a model of type {kind}, and read are {', '.join(READERS)}.{otherwise}")
    check_source(source, config, label)
    longest = longest_piece(config) or _MOST_CONTEXT
    if context_len is not None and context_len > longest:
        raise UserError(f"{label}: --context-len {context_len} is more than its {longest:,} positions; give {longest} or less.")
    experiment, module = READERS[kind]
    longest = min(longest, _MOST_CONTEXT if kind != "gpt2" else longest)
    try:
        args = module.settings_of(config, context_len or (min(longest, config.sliding_window) if llamaish.slides(config, longest) else longest))
    except UserError as error:
        raise UserError(f"{label}: {error}{otherwise}") from None
    rows = args.pop("vocab_size")

    def read() -> dict[str, Tensor]:
        weights = read_weights(source, label)
        with torch.device("meta"):
            model = build_model(get_experiment(experiment), vocab_size=rows, **args)
        try:
            found: dict[str, Tensor] = module.from_transformers(weights, model)
        except UserError as error:
            raise UserError(f"{label}: {error}{otherwise}") from None
        return found

    has_tokenizer = not is_folder or any(found for name in _TOKENIZERS for found in expanded(source).glob(name))
    return Imported(experiment, args, rows, source if has_tokenizer else None, read)


@dataclass(frozen=True)
class Foreign:
    """A model of transformers as it is, to be used: its tokenizer, the most tokens that it reads (None = no limit), the token that everything begins with
    (None = an end token before plain texts, as in our training), what `lmp_export` wrote about it (None: it is from elsewhere), and what builds it, on the
    CPU."""

    tokenizer: Tokenizer
    longest: int | None
    begin_id: int | None
    record: dict[str, Any] | None
    build: Callable[[int], nn.Module]
    """Gives it for sequences of a length, in training mode; raises UserError where its weights cannot be read."""


def open_foreign(source: str, label: str) -> Foreign:
    """Open a folder of transformers, or a name of its hub, to use the model as it is.

    :param label: what it is called in messages.
    :raises UserError: when it cannot be read, is not whole, or needs code of its own.
    """
    from .hf import check_source, longest_piece, open_source, read_config, read_own_weights

    folder = expanded(source)
    if folder.is_dir():
        check_folder(folder, label)
    config = read_config(source, label)
    check_source(source, config, label)
    longest = longest_piece(config)
    try:
        tokenizer = load_tokenizer(source)
    except UserError as error:
        raise UserError(f"{label}: its tokenizer cannot be read ({error.faults[0].partition(' Ways out:')[0]}).") from None

    def build(context_len: int) -> nn.Module:
        try:
            module = build_model(get_experiment(f"hf:{source}"), vocab_size=tokenizer.vocab_size, **{**open_source(source), "context_len": context_len})
        except UserError as error:
            raise UserError(*(f"{label}: {fault}" for fault in error.faults)) from None
        module.load_state_dict(read_own_weights(source, label))
        return module

    record = _read_record(source, label)
    return Foreign(tokenizer, longest, tokenizer.begin_id if record is None else None, record, build)  # ours has learned texts after an end token


def _read_record(source: str, label: str) -> dict[str, Any] | None:
    """Read the record of an export, in a folder or on the hub; None where there is none.

    :raises UserError: when it is damaged, or the hub does not give it.
    """
    folder = expanded(source)
    path = folder / EXPORT_RECORD if folder.is_dir() else _record_on_hub(source, label)
    if path is None or not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{label}: its {EXPORT_RECORD} cannot be read ({first_line(error)}), and says how prompts begin; export it again.") from None
    if not isinstance(record, dict):
        raise UserError(f"{label}: its {EXPORT_RECORD} is no object, and says how prompts begin; export it again.")
    return record


def _record_on_hub(source: str, label: str) -> Path | None:
    """Find the record of a model of the hub, whose config is in the hub's cache by now; None where there is none, and, with a warning, without a network.

    :raises UserError: when the hub does not give it.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        cached = try_to_load_from_cache(source, EXPORT_RECORD)
        if cached is not None:
            return Path(cached) if isinstance(cached, str) else None  # else an object that says that the model has no such file
        return Path(hf_hub_download(source, EXPORT_RECORD))
    except LocalEntryNotFoundError:
        waiting.say(f"WARNING: {label}: the hub cannot be reached, so it is not known whether this is an export of lmplay; it is read as a model of others.")
    except EntryNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise UserError(f"{label}: its {EXPORT_RECORD} cannot be read ({first_line(error)}); try again later.") from None
    return None


def open_nanogpt(path: Path, label: str, context_len: int | None) -> Imported:
    """Open a checkpoint of nanoGPT (`ckpt.pt`); no code in it is executed.

    :param label: what it is called in messages.
    :param context_len: as in :func:`open_transformers`.
    :raises UserError: when it cannot be read, or is no checkpoint of nanoGPT.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        said = content["model_args"]
        sizes = {ours: int(said[theirs]) for ours, theirs in (("num_blocks", "n_layer"), ("embed_dim", "n_embd"), ("num_heads", "n_head"))}
        longest, rows, dropout = int(said["block_size"]), int(said["vocab_size"]), float(said.get("dropout", 0.0))
        weights = {name.removeprefix("_orig_mod."): weight for name, weight in content["model"].items()}  # of a compiled model
    except OSError as error:
        raise UserError(f"{label}: cannot be read ({error.strerror or error}).") from None
    except Exception as error:  # damaged bytes can raise anything
        raise UserError(f"{label}: is not a checkpoint of nanoGPT, or damaged ({type(error).__name__}: {first_line(error)}).") from None
    if context_len is not None and context_len > longest:
        raise UserError(f"{label}: --context-len {context_len} is more than its {longest:,} positions; give {longest} or less.")
    length = context_len or longest
    args = {**sizes, "context_len": length, "dropout": dropout, "tied_head": True, "activation": "gelu"}

    def read() -> dict[str, Tensor]:
        with torch.device("meta"):
            model = build_model(get_experiment("gpt2ish"), vocab_size=rows, **args)
        try:
            return gpt2ish.from_nanogpt(weights, model, length)
        except KeyError as error:
            raise UserError(f"{label}: has no weights for {error}, so it is damaged, or a model of another kind.") from None
        except (AttributeError, TypeError):
            raise UserError(f"{label}: not all of its weights are tensors, so it is damaged, or a model of another kind.") from None

    return Imported("gpt2ish", args, rows, "gpt2" if rows in _GPT2_ROWS else None, read)


def fit_rows(state: dict[str, Tensor], ids: list[int | None], rows: int) -> dict[str, Tensor]:
    """Choose the rows of the vocabulary; those of new tokens are the mean of all.

    :param state: weights, of which the embedding and the head have a row for each token.
    :param ids: for each token of the new vocabulary its row; None = it is new.
    :param rows: how many of the rows are of tokens.
    """
    source = torch.tensor([0 if number is None else number for number in ids])
    is_new = torch.tensor([number is None for number in ids])

    def fit(weight: Tensor) -> Tensor:
        return torch.where(is_new[:, None], weight[:rows].mean(0), weight[source])

    return {name: fit(weight) if name in ("token_embedding.weight", "head.weight") else weight for name, weight in state.items()}
