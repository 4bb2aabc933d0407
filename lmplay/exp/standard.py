"""Models of transformers that compute what ours compute: what their ``as_transformers`` is made of."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ..errors import UserError
from ..hub import first_line


def build_standard(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """Build a model of transformers with these weights.

    :param config: as in its config.json, with `model_type`.
    :param weights: all of them, by its names.
    :raises UserError: when the installed transformers does not have the type, or does not take the config.
    """
    values = {**config, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "use_cache": True}
    kind = values.pop("model_type")
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values), dtype=torch.float32)
    except Exception as error:  # transformers checks a config with exceptions of its own
        raise UserError(f"the installed transformers makes no model of type {kind} of these settings ({type(error).__name__}: {first_line(error)}).") from error
    if "rope_theta" in config:  # where transformers before 5, and programs that follow it, look for it
        model.config.rope_theta = config["rope_theta"]
    model.load_state_dict(dict(weights), assign=True)
    model.tie_weights()
    return model.eval()


def rotary_config(model: Any, model_type: str, **more: Any) -> dict[str, Any]:
    """Give the config of a model of the Llama kind.

    :param model: a Llamaish or a Modern.
    :param more: of the config, which this does not know.
    """
    attention, mlp = model.blocks[0].attention, model.blocks[0].mlp
    vocab_size, embed_dim = model.head.weight.shape
    return {"model_type": model_type, "vocab_size": vocab_size, "hidden_size": embed_dim, "intermediate_size": mlp.projection.in_features,
            "num_hidden_layers": len(model.blocks), "num_attention_heads": attention.num_heads, "num_key_value_heads": attention.num_kv_heads,
            "head_dim": attention.head_dim, "max_position_embeddings": len(model.rotary.cosine_LK), "rms_norm_eps": model.final_norm.eps,
            "rope_theta": model.rotary.base, "rope_parameters": {"rope_type": "default", "rope_theta": model.rotary.base},
            "attention_dropout": attention.dropout, "tie_word_embeddings": model.head.weight is model.token_embedding.weight,
            **({"sliding_window": None} if model_type == "mistral" else {}), **more}


def refuse_for(model: nn.Module, prevents: Mapping[str, bool]) -> None:
    """Raise a UserError that names the settings which no model of transformers has, where there are any."""
    found = [name for name, prevented in prevents.items() if prevented]
    if found:
        raise UserError(f"no model of transformers computes what {type(model).__name__} does with {' and '.join(found)}; only a model trained without can be "
                        "exported.")


def as_transformers(model: nn.Module, experiment: str) -> PreTrainedModel:
    """Make the model of transformers that computes what a model of ours does; raises UserError where there is none."""
    if not hasattr(model, "as_transformers"):
        raise UserError(f"experiment {experiment}: has no form in transformers (no method as_transformers).")
    made: PreTrainedModel = model.as_transformers()  # type: ignore[operator]
    return made
