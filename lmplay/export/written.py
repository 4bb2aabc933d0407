"""The files of an export: weights, config, generation config and tokenizer, as transformers reads them."""
from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import UserError
from ..files import check_free_bytes
from .folder import write_record
from .private import shortened

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..checkpoints.trained import Trained

def made_for_transformers(trained: Trained, dtype_name: str) -> PreTrainedModel:
    """Make the model of transformers that computes what a trained one does, in float32, with what its configs say of the ends of texts.

    :param dtype_name: the type that its weights will be written in.
    :raises UserError: when transformers has no such model, or the type has no such numbers.
    """
    import torch
    from transformers.utils import logging

    from ..exp.standard import as_transformers
    from ..writing.prompting import recorded

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = as_transformers(trained.module, trained.experiment)
    ends = recorded(trained.tokenizer, trained.forms).ends
    if any(source["form"] == "chat" for stage in trained.forms.values() for source in stage):  # whatever it learned last, it has a chat template
        ends |= recorded(trained.tokenizer, trained.forms, "chat").ends
    _set_ends(model, trained.tokenizer.end_id, sorted(ends))
    if dtype_name == "float16" and (large := [name for name, weight in model.named_parameters() if not weight.to(torch.float16).isfinite().all()]):
        raise UserError(f"--dtype float16: {large[0]} has numbers that are too large for it; bfloat16 has the same size.")
    return model


def write_model(folder: Path, model: PreTrainedModel, trained: Trained, options: argparse.Namespace) -> None:
    """Write a model and its tokenizer.

    :param folder: an empty one.
    :param model: of :func:`made_for_transformers`; its weights are changed to the type that was asked for.
    :param options: of the command line.
    :raises UserError: when transformers would give other ids.
    :raises OSError: when something cannot be written.
    """
    import torch

    from ..tokenizer.writing import save_pretrained

    model.to(getattr(torch, options.dtype))
    check_free_bytes(folder.parent, sum(weight.nbytes for weight in model.parameters()))
    _save(model, folder, options.max_shard_size)
    if not options.no_tokenizer:
        save_pretrained(trained.tokenizer, folder, trained.context_len, trained.chat_template)
    record = {"experiment": trained.experiment, "args": trained.args, "tokenizer": trained.tokenizer.name, "forms": trained.forms}
    write_record(folder, {"lmplay": __version__, **shortened(record), "averaged": trained.averaged})


def described(model: PreTrainedModel, dtype_name: str) -> str:
    """Say in a few words what is written."""
    return f"{type(model).__name__}, {sum(weight.numel() for weight in model.parameters()):,} parameters, {dtype_name}"


def _save(model: PreTrainedModel, folder: Path, max_shard_size: int) -> None:
    """Write the weights and the configs; raises OSError, also where the library has an exception of its own."""
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder, max_shard_size=max_shard_size)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _set_ends(model: PreTrainedModel, end: int, ends: list[int]) -> None:
    """Say which tokens begin and end a text, and fill a batch."""
    from transformers import GenerationConfig

    text: Any = model.config.get_text_config()
    if text.eos_token_id is None:
        text.bos_token_id = text.eos_token_id = end
    model.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=ends if len(ends) > 1 else end, pad_token_id=end)
