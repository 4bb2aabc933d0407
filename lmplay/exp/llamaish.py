"""The Llama family (Touvron et al. 2023, "LLaMA"), with Mistral, Qwen2 and Qwen3 by settings.  Shapes: B pieces, T positions, D width, V vocabulary."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..modules.attention import CausalSelfAttention
from ..modules.blocks import PreNormBlock
from ..modules.cache import KeyValueCache
from ..modules.checks import check_sizes
from ..modules.mlps import GatedMlp
from ..modules.norms import RMSNorm
from ..modules.packed import Lengths
from ..modules.positions import RotaryPositions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Llamaish(nn.Module):
    """Pre-norm transformer with RMSNorm, rotary positions, grouped-query attention and SwiGLU; with Llama's weights it computes Llama's logits."""

    compiles_packed = True

    def __init__(self, vocab_size: int, context_len: int, num_blocks: int, embed_dim: int, num_heads: int, dropout: float = 0.0, tied_head: bool = False,
                 num_kv_heads: int | None = None, head_dim: int | None = None, hidden_dim: int | None = None, rope_base: float = 10_000.0,
                 norm_epsilon: float = 1e-5, query_key_value_bias: bool = False, query_key_norm: bool = False):
        """
        :param dropout: share of attention weights and outputs of blocks that is dropped during training; Llama has none.
        :param num_kv_heads: heads of keys and values, a divisor of `num_heads`; None = `num_heads`.
        :param head_dim: width of a head; None = embed_dim / num_heads.
        :param hidden_dim: hidden width of the MLP; None = about 8/3 of `embed_dim`.
        :param rope_base: see :class:`RotaryPositions`.
        :param query_key_value_bias: as in Qwen2.
        :param query_key_norm: RMSNorm of each head of queries and keys, as in Qwen3.
        :raises UserError: when sizes do not fit each other.
        """
        super().__init__()
        check_sizes(vocab_size, context_len, num_blocks, embed_dim, num_heads, dropout, num_kv_heads=num_kv_heads, head_dim=head_dim, hidden_dim=hidden_dim)
        norm = partial(RMSNorm, eps=norm_epsilon)

        def block() -> PreNormBlock:
            width = head_dim or embed_dim // num_heads
            norms = [norm(width) if query_key_norm else None for _ in range(2)]
            attention = CausalSelfAttention(embed_dim, num_heads, dropout, num_kv_heads=num_kv_heads, head_dim=head_dim, bias=query_key_value_bias,
                                            projection_bias=False, query_norm=norms[0], key_norm=norms[1])
            return PreNormBlock(embed_dim, attention, GatedMlp(embed_dim, dropout, hidden_dim=hidden_dim), norm)

        self.token_embedding = nn.Embedding(vocab_size, embed_dim)
        self.blocks = nn.ModuleList(block() for _ in range(num_blocks))
        self.rotary = RotaryPositions(head_dim or embed_dim // num_heads, context_len, rope_base)
        self.final_norm = norm(embed_dim)
        self.head = nn.Linear(embed_dim, vocab_size, bias=False, device="meta" if tied_head else None)
        if tied_head:
            self.head.weight = self.token_embedding.weight
        self._initialize()

    def forward(self, tokens_BT: Tensor, cache: KeyValueCache | None = None, lengths: Lengths | None = None) -> Tensor:
        """Read tokens, see :mod:`lmplay.exp`.

        :return: hidden states after the final norm (B, T, D).
        :raises ValueError: when a piece has more tokens than the context length.
        """
        rotation = self.rotary(tokens_BT, cache, lengths)
        hidden_BTD = self.token_embedding(tokens_BT)
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD, cache, lengths, rotation)
        hidden_BTD = self.final_norm(hidden_BTD)
        return hidden_BTD

    def as_transformers(self) -> PreTrainedModel:
        """Make the same model of transformers: Llama, Mistral, Qwen2 or Qwen3; see :mod:`lmplay.exp`.

        Where there are biases it is a Qwen2 only if no other can be: with that type transformers takes every tokenizer for Qwen2's, whatever its files say.
        """
        from .standard import build_standard, rotary_config

        attention: Any = self.blocks[0].get_submodule("attention")
        biased, odd = attention.query_key_value.bias is not None, self.token_embedding.embedding_dim % attention.num_heads > 0
        kind = "qwen3" if attention.query_norm is not None else "llama" if not odd else "qwen2" if biased else "mistral"
        weights, more = to_transformers(self), {}
        if biased and kind != "qwen2":  # there the output has a bias, too
            more = {f"model.layers.{number}.self_attn.o_proj.bias": self.head.weight.new_zeros(self.token_embedding.embedding_dim)
                    for number in range(len(self.blocks))}
        return build_standard(rotary_config(self, kind, hidden_act="silu", attention_bias=bool(more)), weights | more)

    def _initialize(self) -> None:
        """Draw weights as Llama in transformers does: N(0, 0.02); biases are 0."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)


