"""The GPT-2 family: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".  Shapes: B pieces, T positions, D width, V vocabulary."""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import UserError, nearest
from ..modules.attention import CausalSelfAttention
from ..modules.blocks import NORM_EPSILON, PreNormBlock
from ..modules.cache import KeyValueCache
from ..modules.checks import check_sizes
from ..modules.mlps import Mlp, gelu, gelu_tanh
from ..modules.packed import Lengths, packed_positions
from ..modules.positions import check_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ACTIVATIONS = {"gelu_tanh": gelu_tanh, "gelu": gelu}


class GPT2ish(nn.Module):
    """Pre-norm transformer with learned positions and fresh weights; with GPT-2's weights it computes GPT-2's logits."""

    compiles_packed = True

    def __init__(self, vocab_size: int, context_len: int, num_blocks: int, embed_dim: int, num_heads: int, dropout: float = 0.1, tied_head: bool = True,
                 activation: str = "gelu_tanh"):
        """
        :param context_len: the longest sequence, in tokens.
        :param embed_dim: D, a multiple of `num_heads`.
        :param dropout: share of embeddings, attention weights and outputs of blocks that is dropped during training; 0.1 is GPT-2's.
        :param tied_head: the head's weight is the token embedding's.
        :param activation: of the MLPs: `gelu_tanh` as in GPT-2, or `gelu`, which it approximates, as in nanoGPT.
        :raises UserError: when a size is not a positive number, or the heads don't divide the width.
        """
        super().__init__()
        check_sizes(vocab_size, context_len, num_blocks, embed_dim, num_heads, dropout)
        if activation not in _ACTIVATIONS:
            raise UserError(f"activation {activation}: allowed is one of {', '.join(_ACTIVATIONS)}.{nearest(activation, _ACTIVATIONS)}")
        self.context_len = context_len
        self.token_embedding: nn.Module = nn.Embedding(vocab_size, embed_dim)
        self.position_embedding = nn.Embedding(context_len, embed_dim)
        self.embedding_dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            PreNormBlock(embed_dim, self._make_attention(embed_dim, num_heads, dropout), Mlp(embed_dim, dropout, activation=_ACTIVATIONS[activation]))
            for _ in range(num_blocks))
        self.final_norm = nn.LayerNorm(embed_dim, NORM_EPSILON)
        # on "meta" the weight that a tied head does not need takes neither memory nor random numbers
        self.head = nn.Linear(embed_dim, vocab_size, bias=False, device="meta" if tied_head else None)
        if tied_head:
            self.head.weight = self.token_embedding.get_parameter("weight")
        self._initialize(num_blocks)

    def forward(self, tokens_BT: Tensor, cache: KeyValueCache | None = None, lengths: Lengths | None = None) -> Tensor:
        """Read tokens.

        :param tokens_BT: token ids, right-padded (no position sees a later one, so padding needs no mask).
        :param cache: in generation, the keys and values of the tokens before these; those of these tokens are added.
        :param lengths: where B is 1: of the pieces packed into this row, each read as if it were alone.
        :return: hidden states after the final norm (B, T, D); ``head(hidden)`` are the logits (B, T, V).
        :raises ValueError: when a piece has more tokens than the context length.
        """
        length = check_length(tokens_BT, self.context_len, lengths)
        if cache is not None:
            cache.begin(length)
            positions = self.position_embedding(cache.positions_BT)
        elif lengths is not None:
            positions = self.position_embedding(packed_positions(lengths, tokens_BT.device, tokens_BT.shape[1]))
        else:
            positions = self.position_embedding.weight[:length]
        hidden_BTD = self.embedding_dropout(self.token_embedding(tokens_BT) + positions)
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD, cache, lengths)
        return self.final_norm(hidden_BTD)

    def as_transformers(self) -> PreTrainedModel:
        """Make the same GPT2LMHeadModel; see :mod:`lmplay.exp`."""
        from .standard import build_standard, refuse_for

        attention, mlp = self.blocks[0].get_submodule("attention"), self.blocks[0].get_submodule("mlp")
        refuse_for(self, {"the layer norm on values": attention.value_norm is not None})
        vocab_size, embed_dim = self.head.weight.shape
        dropout = self.embedding_dropout.p
        config = {"model_type": "gpt2", "vocab_size": vocab_size, "n_positions": self.context_len, "n_embd": embed_dim, "n_layer": len(self.blocks),
                  "n_head": attention.num_heads, "activation_function": "gelu" if mlp.activation is gelu else "gelu_new", "layer_norm_epsilon": NORM_EPSILON,
                  "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout,
                  "tie_word_embeddings": self.head.weight is self.token_embedding.get_parameter("weight")}
        return build_standard(config, {_transformers_name(name): _turned(name, weight) for name, weight in self.state_dict().items()})

    def _make_attention(self, embed_dim: int, num_heads: int, dropout: float) -> CausalSelfAttention:
        """Make the attention of a block."""
        return CausalSelfAttention(embed_dim, num_heads, dropout)

    def _initialize(self, num_blocks: int) -> None:
        """Draw weights as GPT-2 does: N(0, 0.02), with a smaller deviation in the 2 * num_blocks layers that add to the residual stream; biases are 0."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.endswith("projection.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * num_blocks))
            elif "norm" not in name:
                nn.init.normal_(parameter, std=0.02)


# Our names of weights and theirs. Their linear layers, all but the head, have weights that are turned.
_NAMES = {"token_embedding": "transformer.wte", "position_embedding": "transformer.wpe", "final_norm": "transformer.ln_f", "head": "lm_head"}
_BLOCK_NAMES = {"attention_norm": "ln_1", "mlp_norm": "ln_2", "attention.query_key_value": "attn.c_attn", "attention.projection": "attn.c_proj",
                "mlp.expansion": "mlp.c_fc", "mlp.projection": "mlp.c_proj"}


def _transformers_name(name: str) -> str:
    """Name a weight of :class:`GPT2ish` as `GPT2LMHeadModel` does."""
    module, kind = name.rsplit(".", 1)
    if module.startswith("blocks."):
        _, number, part = module.split(".", 2)
        return f"transformer.h.{number}.{_BLOCK_NAMES[part]}.{kind}"
    return f"{_NAMES[module]}.{kind}"


def _turned(name: str, weight: Tensor) -> Tensor:
    """Turn the weight of a linear layer, of ours for theirs or of theirs for ours."""
    return weight.t() if name.startswith("blocks.") and weight.ndim > 1 else weight


def from_transformers(weights: Mapping[str, Tensor], model: GPT2ish) -> dict[str, Tensor]:
    """Make a state of `model` of the weights of a GPT2LMHeadModel, of which it may have the first positions; raises KeyError where one is missing."""
    found = {name: _turned(name, weights[_transformers_name(name)]) for name in model.state_dict()}
    return {**found, "position_embedding.weight": found["position_embedding.weight"][:model.context_len]}


def from_nanogpt(weights: Mapping[str, Tensor], model: nn.Module, context_len: int) -> dict[str, Tensor]:
    """Make a state of `model` of the weights of nanoGPT's GPT, which have GPT-2's names; raises KeyError where one is missing. Biases that it lacks are 0."""
    def read(name: str, own: Tensor) -> Tensor:
        theirs = _transformers_name(name)
        return torch.zeros(own.shape) if name.endswith("bias") and theirs not in weights else weights[theirs].float()

    found = {name: read(name, own) for name, own in model.state_dict().items()}
    return {**found, "position_embedding.weight": found["position_embedding.weight"][:context_len]}


def settings_of(config: Any, context_len: int | None = None) -> dict[str, Any]:
    """Read the settings of :class:`GPT2ish` from a config of transformers.

    :param config: a GPT2Config.
    :param context_len: the longest sequence to come, in tokens; None = the longest that the config allows.
    :return: the arguments of the constructor.
    :raises UserError: when the model has something that :class:`GPT2ish` lacks.
    """
    activation = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}.get(config.activation_function)
    lacking = {f"activation_function {config.activation_function}": activation is None,
               f"n_inner {config.n_inner}": config.n_inner not in (None, 4 * config.n_embd),
               f"layer_norm_epsilon {config.layer_norm_epsilon:g}": config.layer_norm_epsilon != NORM_EPSILON,
               "attention without scale": not config.scale_attn_weights,
               "scale_attn_by_inverse_layer_idx": config.scale_attn_by_inverse_layer_idx,
               "add_cross_attention": config.add_cross_attention}
    if any(lacking.values()):
        raise UserError(f"gpt2ish lacks {', '.join(name for name, lacks in lacking.items() if lacks)} of this model.")
    return {"vocab_size": config.vocab_size, "context_len": context_len or config.n_positions, "num_blocks": config.n_layer, "embed_dim": config.n_embd,
            "num_heads": config.n_head, "dropout": config.resid_pdrop, "tied_head": bool(config.tie_word_embeddings), "activation": activation}
