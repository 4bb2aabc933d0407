"""Any causal language model of `transformers`, fresh or with its weights: `hf:NAME_OR_FOLDER`.  Shapes: B pieces, T positions, D width, V vocabulary.

Attention is ours where the model leaves it to transformers' interface: so pieces can be packed, and generation reads each token once. It has neither the
sliding windows nor the soft caps of some models; those keep their own attention.
"""
from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers import logging as transformers_logging
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from ..errors import UserError
from ..hub import first_line, outage_of
from ..modules.cache import KeyValueCache
from ..modules.causal import causal_attention
from ..modules.heads import LinearTerms
from ..modules.packed import packed_attention, packed_positions
from ..paths import expanded
from .stored import check_stored, some

_OURS = "lmplay"
# Families whose attention is plain: causal, scaled, with or without groups. The others keep the attention of transformers.
_PLAIN = ("gpt2", "gpt_neox", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "phi3", "olmo2", "olmo3", "smollm3", "granite", "starcoder2")
# What says in a config how long a piece may be.
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len")
_DEFAULT_CONTEXT = 1024
# As many as --num-blocks allows.
_MOST_LAYERS = 10_000


def _attend(module: nn.Module, query_BHTK: Tensor, key_BGTK: Tensor, value_BGTK: Tensor, attention_mask: Tensor | None = None, dropout: float = 0.0,
            scaling: float | None = None, lmplay_cache: KeyValueCache | None = None, lmplay_lengths: tuple[int, ...] | None = None, **_: Any) \
        -> tuple[Tensor, None]:
    """Attend in the place of transformers' own functions; gives (B, T, H, K), and no weights."""
    if lmplay_cache is not None:
        return lmplay_cache.attend(query_BHTK, key_BGTK, value_BGTK, scaling).transpose(1, 2), None
    if lmplay_lengths is None:
        return causal_attention(query_BHTK, key_BGTK, value_BGTK, dropout, scaling).transpose(1, 2), None
    query_THK, key_TGK, value_TGK = (part[0].transpose(0, 1) for part in (query_BHTK, key_BGTK, value_BGTK))
    return packed_attention(query_THK, key_TGK, value_TGK, lmplay_lengths, dropout, scaling)[None], None


transformers_logging.disable_progress_bar()
AttentionInterface.register(_OURS, _attend)
AttentionMaskInterface.register(_OURS, lambda *_, **__: None)


def build_hf(vocab_size: int, context_len: int, config: dict[str, Any]) -> HuggingFace:
    """Build a model of transformers with fresh weights, see :class:`HuggingFace`."""
    return (_Packable if _has_plain_attention(config, context_len) else HuggingFace)(vocab_size, context_len, config)