# Our names of weights and theirs. Where theirs are several, ours is their rows one below the other.
_NAMES = {"token_embedding": ("model.embed_tokens",), "final_norm": ("model.norm",), "head": ("lm_head",)}
_BLOCK_NAMES = {
    "attention_norm": ("input_layernorm",), "mlp_norm": ("post_attention_layernorm",),
    "attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "attention.projection": ("self_attn.o_proj",),
    "attention.query_norm": ("self_attn.q_norm",), "attention.key_norm": ("self_attn.k_norm",),
    "mlp.expansion": ("mlp.gate_proj", "mlp.up_proj"), "mlp.projection": ("mlp.down_proj",)}


def transformers_names(name: str) -> tuple[str, ...]:
    """Name a weight of :class:`Llamaish` as `LlamaForCausalLM`, `MistralForCausalLM`, `Qwen2ForCausalLM` and `Qwen3ForCausalLM` do.

    :param name: such as "blocks.0.attention.query_key_value.weight".
    :return: their names, such as "model.layers.0.self_attn.q_proj.weight"; where they are several, our weight is theirs one below the other.
    """
    module, kind = name.rsplit(".", 1)
    if module.startswith("blocks."):
        _, number, part = module.split(".", 2)
        return tuple(f"model.layers.{number}.{theirs}.{kind}" for theirs in _BLOCK_NAMES[part])
    return tuple(f"{theirs}.{kind}" for theirs in _NAMES[module])


def from_transformers(weights: Mapping[str, Tensor], model: nn.Module, name_of: Callable[[str], tuple[str, ...]] = transformers_names) -> dict[str, Tensor]:
    """Make a state of `model` of the weights of a transformers model.

    :raises KeyError: where one is missing (a tied head's may be).
    :raises UserError: where the outputs of attention have biases, which ours have not.
    :param model: a :class:`Llamaish`, or another whose weights `name_of` names, as :func:`transformers_names` does.
    """
    if any(name.endswith("self_attn.o_proj.bias") and weight.any() for name, weight in weights.items()):
        raise UserError("llamaish lacks the biases of the outputs of attention (self_attn.o_proj.bias) of this model.")
    tied = model.get_parameter("head.weight") is model.get_parameter("token_embedding.weight")
    return {name: torch.cat([weights[theirs] for theirs in name_of("token_embedding.weight" if tied and name == "head.weight" else name)])
            for name in model.state_dict()}


def to_transformers(model: nn.Module, state: Mapping[str, Tensor] | None = None, name_of: Callable[[str], tuple[str, ...]] = transformers_names) \
        -> dict[str, Tensor]:
    """Give the weights of `model` by the names of transformers.

    :param state: the weights; None = those of the model.
    :param name_of: see :func:`from_transformers`.
    """
    found: dict[str, Tensor] = {}
    for name, weight in (model.state_dict() if state is None else state).items():
        names = name_of(name)
        attention = model.get_submodule("blocks.0.attention")
        rows = attention.widths if len(names) == 3 else [len(weight) // len(names)] * len(names)
        found |= dict(zip(names, weight.split(rows), strict=True))
    return found


def settings_of(config: Any, context_len: int | None = None) -> dict[str, Any]:
    """Read the settings of :class:`Llamaish` from a config of transformers.

    :param config: a LlamaConfig, MistralConfig, Qwen2Config or Qwen3Config.
    :param context_len: the longest sequence to come, in tokens; None = the longest that the config allows.
    :return: the arguments of the constructor.
    :raises UserError: when the model has something that :class:`Llamaish` lacks.
    """
    kind, rope = config.model_type, config.rope_parameters
    context_len = context_len or config.max_position_embeddings
    lacking = {f"model_type {kind}": kind not in ("llama", "mistral", "qwen2", "qwen3"),
               f"rope_type {rope['rope_type']}": rope["rope_type"] != "default",
               f"hidden_act {config.hidden_act}": config.hidden_act != "silu",
               "a sliding window": slides(config, context_len),
               "attention_bias": getattr(config, "attention_bias", False) and kind not in ("llama", "qwen3"),
               "mlp_bias": getattr(config, "mlp_bias", False)}
    if any(lacking.values()):
        raise UserError(f"llamaish lacks {', '.join(name for name, lacks in lacking.items() if lacks)} of this model.")
    return {"vocab_size": config.vocab_size, "context_len": context_len, "num_blocks": config.num_hidden_layers,
            "embed_dim": config.hidden_size, "num_heads": config.num_attention_heads, "dropout": 0.0, "tied_head": bool(config.tie_word_embeddings),
            "num_kv_heads": config.num_key_value_heads, "head_dim": getattr(config, "head_dim", None), "hidden_dim": config.intermediate_size,
            "rope_base": rope["rope_theta"], "norm_epsilon": config.rms_norm_eps,
            "query_key_value_bias": kind == "qwen2" or bool(getattr(config, "attention_bias", False)), "query_key_norm": kind == "qwen3"}


def slides(config: Any, context_len: int) -> bool:
    """Tell whether some position may not attend to one before it within the context."""
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    return window is not None and window < context_len and (layers is None or "sliding_attention" in layers)
