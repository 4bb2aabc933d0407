"""What a checkpoint holds (`--inspect`, `lmp_checkpoint inspect`), without building a model or reading its tensors."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..checkpoints.base import base_file, is_whole
from ..checkpoints.format import read, tensor_bytes, verify
from ..checkpoints.pieces import memory_of
from ..errors import printable
from ..files import size_of
from ..plan.options import FLAGS
from ..plan.settings import Settings
from ..streams import put
from ..words import counted

_CHECKSUMS = {True: "right", False: "wrong", None: "none"}


def inspect(path: Path) -> dict[str, Any]:
    """Read a checkpoint, or a file of weights alone, and return plain values of what it has; raises UserError when it cannot be read."""
    content = read(path, mmap=True, check=False)
    result: dict[str, Any] = {"file": str(path), "bytes": size_of(path), "checksum": _CHECKSUMS[verify(path)],
                              "format": content["format"], "versions": content.get("versions", {})}
    if path.is_dir():
        result["shards"] = sum(1 for _ in path.glob("shard-*.safetensors"))
    parts = {name: part for name, part in content.items() if isinstance(part, dict) and "state" in part}
    if "model" in parts:
        result["model"] = _model(parts["model"], path)
    if "curriculum" in parts and "runner" in parts:
        result["stages"] = _stages(parts["curriculum"], parts["runner"]["state"].get("step_stats", {}))
    if "runner" in parts:
        result["run"] = {**_progress(parts["runner"]["state"]["stats"]), "seconds": parts["runner"]["state"]["clock"]["seconds"],
                         "resumes": len(parts["runner"]["state"]["clock"]["resumes"])}
        settings, defaults = parts["runner"]["state_args"]["settings"], Settings()  # only those that are not the defaults of this version are shown
        names = [flag.name for flag in FLAGS if flag.name in settings]
        result["settings"] = {name: settings[name] for name in names if settings[name] != getattr(defaults, name)}
    result["bytes_by_component"] = {name: tensor_bytes(part["state"]) for name, part in parts.items()}
    return result


def print_state(path: Path, as_json: bool) -> int:
    """Print what a state holds, and return the exit code: one whose checksum is wrong is bad input."""
    found = inspect(path)
    put(json.dumps(found, indent=2) if as_json else to_text(found))
    return 2 if found["checksum"] == "wrong" else 0


def to_text(found: dict[str, Any]) -> str:
    """Write the result of :func:`inspect` as text."""
    shards = f" in {counted(found['shards'], 'shard')}" if "shards" in found else ""
    lines = [f"file        {found['file']}: {found['bytes']:,} bytes{shards}, checksum {found['checksum']}",
             f"written by  {', '.join(f'{name} {version}' for name, version in found['versions'].items())} (format {found['format']})"]
    if "model" in found:
        model = found["model"]
        lines.append(f"model       {model['experiment']}: {model['parameters']:,} parameters, {_pairs(model['args'])}")
        if (adapter := model.get("adapter")) is not None:
            lines.append(f"adapter     {adapter['kind']}, rank {adapter['rank']}, alpha {adapter['alpha']:g}, on {counted(adapter['layers'], 'layer')}; "
                         f"the weights below it are in {adapter['base']} ({adapter['base_is']})")
        lines.append(f"tokenizer   {model['tokenizer']}")
    if "run" in found:
        lines += [f"trained     {_in_words(found['run'])}", f"            in {found['run']['seconds']:,.0f} s, resumed {found['run']['resumes']} times"]
    for number, stage in enumerate(found.get("stages", ()), 1):
        lines.append(f"stage {number:<6}{stage['name']} ({stage['is']}){': ' if 'samples' in stage else ''}{_in_words(stage)}")
    if "settings" in found:
        lines.append(f"settings    {_pairs(found['settings']) or 'the defaults'}")
    lines += [f"size        {name:<14}{size:>16,} bytes of tensors" for name, size in found["bytes_by_component"].items()]
    return "\n".join(map(printable, lines))  # a stranger's file may hold what moves the cursor


def _model(part: dict[str, Any], path: Path) -> dict[str, Any]:
    """Describe the model; a weight that two modules share counts once. Of one with an adapter the file has that alone."""
    built = part["state_args"]
    weights = {memory_of(tensor)[0]: tensor.numel() for tensor in part["state"].values()}
    found = {"experiment": built["experiment"], "args": built["args"], "tokenizer": built["tokenizer"]["name"], "parameters": sum(weights.values())}
    if (adapter := built.get("adapter")) is None:
        return found
    base = base_file(path, adapter["base"])
    is_there = "there" if is_whole(base) else "damaged" if base.exists() else "gone"
    return {**found, "adapter": {**adapter, "layers": len(adapter["layers"]), "base": str(base), "base_is": is_there}}


def _stages(part: dict[str, Any], stats: dict[str, Any]) -> list[dict[str, Any]]:
    """List the stages, whether each is done, and what was trained in it."""
    plan = part["state_args"]["plan"]["stages"]
    result = []
    for stage, state in zip(plan, part["state"]["stages"], strict=False):
        progress = "done" if state["done"] else "begun" if state["fingerprints"] is not None else "to do"
        result.append({"name": stage["name"], "is": progress, **(_progress(stats[stage["name"]]) if stage["name"] in stats else {})})
    return result


def _progress(stats: dict[str, Any]) -> dict[str, Any]:
    """Return how much was trained, and the losses: the newest in the history, of the best validation and of the final one."""
    rows = stats["train"]["rows"]
    last = rows["loss_sum"][-1] / rows["n_tokens"][-1] if rows["n_tokens"] and rows["n_tokens"][-1] else None
    return {"samples": stats.get("total_train_samples", 0), "tokens": stats.get("total_train_tokens", 0), "steps": stats.get("total_train_steps", 0),
            "loss": last, "best_validation": stats["best"], "final_validation": stats["final"]}


def _in_words(progress: dict[str, Any]) -> str:
    """Write samples, tokens, steps and losses, where there are any."""
    if "samples" not in progress:
        return ""
    text = f"{progress['samples']:,} samples, {progress['tokens']:,} tokens, {progress['steps']:,} steps"
    if progress["loss"] is not None:
        text += f", loss {progress['loss']:.3f}"
    for name in ("best", "final"):
        validation = progress[f"{name}_validation"]
        if validation is not None:
            text += f", {name} validation {validation['loss']:.3f}"
    return text


def _pairs(values: dict[str, Any]) -> str:
    """Write names with their values."""
    return ", ".join(f"{name} {value}" for name, value in values.items())
