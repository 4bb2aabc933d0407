"""Tokenizers as files that `AutoTokenizer` of transformers opens.  Ground floor; `tokenizers` and `transformers` load on demand."""
from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from .byte_pairs import PROBE, letters_of_bytes
from .tokenizer import END_TOKEN, Tokenizer

if TYPE_CHECKING:
    import tokenizers


def save_pretrained(tokenizer: Tokenizer, folder: Path, context_len: int, chat_template: str | None = None) -> None:
    """Write the files that transformers reads a tokenizer from, and read them back.

    No tokens are put around a text, as none are in training.

    :param context_len: the most tokens that the model reads.
    :param chat_template: in Jinja; None = none.
    :raises UserError: when transformers would give other ids.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.set_verbosity_error()
    fast = as_fast(tokenizer)
    end = fast.id_to_token(tokenizer.end_id)
    special = {"eos_token": end, "pad_token": end, **({"bos_token": tokenizer.begin_text} if tokenizer.begin_text else {})}
    written = PreTrainedTokenizerFast(tokenizer_object=fast, clean_up_tokenization_spaces=False, model_max_length=context_len, **special)
    written.chat_template = chat_template
    written.save_pretrained(folder)
    config = folder / "tokenizer_config.json"
    said = {**json.loads(config.read_text(encoding="utf-8")), "tokenizer_class": "PreTrainedTokenizerFast"}  # a name that all versions know
    config.write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    found = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)(PROBE)["input_ids"]
    if found != tokenizer.encode_markup(PROBE).ids.tolist():
        raise UserError(f"tokenizer {tokenizer.name}: transformers would give other ids than lmplay; --no-tokenizer leaves it out.")


def as_fast(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Make a tokenizer of the library `tokenizers` with the same ids; for bytes, that of a vocabulary of single bytes."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    if tokenizer.spec["kind"] != "bytes":
        said = {**json.loads(tokenizer.spec["json"]), "post_processor": None, "truncation": None, "padding": None}
        return tokenizers.Tokenizer.from_str(json.dumps(said))
    fast = tokenizers.Tokenizer(models.BPE({letter: byte for byte, letter in letters_of_bytes().items()}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([END_TOKEN])
    return fast
