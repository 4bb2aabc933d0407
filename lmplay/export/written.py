"""The files of an export: weights, config, generation config and tokenizer, as transformers reads them."""
from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..data.chat import choose_template
from ..errors import UserError
from ..exp import split_name
from ..files import check_free_bytes
from .folder import write_record

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..checkpoints.trained import Trained

# "role: content", a blank line between turns, the end token after each answer: see lmplay.data.chat.
PLAIN_TEMPLATE = ("{%- for message in messages %}{{ ('' if loop.first else '\\n\\n') + message['role'] + ': ' + message['content'] }}"
                  "{%- if message['role'] == 'assistant' %}{{ eos_token }}{%- endif %}{%- endfor %}"
                  "{%- if add_generation_prompt %}{{ '\\n\\nassistant: ' }}{%- endif %}")


def write_model(folder: Path, trained: Trained, options: argparse.Namespace) -> str:
    """Write a model and its tokenizer.

    :param folder: an empty one.
    :param options: of the command line.
    :return: what was written, in a few words.
    :raises UserError: when transformers has no such model, or would give other ids.
    :raises OSError: when something cannot be written.
    """
    import torch
    from transformers.utils import logging

    from ..exp.standard import as_transformers
    from ..tokenizer.writing import save_pretrained
    from ..writing.prompting import recorded

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = as_transformers(trained.module, trained.experiment)
    _set_ends(model, trained.tokenizer.end_id, sorted(recorded(trained.tokenizer, trained.forms).ends))
    dtype = getattr(torch, options.dtype)
    if options.dtype == "float16" and (large := [name for name, weight in model.named_parameters() if not weight.to(dtype).isfinite().all()]):
        raise UserError(f"--dtype float16: {large[0]} has numbers that are too large for it; bfloat16 has the same size.")
    model.to(dtype)
    check_free_bytes(folder.parent, sum(weight.nbytes for weight in model.parameters()))
    _save(model, folder, options.max_shard_size)
    if not options.no_tokenizer:
        save_pretrained(trained.tokenizer, folder, trained.context_len, _template_of(trained))
    write_record(folder, {"lmplay": __version__, "experiment": trained.experiment, "args": trained.args, "tokenizer": trained.tokenizer.name,
                          "forms": trained.forms, "averaged": trained.averaged})
    n_weights = sum(weight.numel() for weight in model.parameters())
    return f"{type(model).__name__}, {n_weights:,} parameters, {options.dtype}"


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


def _template_of(trained: Trained) -> str | None:
    """Choose the chat template: that of the newest chats of the training data; of a model of transformers, where there were none, its own."""
    chats = [source.get("chat") for stage in trained.forms.values() for source in stage if source["form"] == "chat"]
    if not chats:
        return trained.tokenizer.chat_template if split_name(trained.experiment)[1] else None
    return choose_template(chats[-1], trained.tokenizer.chat_template) or PLAIN_TEMPLATE
