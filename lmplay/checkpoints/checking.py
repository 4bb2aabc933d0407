"""Whether a state is whole: its checksums, what it consists of, and the weights that its model has."""
from __future__ import annotations

from pathlib import Path

import torch

from ..exp import build_model, get_experiment, split_name
from ..tokenizer import Tokenizer
from .base import put_on, with_base
from .format import load, verify
from .weights import check_weights


def check(path: Path) -> str:
    """Check a state without building its model.

    :return: what was checked, and how far it is.
    :raises UserError: when it is damaged, has an unknown format, names weights that its model has not or lacks some, or the base of its adapter is not there.
    """
    content = with_base(path, load(path, parts=("model",), mmap=True))
    model = content["model"]
    built = model["state_args"]
    said = "checksum right" if path.is_dir() or verify(path) else "no checksum"  # a folder has one
    if split_name(built["experiment"])[1]:
        said += f", weights not compared with {built['experiment']}"
    else:
        with torch.device("meta"):
            shapes = build_model(get_experiment(built["experiment"]), vocab_size=Tokenizer(built["tokenizer"]).vocab_size, **built["args"])
        check_weights(shapes.state_dict(), model.get("base", model["state"]), built["experiment"])
        if "adapter" in built:
            put_on(shapes, model, built["experiment"])
    stats = content.get("runner", {}).get("state", {}).get("stats")
    return f"{said}, " + (f"{stats['total_train_samples']:,} samples trained" if stats is not None else "weights alone")