class HuggingFace(nn.Module):
    """A causal language model of transformers: its base gives hidden states, and its output embeddings are the head."""

    def __init__(self, vocab_size: int, context_len: int, config: dict[str, Any]):
        """
        :param vocab_size: tokens of the tokenizer, at most those of the model.
        :param context_len: the longest sequence, in tokens.
        :param config: of the model, as in its config.json.
        :raises UserError: when the config is not one of a causal language model, or does not fit the tokenizer or the length.
        """
        super().__init__()
        settings = _config_of(config)
        _check_sizes(settings, vocab_size, context_len)
        self.context_len = context_len
        try:
            self.causal: PreTrainedModel = AutoModelForCausalLM.from_config(
                settings, dtype=torch.float32, attn_implementation=_OURS if isinstance(self, _Packable) else None)
        except (ValueError, ImportError, AttributeError, TypeError, KeyError) as error:
            raise UserError(f"experiment hf: a model of type {config.get('model_type')} cannot be built ({first_line(error)}).") from error
        self.causal.config.use_cache = False
        self._head = _head_of(self.causal)
        if not next(self.causal.parameters()).is_meta:
            self._check_head()

    @property
    def head(self) -> nn.Module:
        """Turns hidden states into logits (…, V)."""
        return self._head[0]

    @property
    def blocks(self) -> list[nn.Module]:
        """The layers, for activation checkpointing."""
        lists = [module for module in self.causal.base_model.modules() if isinstance(module, nn.ModuleList)]
        return list(max(lists, key=len, default=()))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Read tokens.

        :param tokens_BT: token ids, right-padded.
        :return: hidden states (B, T, D) after the last norm.
        """
        return self._read(tokens_BT)

    def as_transformers(self) -> PreTrainedModel:
        """Give the model, as transformers runs it by itself; see :mod:`lmplay.exp`."""
        self.causal.config._attn_implementation = "sdpa"
        self.causal.config.use_cache = True
        return self.causal.eval()

    def _read(self, tokens_BT: Tensor, **more: Any) -> Tensor:
        """Run the base of the model."""
        hidden_BTD: Tensor = self.causal.base_model(input_ids=tokens_BT, use_cache=False, **more).last_hidden_state
        return hidden_BTD

    def _check_head(self) -> None:
        """See that the head alone makes the logits; raises UserError where something else is added to them."""
        was_training = self.training
        self.eval()
        tokens = torch.arange(5)[None] % self.causal.config.get_text_config().vocab_size
        with torch.no_grad():
            same = torch.allclose(self.head(self(tokens)), self.causal(input_ids=tokens, use_cache=False).logits, rtol=1e-3, atol=1e-4)
        self.train(was_training)
        if not same:
            raise UserError(f"experiment hf: the logits of {type(self.causal).__name__} are not those of its output embeddings alone, which is what lmplay "
                            "trains; choose a model of another family.")


class _Packable(HuggingFace):
    """One with plain attention: pieces can be packed, and generation has a cache."""

    def forward(self, tokens_BT: Tensor, cache: KeyValueCache | None = None, lengths: tuple[int, ...] | None = None) -> Tensor:
        """See :class:`HuggingFace`.

        :param cache: in generation, the keys and values of the tokens before these; those of these tokens are added.
        :param lengths: where B is 1: in tokens, of the pieces packed into this row, each read as if it were alone.
        """
        if cache is not None:
            cache.begin(tokens_BT.shape[1])
            return self._read(tokens_BT, position_ids=cache.positions_BT, lmplay_cache=cache)
        if lengths is not None:
            positions_T = packed_positions(lengths, tokens_BT.device, tokens_BT.shape[1])
            return self._read(tokens_BT, position_ids=positions_T[None], lmplay_lengths=lengths)
        return self._read(tokens_BT)


class _Head(nn.Module):
    """Output embeddings whose logits are scaled or capped."""

    def __init__(self, linear: nn.Linear, factor: float, soft_cap: float):
        super().__init__()
        self._linear, self._factor, self._soft_cap = (linear,), factor, soft_cap  # in a tuple: its weight is the model's, and has its name there

    @property
    def weight(self) -> Tensor:
        """That of the output embeddings."""
        return self._linear[0].weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Give the logits (…, V) of hidden states (…, D)."""
        logits = self._linear[0](hidden) * self._factor
        return self._soft_cap * (logits / self._soft_cap).tanh() if self._soft_cap else logits

    def linear_terms(self) -> LinearTerms | None:
        """Tell how the logits are computed, where an objective knows that kind."""
        return LinearTerms(self.weight, self._soft_cap) if self._factor == 1 and self._linear[0].bias is None else None


def _head_of(causal: PreTrainedModel) -> tuple[nn.Module]:
    """Find what makes logits of hidden states; in a tuple, so that it does not come twice among the parts of the model."""
    config, linear = causal.config.get_text_config(), causal.get_output_embeddings()
    factor = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1.0)
    soft_cap = getattr(config, "final_logit_softcapping", None) or 0.0
    return (linear if factor == 1 and not soft_cap else _Head(linear, factor, soft_cap),)


def _has_plain_attention(config: dict[str, Any], context_len: int) -> bool:
    """Tell whether our attention computes what that of the model would."""
    window = config.get("sliding_window")
    windowed = window is not None and window < context_len and config.get("use_sliding_window", True)
    return config.get("model_type") in _PLAIN and not windowed and not config.get("attn_logit_softcapping") and not config.get("reorder_and_upcast_attn")


def _config_of(config: dict[str, Any]) -> PretrainedConfig:
    """Make a config of plain values; raises UserError when transformers does not know its type."""
    values = {key: value for key, value in config.items() if key not in ("model_type", "auto_map", "transformers_version", "_attn_implementation")}
    try:
        return AutoConfig.for_model(str(config.get("model_type")), **values)
    except Exception as error:  # values of a file can raise anything
        raise UserError(f"experiment hf: the config is not one of transformers ({type(error).__name__}: {first_line(error)}).") from error


def _check_sizes(config: PretrainedConfig, vocab_size: int, context_len: int) -> None:
    """Refuse a tokenizer with more tokens, and a length with more positions, than the model has; raises UserError."""
    text, faults = config.get_text_config(), []
    if vocab_size > text.vocab_size:
        faults.append(f"experiment hf: the tokenizer has {vocab_size:,} tokens, and the model {text.vocab_size:,}; leave --tokenizer out to take the "
                      "model's own.")
    longest = longest_piece(config)
    if longest is not None and context_len > longest:
        faults.append(f"experiment hf: --context-len {context_len} is more than the model's {longest:,} positions; give {longest} or less.")
    if faults:
        raise UserError(*faults)


