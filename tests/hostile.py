"""Plans, settings files, statistics, tokenizers and checkpoints as a stranger might make them: right ones, changed at random places into something else."""
from __future__ import annotations

import copy
import io
import json
import random
import shutil
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import yaml

from lmplay.checkpoints.format import write
from lmplay.generate.__main__ import main as generator
from lmplay.plotstats.__main__ import main as plotstats
from lmplay.train.__main__ import main as trainer

KINDS = ("plan.json", "plan.yaml", "flags.json", "flags.yaml", "statistics", "tokenizer", "checkpoint")
NASTY = [None, True, False, 0, -1, 1, 2**31, 2**63, 2**64 + 1, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x", "\0", "\033[2J", "\ud800",
         "x" * 5000, "../x", "/", "*", "[", "builtin:tales", "train:300", "bytes", "auto", "os:abort", [], {}, [[]], {"": {}}, {"a": 1}, {"path": "x"}]
PLAN = {"$description": "x", "$defaults": {"lr": 0.001, "validation": 0.1}, "$model": {"num_blocks": 1, "embed_dim": 16, "num_heads": 2, "context_len": 48},
        "$tokenizer": "bytes",
        "one": {"dataset": {"path": "builtin:tales", "weight": 1.0}, "samples": 9, "freeze": ["blocks.*"], "lr_schedule": {"name": "wsd"},
                "shuffle": {"seed": 1}, "early_stopping": {"patience": 3}},
        "two": {"dataset": ["a/b", {"path": "builtin:tales/2", "columns": {"text": "x"}}], "tokens": 100, "validation": {"samples": 3}}}
# Its data is all there.
LOCAL_PLAN = {**PLAN, "two": {"dataset": [{"path": "builtin:tales/2"}], "tokens": 100, "validation": {"samples": 3}}}
RIGHT = -1
FLAGS = {"lr": 0.1, "batch_size": 3, "num_blocks": 2, "mini_batch_size": "auto", "track": "csv", "time_limit": "1:00:00", "seed": 1, "tied_head": True,
         "dropout": 0, "pack": "on", "show_batch": "one:1", "activation_checkpointing": "on", "training_plan": "quickstart"}


def places(value: Any, at: tuple = ()) -> list[tuple]:
    """List where there is something in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, part in inner for place in places(part, (*at, key)))] if len(at) < 12 else [at]


def leaves(value: Any) -> list[Any]:
    """List the values in a value that have none in them."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if inner is None else [leaf for part in inner for leaf in leaves(part)]


class Unchanged(random.Random):
    """Draws the first of what there is to choose from, so that nothing is changed."""

    def choice(self, values: Any) -> Any:
        return values[0]

    def randrange(self, *bounds: int) -> int:
        return 1


def changed(value: Any, draw: random.Random, times: int) -> Any:
    """Change a value at a few places."""
    value = copy.deepcopy(value)
    for _ in range(times):
        *path, last = draw.choice([place for place in places(value) if place] or [("x",)])
        outer = value
        for step in path:
            outer = outer[step]
        what = draw.randrange(5)
        if what == 0:
            del outer[last]
        elif what == 1 and isinstance(outer, dict) and isinstance(last, str):
            outer[draw.choice(["", "x", last.upper(), last + "s", "$" + last, "\ud800", "a\nb"])] = outer.pop(last)
        elif what == 2:
            outer[last] = [outer[last]] * draw.choice([1, 2, 50])
        else:
            outer[last] = copy.deepcopy(draw.choice(NASTY))
        if not isinstance(value, dict) or not value:
            return value
    return value


def as_text(value: Any, draw: random.Random, in_yaml: bool) -> bytes:
    """Write a value, perhaps with some bytes changed."""
    try:
        data = (yaml.safe_dump(value) if in_yaml else json.dumps(value)).encode("utf-8", "surrogatepass")
    except ValueError:  # a number of too many digits
        data = b"{}"
    data = bytearray(data)
    for _ in range(draw.choice([0, 0, 0, 1, 5])):
        place = draw.randrange(len(data) + 1)
        what = draw.randrange(4)
        if what == 0:
            data[place:place] = draw.choice([b"[" * 3000, b"{", b"]", b'"', b"&a ", b"*a", b"!!int ", b"<<: ", b"- ", b"\xff", b"9" * 5000, b"NaN", b"\0"])
        elif what == 1:
            del data[place:place + draw.randrange(20)]
        elif what == 2:
            data[place:place + 1] = bytes([draw.randrange(256)])
        else:
            data += data[place:place + 200]
    return bytes(data)


class Hostile:
    """Makes inputs in a folder and gives them to the programs."""

    def __init__(self, folder: Path, checkpoint: dict[str, Any], statistics: dict[str, Any], tokenizer: dict[str, Any]):
        self.trained = 0  # the exit code of the last training
        self._folder, self._checkpoint, self._statistics, self._tokenizer = folder, checkpoint, statistics, tokenizer

    def warm_up(self) -> None:
        """Give right files to the programs, so that all is imported."""
        self._train({}, ["--dataset", "builtin:tales", "--tokenizer", "bytes"])
        for kind in KINDS:
            with suppress(Exception):
                self.try_one(kind, RIGHT)

    def fault(self, kind: str, seed: int) -> str:
        """Try an input; gives what is wrong, or the empty string. What is taken is trained for a step, where that is cheap."""
        codes = self.try_one(kind, seed)
        if not {*codes} <= {0, 2}:
            return f"exit codes {codes}"
        return self.train_taken(kind) if not codes[-1] else ""

    def train_taken(self, kind: str) -> str:
        """Train what has been taken for a step, where that is cheap: plans of small numbers, checkpoints; gives what is wrong, or the empty string."""
        if kind == "checkpoint":
            return self._train({}, ["--dataset", "builtin:tales", "--model", str(self._folder / "checkpoint.lmp")])
        if kind not in ("plan.json", "plan.yaml"):
            return ""
        plan = yaml.safe_load((self._folder / kind).read_bytes())
        cheap = all(not isinstance(value, int | float) or abs(value) <= 400 for value in leaves(plan))
        return self._train(plan.get("$model"), ["--training-plan", str(self._folder / kind)]) if cheap else ""

    def _train(self, model: Any, arguments: list[str]) -> str:
        """Train for a step; gives what is wrong, or the empty string."""
        sizes = [f"--{key.replace('_', '-')}={value}" for key, value in PLAN["$model"].items() if key not in (model or {})]
        out = self._folder / "trained"
        shutil.rmtree(out, ignore_errors=True)
        said = io.StringIO()
        with redirect_stderr(said):
            self.trained = trainer([*arguments, *sizes, "--out-dir", str(out), "--device", "cpu", "--max-steps", "1", "--batch-size", "2",
                                    "--validation-samples", "1", "--save-interval", "0", "--data-workers", "0", "--quiet"])
        ok = self.trained in (0, 2, 75) or (self.trained == 1 and "not finite" in said.getvalue())
        return "" if ok else f"taken, but training ended with {self.trained}: {said.getvalue()[-300:]}"

    def try_one(self, kind: str, seed: int) -> list[int]:
        """Make an input and give it to who reads it; gives their exit codes. The seed `RIGHT` leaves it as it is."""
        draw = random.Random(f"{kind} {seed}") if seed != RIGHT else Unchanged()
        path, times = self._folder / kind, draw.choice([0, 1, 1, 2, 5])
        start = ["--out-dir", str(self._folder / "out"), "--describe", "--device", "cpu"]
        if kind == "checkpoint":
            path = path.with_suffix(".lmp")
            write(path, changed(self._checkpoint, draw, times))
            if not draw.randrange(4):
                data = bytearray(path.read_bytes())
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                path.write_bytes(data)
            return [trainer(["--inspect", str(path)]), trainer(["--dataset", "builtin:tales", "--model", str(path), *start]),
                    generator(["--model", str(path), "--prompt", "x", "--max-tokens", "1", "--device", "cpu"])]
        if kind == "statistics":
            (self._folder / "statistics").mkdir(exist_ok=True)
            (self._folder / "statistics" / "m_train_stats.json").write_bytes(as_text(changed(self._statistics, draw, times), draw, False))
            return [plotstats(["--out-dir", str(self._folder / "statistics"), "--json"])]
        base = {"plan": draw.choice([LOCAL_PLAN, PLAN]), "flags": FLAGS}.get(kind.split(".")[0], self._tokenizer)
        path = path if path.suffix else path.with_suffix(".json")
        path.write_bytes(as_text(changed(base, draw, times), draw, path.suffix == ".yaml"))
        if kind == "tokenizer":
            return [trainer(["--dataset", "builtin:tales", "--tokenizer", str(path), *start, "--num-blocks", "1", "--embed-dim", "16", "--num-heads", "2"])]
        if kind.startswith("flags"):
            return [trainer(["--use-config", str(path), "--dump-config", str(self._folder / "dumped.json")])]
        return [trainer(["--training-plan", str(path), *start])]


def prepare(folder: Path) -> Hostile:
    """Train a tiny model, for its files."""
    from lmplay.checkpoints.format import load
    from lmplay.tokenizer import train_tokenizer

    out = folder / "whole"
    assert trainer(["--num-blocks", "1", "--embed-dim", "16", "--num-heads", "2", "--context-len", "48", "--tokenizer", "train:300", "--device", "cpu",
                    "--dataset", "builtin:tales", "--max-steps", "3", "--batch-size", "4", "--save-interval", "0", "--out-dir", str(out)]) == 75
    spec = train_tokenizer(iter(["the cat sat on the mat " * 20]), 270).spec
    return Hostile(folder, load(out / "gpt2ish_model.lmp"), json.loads((out / "gpt2ish_model_train_stats.json").read_text()), json.loads(spec["json"]))
