"""A transformer of what has been found to help since GPT-2, each part a setting.  Shapes: B pieces, T positions, D width, V vocabulary.

Many of the parts were first put together in the public "modded-nanogpt" speedruns (Jordan et al. 2024); `docs/experiments.md` says what each was worth here.
"""
from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..errors import UserError, nearest
from ..modules.attention import CausalSelfAttention
from ..modules.blocks import PreNormBlock
from ..modules.cache import KeyValueCache
from ..modules.checks import check_sizes
from ..modules.heads import LinearHead
from ..modules.mlps import GatedMlp, Mlp, gelu_tanh, squared_relu
from ..modules.norms import RMSNorm
from ..modules.packed import Lengths
from ..modules.positions import RotaryPositions
from . import llamaish

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_EPSILON = 1e-5
_PLAIN_MLPS = {"squared_relu": squared_relu, "gelu": gelu_tanh}
MLPS = (*_PLAIN_MLPS, "swiglu")


class Modern(nn.Module):
    """Pre-norm transformer with RMSNorm, rotary positions, QK-norm, grouped-query attention, squared ReLU, and what else its settings say; no biases."""

    compiles_packed = True

    def __init__(self, vocab_size: int, context_len: int, num_blocks: int, embed_dim: int, num_heads: int, dropout: float = 0.0, tied_head: bool = False,
                 num_kv_heads: int | None = None, mlp: str = "squared_relu", hidden_dim: int | None = None, rope_base: float = 10_000.0,
                 query_key_norm: bool = True, value_norm: bool = False, norm_weights: bool = False, zero_projections: bool = True,
                 embedding_norm: bool = True, embedding_std: float = 0.02, head_std: float = 0.0, soft_cap: float = 0.0, z_loss: float = 0.0,
                 value_residual: bool = False, value_embeddings: int = 0, residual_scalars: bool = False, multi_token: int = 0,
                 multi_token_weight: float = 0.3, sampled_tokens: int = 0):
        """
        :param dropout: share of embeddings, attention weights and outputs of blocks that is dropped during training.
        :param num_kv_heads: heads of keys and values, a divisor of `num_heads`; None = `num_heads`.
        :param mlp: one of :data:`MLPS`.
        :param hidden_dim: hidden width of the MLP; None = 4 `embed_dim`, for swiglu about 8/3 of it.
        :param rope_base: see :class:`RotaryPositions`.
        :param query_key_norm: RMSNorm of each head of queries and keys.
        :param value_norm: RMSNorm of each head of values.
        :param norm_weights: all these norms have weights.
        :param zero_projections: what is added to the residual stream is 0 at first, so that a fresh block changes nothing.
        :param embedding_norm: RMSNorm of the embeddings.
        :param embedding_std: standard deviation of fresh embeddings. Before a norm it says how far a step of an optimizer goes: 1 suits learning rates of
            embeddings that are far above the others.
        :param head_std: standard deviation of a fresh head's weights, where it isn't tied; 0 = every token is equally probable at first.
        :param soft_cap: see :class:`lmplay.modules.heads.LinearHead`, as for the next, and the last two.
        :param value_residual: each block mixes its values with those of the first (Zhou et al. 2024, "Value Residual Learning").
        :param value_embeddings: tables of values by token, mixed in in the last N blocks and, in the opposite order, the first N.
        :param residual_scalars: before each block the stream is mixed with the embeddings, by two learned factors.
        :param sampled_tokens: see `candidates` of :class:`lmplay.modules.heads.LinearTerms`.
        :raises UserError: when sizes do not fit each other, or a setting is unknown.
        """
        super().__init__()
        check_sizes(vocab_size, context_len, num_blocks, embed_dim, num_heads, dropout, num_kv_heads=num_kv_heads, hidden_dim=hidden_dim)
        _check_settings(mlp, value_embeddings, num_blocks, head_std, embedding_std)
        norm = partial(RMSNorm, eps=_EPSILON, elementwise_affine=norm_weights)
        mirrored = {number: min(number, num_blocks - 1 - number) for number in range(num_blocks)}
        self._value_table = {number: table for number, table in mirrored.items() if table < value_embeddings}

        def block(number: int) -> PreNormBlock:
            width = embed_dim // num_heads
            norms = [norm(width) if wanted else None for wanted in (query_key_norm, query_key_norm, value_norm)]
            attention = CausalSelfAttention(
                embed_dim, num_heads, dropout, num_kv_heads=num_kv_heads, bias=False, query_norm=norms[0], key_norm=norms[1], value_norm=norms[2],
                mixes_values=number in self._value_table or (value_residual and number > 0))
            layers = GatedMlp(embed_dim, dropout, hidden_dim=hidden_dim) if mlp == "swiglu" else \
                Mlp(embed_dim, dropout, hidden_dim=hidden_dim, bias=False, activation=_PLAIN_MLPS[mlp])
            return PreNormBlock(embed_dim, attention, layers, norm)

        self.token_embedding = nn.Embedding(vocab_size, embed_dim)
        self.embedding_norm = norm(embed_dim) if embedding_norm else None
        self.embedding_dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(block(number) for number in range(num_blocks))
        self.rotary = RotaryPositions(embed_dim // num_heads, context_len, rope_base)
        kv_width = embed_dim // num_heads * (num_kv_heads or num_heads)
        self.value_embeddings = nn.ModuleList(nn.Embedding(vocab_size, kv_width) for _ in range(value_embeddings))
        self.value_residual = value_residual
        # factors, not matrices: of one dimension they neither decay nor are orthogonalized
        self.stream_factors = nn.Parameter(torch.ones(num_blocks)) if residual_scalars else None
        self.embedded_factors = nn.Parameter(torch.zeros(num_blocks)) if residual_scalars else None
        self.final_norm = norm(embed_dim)
        self.head = LinearHead(embed_dim, vocab_size, soft_cap, z_loss, multi_token, multi_token_weight, sampled_tokens)
        if tied_head:
            self.head.weight = self.token_embedding.weight
        self._initialize(zero_projections, embedding_std, head_std)

    def forward(self, tokens_BT: Tensor, cache: KeyValueCache | None = None, lengths: Lengths | None = None) -> Tensor:
        """Read tokens, see :mod:`lmplay.exp`.

        :return: hidden states after the final norm (B, T, D).
        :raises ValueError: when a piece has more tokens than the context length.
        """
        rotation = self.rotary(tokens_BT, cache, lengths)
        embedded_BTD = self.token_embedding(tokens_BT)
        if self.embedding_norm is not None:
            embedded_BTD = self.embedding_norm(embedded_BTD)
        embedded_BTD = hidden_BTD = self.embedding_dropout(embedded_BTD)
        tables = [table(tokens_BT) for table in self.value_embeddings]
        first_values: Tensor | None = None
        for number, block in enumerate(self.blocks):
            if self.stream_factors is not None and self.embedded_factors is not None:
                hidden_BTD = self.stream_factors[number] * hidden_BTD + self.embedded_factors[number] * embedded_BTD
            values = tables[self._value_table[number]] if number in self._value_table else None
            if self.value_residual and number == 0:  # computed twice: a block gives hidden states alone
                first = cast("PreNormBlock", block)
                first_values = first.attention.values(first.attention_norm(hidden_BTD))
            elif first_values is not None:
                values = first_values if values is None else first_values + values
            hidden_BTD = block(hidden_BTD, cache, lengths, rotation, values)
        hidden_BTD = self.final_norm(hidden_BTD)
        return hidden_BTD

    def as_transformers(self) -> PreTrainedModel:
        """Make the same model of transformers; see :mod:`lmplay.exp`.

        With swiglu it is a Qwen3, or a Llama without `query_key_norm`; with another MLP an Apertus, or an Arcee. A norm of the embeddings is in their table.
        """
        from .standard import build_standard, refuse_for, rotary_config

        attention, mlp = self.blocks[0].get_submodule("attention"), self.blocks[0].get_submodule("mlp")
        refuse_for(self, {"value_norm": attention.value_norm is not None, "value_residual": self.value_residual, "soft_cap": bool(self.head.soft_cap),
                          "value_embeddings": bool(self.value_embeddings), "residual_scalars": self.stream_factors is not None})
        normed, gated = attention.query_norm is not None, isinstance(mlp, GatedMlp)
        kind = ("qwen3" if normed else "llama") if gated else ("apertus" if normed else "arcee")
        state = {name: weight for name, weight in self.state_dict().items() if not name.startswith(("head.ahead.", "embedding_norm."))}
        state |= {f"{name}.weight": torch.ones(part.normalized_shape) for name, part in self.named_modules()
                  if isinstance(part, RMSNorm) and part.weight is None and not name.startswith(("head.ahead.", "embedding_norm"))}
        if self.embedding_norm is not None:
            state["token_embedding.weight"] = self.embedding_norm(self.token_embedding.weight).detach()
        activation = "silu" if gated else next(theirs for theirs, ours in _ACTIVATIONS.items() if _PLAIN_MLPS[ours] is mlp.activation)
        config = rotary_config(self, kind, hidden_act=activation)
        config["tie_word_embeddings"] &= self.embedding_norm is None
        return build_standard(config, llamaish.to_transformers(self, state, partial(_transformers_names, kind=kind)))

    def _initialize(self, zero_projections: bool, embedding_std: float, head_std: float) -> None:
        """Draw weights: of matrices uniformly with the deviation 1 / sqrt(inputs), of embeddings and head as was asked for."""
        for name, parameter in self.named_parameters():
            if "projection" in name and (zero_projections or "ahead" in name):
                nn.init.zeros_(parameter)
            elif name == "head.weight":
                nn.init.normal_(parameter, std=head_std)
            elif "embedding" in name and parameter.ndim > 1:
                nn.init.normal_(parameter, std=embedding_std)
            elif parameter.ndim > 1:
                bound = (3 / parameter.shape[1]) ** 0.5
                nn.init.uniform_(parameter, -bound, bound)


def _check_settings(mlp: str, value_embeddings: int, num_blocks: int, head_std: float, embedding_std: float) -> None:
    """Refuse settings that are unknown or out of range; raises UserError with all faults."""
    faults = {
        f"mlp {mlp}: allowed is one of {', '.join(MLPS)}.{nearest(mlp, MLPS)}": mlp not in MLPS,
        f"value_embeddings {value_embeddings}: must be from 0 to half of the {num_blocks} blocks.": not 0 <= value_embeddings <= num_blocks // 2,
        f"head_std {head_std:g}: must be 0 or more.": not head_std >= 0,
        f"embedding_std {embedding_std:g}: must be above 0.": not embedding_std > 0}
    if found := [fault for fault, is_wrong in faults.items() if is_wrong]:
        raise UserError(*found)


# The activations of transformers, and ours.
_ACTIVATIONS = {"relu2": "squared_relu", "gelu_pytorch_tanh": "gelu"}
_APERTUS_NORMS = {"input_layernorm": "attention_layernorm", "post_attention_layernorm": "feedforward_layernorm"}


def _transformers_names(name: str, kind: str) -> tuple[str, ...]:
    """Name a weight as the models of a type do, see :func:`lmplay.exp.llamaish.transformers_names`."""
    names = llamaish.transformers_names(name)
    if kind in ("apertus", "arcee"):
        names = tuple(theirs for theirs in names if "gate_proj" not in theirs)
    for usual, theirs in _APERTUS_NORMS.items() if kind == "apertus" else ():
        names = tuple(part.replace(usual, theirs) for part in names)
    return names


def from_transformers(weights: Mapping[str, Tensor], model: Modern) -> dict[str, Tensor]:
    """Make a state of `model` of the weights of an Apertus or Arcee; raises KeyError where one is missing (a tied head's may be)."""
    kind = "arcee" if model.blocks[0].get_submodule("attention").query_norm is None else "apertus"
    return llamaish.from_transformers(weights, model, partial(_transformers_names, kind=kind))


def settings_of(config: Any, context_len: int | None = None) -> dict[str, Any]:
    """Read the settings of :class:`Modern` from a config of transformers.

    :param config: an ApertusConfig or ArceeConfig.
    :param context_len: the longest sequence to come, in tokens; None = the longest that the config allows.
    :return: the arguments of the constructor.
    :raises UserError: when the model has something that :class:`Modern` lacks.
    """
    rope, head_dim = config.rope_parameters, getattr(config, "head_dim", None)
    lacking = {f"rope_type {rope['rope_type']}": rope["rope_type"] != "default",
               f"hidden_act {config.hidden_act}": config.hidden_act not in _ACTIVATIONS,
               f"head_dim {head_dim}": head_dim not in (None, config.hidden_size // config.num_attention_heads),
               f"rms_norm_eps {config.rms_norm_eps:g}": config.rms_norm_eps != _EPSILON,
               "attention_bias": config.attention_bias, "mlp_bias": getattr(config, "mlp_bias", False)}
    if any(lacking.values()):
        raise UserError(f"modern lacks {', '.join(name for name, lacks in lacking.items() if lacks)} of this model.")
    return {"vocab_size": config.vocab_size, "context_len": context_len or config.max_position_embeddings, "num_blocks": config.num_hidden_layers,
            "embed_dim": config.hidden_size, "num_heads": config.num_attention_heads, "dropout": 0.0, "tied_head": bool(config.tie_word_embeddings),
            "num_kv_heads": config.num_key_value_heads, "hidden_dim": config.intermediate_size, "mlp": _ACTIVATIONS[config.hidden_act],
            "rope_base": rope["rope_theta"], "query_key_norm": config.model_type == "apertus", "norm_weights": True, "embedding_norm": False}