def longest_piece(config: PretrainedConfig) -> int | None:
    """Give the number of positions that a model has; None where there is no limit."""
    return next((int(value) for name in _LENGTHS if isinstance(value := getattr(config.get_text_config(), name, None), int) and value > 0), None)


def open_source(source: str, with_weights: bool = False) -> dict[str, Any]:
    """Read what a new model takes from a folder or a name on the hub.

    :param with_weights: its weights are to be read, too: see that they are those of its config.
    :return: settings for the constructor: `config`, and a `context_len` to begin with.
    :raises UserError: when there is no such model, or it needs code of its own.
    """
    if (source.startswith((".", "/", "~")) or source.endswith("/")) and not expanded(source).is_dir():
        raise UserError(f"experiment hf:{source}: there is no such folder.")
    config = read_config(source, f"experiment hf:{source}")
    if with_weights:
        check_source(source, config, f"experiment hf:{source}")
    plain = json.loads(config.to_json_string(use_diff=False))
    plain = {key: value for key, value in plain.items() if key not in ("transformers_version", "_name_or_path", "dtype")}
    return {"config": plain, "context_len": min(_DEFAULT_CONTEXT, longest_piece(config) or _DEFAULT_CONTEXT)}


def read_config(source: str, label: str) -> PretrainedConfig:
    """Read the config of a folder or a name on the hub; `label` is what it is called in the message of the UserError."""
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(_located(source), trust_remote_code=False)
    except Exception as error:
        raise _cannot_be_read(source, label, error) from error
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > _MOST_LAYERS:
        raise UserError(f"{label}: its config says {layers:,} layers; at most {_MOST_LAYERS:,} are read.")
    return config


def read_weights(source: str, label: str, otherwise: str = "") -> dict[str, Tensor]:
    """Read the weights of a folder or a name on the hub, in float32, by the names of transformers.

    :param label: what it is called in messages.
    :param otherwise: what else to do, for messages.
    :raises UserError: when there are none, or they are not those of its config.
    """
    load: Any = AutoModelForCausalLM.from_pretrained
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # what is missing is said below, in a line
    try:
        model, loading = load(_located(source), dtype=torch.float32, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True)
    except Exception as error:
        raise _cannot_be_read(source, label, error, otherwise) from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    weights: dict[str, Tensor] = model.state_dict()
    faults = [f"has no weights for {some(sorted(loading['missing_keys']))}; it may be a model of another kind"] if loading["missing_keys"] else []
    faults += [f"its weight {name} has the shape {tuple(found)}, and by its config it would be {tuple(wanted)}"
               for name, found, wanted in sorted(loading["mismatched_keys"])[:1]]
    faults += [f"its weight {name} is not finite" for name, weight in weights.items() if not weight.isfinite().all()][:1]
    if _is_untied(model):
        faults.append("its config says that the head is the embedding (tie_word_embeddings), and its files have two that differ; where they are right, write "
                      "false there")
    if faults:
        raise UserError(f"{label}: {'; '.join(faults)}.{otherwise}")
    return weights


def check_source(source: str, config: PretrainedConfig, label: str) -> None:
    """Compare what a folder has on the disk with its config, see :func:`.stored.check_stored`."""
    def outline() -> nn.Module:
        with torch.device("meta"):
            module: nn.Module = AutoModelForCausalLM.from_config(config)
        return module

    if expanded(source).is_dir():
        check_stored(expanded(source), outline, label)


def _is_untied(model: PreTrainedModel) -> bool:
    """Tell whether head and embedding differ though the config says that they are one."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    weights = getattr(embedding, "weight", None), getattr(head, "weight", None)
    if not model.config.get_text_config().tie_word_embeddings or not all(isinstance(weight, Tensor) for weight in weights):
        return False
    return weights[0] is not weights[1] and not torch.equal(*weights)  # type: ignore[arg-type]


def read_own_weights(source: str, label: str | None = None) -> dict[str, Tensor]:
    """Read weights by the names that they have in :class:`HuggingFace`, see :func:`read_weights`.

    :param label: what it is called in messages; None = the experiment, which may also begin with fresh weights.
    """
    more = f" To start with fresh weights: --exp hf-fresh:{source}." if label is None else ""
    weights = read_weights(source, label or f"experiment hf:{source}", more)
    return {f"causal.{name}": value for name, value in weights.items()}


def _located(source: str) -> str:
    """Give a folder its whole name, and leave a name on the hub as it is."""
    path = expanded(source)
    return str(path) if path.is_dir() else source


def _cannot_be_read(source: str, label: str, error: Exception, more: str = "") -> UserError:
    """Say in a line why a model cannot be read."""
    if outage_of(error) is not None:
        return UserError(f"{label}: the hub cannot be reached, and {source} is neither a folder here nor in the hub's cache.")
    return UserError(f"{label}: cannot be read ({type(error).__name__}: {first_line(error)}).{more}")
