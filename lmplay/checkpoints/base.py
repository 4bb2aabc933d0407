"""The weights below an adapter: they never change in a stage that trains one, so they are written once, and its states hold the adapter alone.

The file lies in the folder `bases` beside the model file and is named by a hash of the weights, so that what states need is never replaced by something else,
and runs that begin with the same weights share it. It is a file of weights alone, and can be used as any other.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import UserError
from ..exp import build_model, get_experiment
from ..files import check_free_bytes, link_atomic, make_folder, remove_leftovers
from ..modules.adapters import adapter_state, add_adapter, merge_adapter
from ..plan.settings import AdapterSettings
from ..tokenizer import Tokenizer
from .format import FORMAT, Verified, content_bytes, read, stage_file, verify, versions, write
from .weights import check_weights

_LEFT_OVER = 24 * 3600.0  # seconds: what is younger may be what a run on another machine is writing
FOLDER = "bases"
FINISHED = "adapters"
"""The folder of the adapters of stages that are done, beside that of the bases."""


def hash_weights(state: Mapping[str, torch.Tensor], update: Callable[[Any], None]) -> None:
    """Hash names, types and values of weights."""
    for name, tensor in sorted(state.items()):
        update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def is_whole(file: Path) -> bool:
    """Tell whether a file is there, and its checksum right."""
    return file.exists() and bool(verify(file))


def base_file(path: Path, identity: str) -> Path:
    """Return the file of the base of an identity, for a model file or the adapter of a stage that is done."""
    file = path.parent / FOLDER / f"{identity}.lmp"
    return file if path.parent.name != FINISHED or file.exists() else path.parent.parent / FOLDER / file.name


def finished_file(path: Path, stage: str) -> Path:
    """Return the file of the adapter of a stage that is done."""
    return path.parent / FINISHED / stage_file(path, stage).name


def keep_finished(path: Path, stage: str, model: dict[str, Any]) -> None:
    """Write the adapter of a stage that is done, as weights alone: what is merged cannot be taken apart again.

    :param path: NAME.lmp.
    :param model: the component, with the adapter.
    :raises OSError: when it cannot be written.
    """
    file = finished_file(path, stage)
    make_folder(file.parent, "folder of adapters")
    remove_leftovers(file.parent, lambda name: name == file.name, _LEFT_OVER)
    write(file, {"format": FORMAT, "versions": versions(), "model": model})


def keep_base(path: Path, model: dict[str, Any]) -> str:
    """Write the weights that an adapter is about to be put on; a whole file that is there already is left as it is.

    :param path: NAME.lmp.
    :param model: the component, without an adapter.
    :return: the identity of the base.
    :raises OSError: when it cannot be written.
    """
    identity = identify(model["state"])
    file = path.parent / FOLDER / f"{identity}.lmp"
    make_folder(file.parent, "folder of the weights below adapters")
    remove_leftovers(file.parent, lambda name: name == file.name, _LEFT_OVER)
    if not is_whole(file):
        content = {"format": FORMAT, "versions": versions(), "model": model}
        check_free_bytes(file.parent, content_bytes(content))
        try:
            write(file, content)
        except OSError:
            if not is_whole(file):  # else another run has written it at the same time
                raise
    return identity


def right_bases(path: Path) -> list[Path]:
    """Return the base of a state whose model has an adapter, if it is whole and the one that the adapter was trained on; else nothing.

    :param path: of the state, which has been verified.
    """
    with suppress(UserError, KeyError):
        built = read(path, mmap=True, check=False)["model"]["state_args"]
        file = base_file(path, built["adapter"]["base"])
        if identify(read(file, mmap=True)["model"]["state"]) == built["adapter"]["base"]:
            return [file]
    return []


def with_base(path: Path, content: dict[str, Any], verified: Verified | None = None) -> dict[str, Any]:
    """Read the base of a checkpoint whose model has an adapter, and put its weights beside the adapter's, as `base` of the component `model`.

    :param path: of the checkpoint.
    :param content: of the checkpoint.
    :param verified: has the bases that are known to be right; others are verified here.
    :return: the content; the same one where there is no adapter.
    :raises UserError: when the base is not there, is damaged, or is another one.
    """
    model = content["model"]
    if "adapter" not in model["state_args"]:
        return content
    identity = model["state_args"]["adapter"]["base"]
    file = base_file(path, identity)
    missing = f"model {path}: holds an adapter, and the weights below it, {file},"
    if not file.exists():
        raise UserError(f"{missing} are not there. Bring that file back{_instead(path, content)}.")
    try:
        is_known = verified is not None and file in verified.bases
        base = read(file, mmap=True, check=not is_known)["model"]["state"]
    except (UserError, KeyError) as error:
        raise UserError(f"{missing} cannot be read ({str(error).split('. ')[0]}). Bring that file back{_instead(path, content)}.") from None
    if not is_known and identify(base) != identity:
        raise UserError(f"{missing} are not those that it was trained on. Bring that file back{_instead(path, content)}.")
    return {**content, "model": {**model, "base": base}}


def bring_base(path: Path, content: dict[str, Any], found: Path) -> None:
    """Link the base of a state that was found elsewhere to where the states of a model file look for it."""
    adapter = content["model"]["state_args"].get("adapter")
    if adapter is not None and not is_whole(file := path.parent / FOLDER / f"{adapter['base']}.lmp"):
        make_folder(file.parent, "folder of the weights below adapters")
        link_atomic(base_file(found, adapter["base"]), file)


def settings_of(adapter: Mapping[str, Any]) -> AdapterSettings:
    """Read the settings of an adapter that a checkpoint holds."""
    return AdapterSettings(adapter["kind"], adapter["rank"], float(adapter["alpha"]), float(adapter["dropout"]), adapter["layers"],
                           adapter.get("quantize"))


def put_on(module: nn.Module, model: Mapping[str, Any], experiment: str) -> None:
    """Put the adapter that a checkpoint holds on a model; raises UserError where it does not fit.

    :param module: without an adapter; may be on "meta", and then it is only checked.
    :param model: the checkpoint's component.
    :param experiment: the model's name, for messages.
    """
    adapter = model["state_args"]["adapter"]
    add_adapter(module, settings_of(adapter), adapter["layers"])
    own = adapter_state(module)
    check_weights(own, model["state"], experiment)
    if not any(value.is_meta for value in own.values()):
        module.load_state_dict(model["state"], strict=False)


def open_model(model: dict[str, Any]) -> nn.Module:
    """Build the model of a checkpoint with its weights, and with its adapter beside them, where it has one.

    :param model: the component, of :func:`with_base`.
    :raises UserError: where the weights are not those of its experiment.
    """
    built, experiment = model["state_args"], get_experiment(model["state_args"]["experiment"])
    sizes = {"vocab_size": Tokenizer(built["tokenizer"]).vocab_size, **built["args"]}
    weights = model.get("base", model["state"])
    with torch.device("meta"):
        shapes = build_model(experiment, **sizes)
    check_weights(shapes.state_dict(), weights, experiment.name)
    if "adapter" in built:
        put_on(shapes, model, experiment.name)
    module = build_model(experiment, **sizes)
    module.load_state_dict(weights)
    if "adapter" in built:
        put_on(module, model, experiment.name)
    return module


def merged(model: dict[str, Any]) -> dict[str, Any]:
    """Give the component `model` of a checkpoint with its adapter merged into the weights; the same one where it has none.

    :param model: of :func:`with_base`.
    """
    if "adapter" not in model["state_args"]:
        return model
    module = open_model(model)
    merge_adapter(module)
    return {"state_args": {key: value for key, value in model["state_args"].items() if key != "adapter"}, "state": module.state_dict()}


def identify(state: Mapping[str, torch.Tensor]) -> str:
    """Give the identity of weights: a hash of them, as text."""
    said = blake2b(digest_size=16)
    hash_weights(state, said.update)
    return said.hexdigest()


def _instead(path: Path, content: dict[str, Any]) -> str:
    """Say what can be done where a base is gone."""
    stages = content.get("curriculum", {}).get("state", {}).get("stages", [])
    done = [stage["name"] for stage in stages if stage["done"]]
    before = stage_file(path.with_name(f"{content['runner']['state']['clock'].get('model', path.stem)}{path.suffix}"), done[-1]) if done else None
    if before is not None and before.exists():
        return f", or repeat the stage from its start with --resume {before}"
    return ", or start the run over with --reset-history, which keeps its files under other names" if stages else ""
