"""GGUF files, as llama.cpp and programs that are built on it read them; by the library `gguf`, an optional extra."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import UserError
from ..files import NotAFile, check_folder, check_free_bytes, check_is_file, sync_folder, temporary_name
from ..signals import unfinished
from ..tokenizer.byte_pairs import GPT2, SPLITS, pattern_of
from ..tokenizer.writing import as_fast
from .folder import locked

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from ..tokenizer import Tokenizer

# What llama.cpp calls the ways in which texts are split into words.
_PRE_TOKENIZERS = {GPT2: "gpt-2", SPLITS[1]: "qwen2", SPLITS[3]: "llama-bpe"}
# By type of model: its name in GGUF, the one activation that llama.cpp computes for it, and whether its rotary positions turn neighbours.
_ARCHITECTURES = {"gpt2": ("gpt2", "gelu_new", False), "llama": ("llama", "silu", True), "mistral": ("llama", "silu", True), "qwen2": ("qwen2", "silu", False),
                  "qwen3": ("qwen3", "silu", False), "arcee": ("arcee", "relu2", True)}


def check_gguf(path: Path, overwrite: bool) -> None:
    """Check before anything is written that a file can be, and that the library is installed.

    :param overwrite: a file that is there may be replaced.
    :raises UserError: when it cannot.
    """
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise UserError('--gguf: needs a package that is not installed: pip install "lmplay[gguf]".') from None
    try:
        check_is_file(path)
    except NotAFile as error:
        raise UserError(f"--gguf {path}: {error.strerror}.") from None
    if path.exists() and not overwrite:
        raise UserError(f"--gguf {path}: is there; give another name, or add --overwrite.")
    check_folder(path.parent, "folder of --gguf")


def check_model(model: PreTrainedModel) -> None:
    """Refuse a model that llama.cpp would compute otherwise; raises UserError."""
    from ..exp.imported import READERS

    config: Any = model.config
    if config.model_type not in _ARCHITECTURES:
        raise UserError(f"--gguf: {type(model).__name__} is not among the models that can be written ({', '.join(_ARCHITECTURES)}); llama.cpp does not have "
                        "it, or computes it with another activation.")
    activation = getattr(config, "activation_function", None) or config.hidden_act
    if activation != _ARCHITECTURES[config.model_type][1]:
        raise UserError(f"--gguf: llama.cpp computes {type(model).__name__} with another activation than {activation}.")
    if config.model_type == "qwen3" and config.attention_bias:
        raise UserError("--gguf: llama.cpp computes Qwen3ForCausalLM without the biases of query_key_value_bias.")
    try:
        READERS[config.model_type][1].settings_of(config)
    except UserError as error:
        raise UserError(f"--gguf: only models that lmplay has itself can be written, and {error}") from None


def write_gguf(path: Path, model: PreTrainedModel, tokenizer: Tokenizer | None, name: str, dtype: str, chat_template: str | None, overwrite: bool) -> None:
    """Write a model and its tokenizer into one file: first under a temporary name, synced, then renamed.

    :param model: one that :func:`check_model` takes, in float32.
    :param tokenizer: None = the file has none.
    :param name: of the model.
    :param dtype: of matrices; vectors, and the table of positions, are float32.
    :param overwrite: a file that is there may be replaced.
    :raises UserError: when the file cannot be written, is being written, or the tokenizer has no form in it.
    """
    import gguf

    temporary = temporary_name(path)
    writer = gguf.GGUFWriter(temporary, _architecture(model.config)[0])
    _add_settings(writer, model.config, name, dtype)
    if tokenizer is None:
        writer.add_tokenizer_model("none")
    else:
        _add_tokenizer(writer, tokenizer, model, chat_template)
    _add_weights(writer, model, dtype)
    with locked(path):
        check_gguf(path, overwrite)  # another export may just have written it
        unfinished.add(str(temporary))
        try:
            check_free_bytes(path.parent, sum(tensor.nbytes for tensors in writer.tensors for tensor in tensors.values()))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            raise UserError(f"--gguf {path}: cannot be written ({error.strerror or error}).") from None
        finally:
            temporary.unlink(missing_ok=True)
            unfinished.discard(str(temporary))


def _architecture(config: Any) -> tuple[str, bool]:
    """Choose the name of the model in GGUF, and whether its rotary positions turn neighbours there."""
    if config.model_type == "qwen2" and config.head_dim * config.num_attention_heads != config.hidden_size:
        return "llama", True  # Qwen 2 in llama.cpp has no width of heads of its own; Llama has, and may have these biases, too
    name, _, neighbours = _ARCHITECTURES[config.model_type]
    return name, neighbours


def _add_settings(writer: Any, config: Any, name: str, dtype: str) -> None:
    """Say what the model is."""
    import gguf

    writer.add_name(name)
    writer.add_description(f"trained with lmplay {__version__}")
    writer.add_file_type({"float32": gguf.LlamaFileType.ALL_F32, "float16": gguf.LlamaFileType.MOSTLY_F16, "bfloat16": gguf.LlamaFileType.MOSTLY_BF16}[dtype])
    writer.add_vocab_size(config.vocab_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _add_weights(writer: Any, model: PreTrainedModel, dtype: str) -> None:
    """Add the weights by their names in GGUF; that of a tied head is left out."""
    import gguf
    import torch

    config: Any = model.config
    architecture, neighbours = _architecture(config)
    names = gguf.get_tensor_name_map(next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture), config.num_hidden_layers)
    kinds = {"float32": gguf.GGMLQuantizationType.F32, "float16": gguf.GGMLQuantizationType.F16, "bfloat16": gguf.GGMLQuantizationType.BF16}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weight = weight.detach().to(torch.float32)
        if config.model_type == "gpt2" and weight.ndim == 2 and ".h." in name:
            weight = weight.t()
        if neighbours and ("q_proj" in name or "k_proj" in name):
            weight = _interleaved(weight, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        kind = kinds[dtype] if weight.ndim > 1 and "wpe" not in name else kinds["float32"]
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), gguf.quants.quantize(weight.contiguous().numpy(), kind), raw_dtype=kind)


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    """Order the rows of each head for rotary positions that turn neighbours, where ours turn numbers of the first half with those of the second."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _add_tokenizer(writer: Any, tokenizer: Tokenizer, model: PreTrainedModel, chat_template: str | None) -> None:
    """Add the tokens, one for each of the rows of the model, their merges and the special ones; raises UserError for a tokenizer that is not of bytes."""
    import gguf

    generation: Any = model.generation_config
    ends, rows = generation.eos_token_id, int(model.config.vocab_size)
    settings = json.loads(as_fast(tokenizer).to_str())
    pre_tokenizer = "gpt-2" if tokenizer.spec["kind"] == "bytes" else _PRE_TOKENIZERS.get(pattern_of(settings) or "")
    if pre_tokenizer is None:
        raise UserError(f"--gguf: the tokenizer {tokenizer.name} has no form in GGUF that is known to give the same ids (those of bytes have, split as GPT-2, "
                        "Qwen 2 or Llama 3 do); --no-tokenizer leaves it out.")
    tokens = [f"[PAD{number}]" for number in range(rows)]
    types = [gguf.TokenType.UNUSED] * len(tokens)
    for token, number in settings["model"]["vocab"].items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for added in settings["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in settings["model"]["merges"]]
    writer.add_token_merges(merges or [" ".join(2 * [tokens[tokenizer.end_id]])])  # llama.cpp opens no file without any; this one never applies
    writer.add_bos_token_id(tokenizer.end_id)
    writer.add_eos_token_id(tokenizer.end_id)
    writer.add_pad_token_id(tokenizer.end_id)
    for mark in ends if isinstance(ends, list) else ():
        if mark != tokenizer.end_id:
            writer.add_eot_token_id(mark)  # what ends the answers of a chat
    writer.add_add_bos_token(False)  # as none is put before a text in training
    if chat_template is not None:
        writer.add_chat_template(chat_template)
