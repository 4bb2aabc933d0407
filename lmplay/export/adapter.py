"""An adapter alone, as a folder of peft: `PeftModel.from_pretrained(BASE, FOLDER)` puts it on the exported base."""
from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import UserError
from .folder import write_record

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..checkpoints.trained import TrainedAdapter

_MARK = -7.0


def write_adapter(folder: Path, trained: TrainedAdapter) -> None:
    """Write an adapter as peft does.

    :param folder: an empty one.
    :raises UserError: where transformers has no such model, or none with these layers.
    :raises OSError: when something cannot be written.
    """
    from peft import LoraConfig
    from safetensors.torch import save_file

    from ..plan.names import ADAPTERS

    places, transposed = _places(trained)
    state: dict[str, torch.Tensor] = {}
    for theirs, (ours, rows) in places.items():
        for name, value in trained.state.items():
            if name.startswith(f"{ours}.lora_"):
                part = name.removeprefix(f"{ours}.").replace(".default", "").replace("lora_magnitude_vector.weight", "lora_magnitude_vector")
                state[f"base_model.model.{theirs}.{part}"] = (value if part.startswith("lora_A") else value[rows]).clone().contiguous()
    used = trained.settings
    settings: dict[str, Any] = {"r": used.rank, "lora_alpha": used.alpha, "lora_dropout": used.dropout, **ADAPTERS[used.kind]}
    config = LoraConfig(**settings, bias="none", fan_in_fan_out=transposed, inference_mode=True, target_modules=sorted(places), task_type="CAUSAL_LM")
    config.save_pretrained(str(folder))
    save_file(state, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    write_record(folder, {"lmplay": __version__, "experiment": trained.experiment, "base": trained.base, "adapter": used.kind, "rank": used.rank})


def _places(trained: TrainedAdapter) -> tuple[dict[str, tuple[str, torch.Tensor]], bool]:
    """Find the layers of the model of transformers that are ours, or rows of ours.

    Each weight that has an adapter is filled with the number of its layer and those of its rows, and looked for in what the model becomes.

    :return: by the names of transformers our layer and its rows; and whether these layers have transposed weights.
    """
    import torch

    from ..exp import build_model, get_experiment
    from ..exp.standard import as_transformers

    marked: Any = copy.deepcopy(trained.module)
    with torch.no_grad():
        for number, name in enumerate(trained.layers):
            weight: Any = _straight(marked.get_submodule(name))
            weight.fill_(_MARK)
            weight[:, 0], weight[:, 1] = torch.arange(len(weight)), number
    if hasattr(marked, "folded"):
        name, settings, weights = marked.eval().folded()
        marked = build_model(get_experiment(name), **settings)
        marked.load_state_dict(weights)
    found: dict[str, tuple[str, torch.Tensor]] = {}
    kinds: set[bool] = set()
    for name, module in as_transformers(marked, trained.experiment).named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
            continue
        straight = _straight(module)
        if straight.shape[1] > 2 and bool((straight[:, 2:] == _MARK).all()):
            found[name] = trained.layers[int(straight[0, 1])], straight[:, 0].long()
            kinds.add(type(module).__name__ == "Conv1D")
    covered = {layer: sum(len(rows) for ours, rows in found.values() if ours == layer) for layer in trained.layers}
    if lacking := [layer for layer, rows in covered.items() if rows != len(_straight(trained.module.get_submodule(layer)))]:
        raise UserError(f"--adapter-only: {lacking[0]} is no layer of the model of transformers, so its adapter cannot be exported by itself.")
    return found, kinds == {True}


def _straight(module: nn.Module) -> torch.Tensor:
    """Give the weight of a linear layer with a row for each output."""
    weight: torch.Tensor = module.get_parameter("weight").detach()
    return weight.T if type(module).__name__ == "Conv1D" else weight
