"""The memory of a run: totals, and histories of bounded size, for the whole run and for each stage.  Stats floor, no torch.

The trainer keeps them in the checkpoint and only ever writes the JSON files, so after any crash the files follow the checkpoint. Everything
that depends on the clock stands apart in the files, under "clock".
"""
from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from ..files import write_text

FORMAT = 1
# Rows of a history; when they are full, neighbours are merged two by two, and from then on a row holds twice as many steps.
MOST_ROWS = 10_000
# What a row keeps: the newest value, or the sum over its steps.
_LAST = ("step", "samples", "tokens", "seconds", "lr")
_SUMS = ("steps", "loss_sum", "n_tokens", "n_bytes", "nats_sum", "nats_tokens", "words_right", "words", "grad_norm_sum", "grad_norms", "padding",
         "places", "step_seconds", "data_seconds")
_TRAIN_COLUMNS = ("step", "samples", "tokens", "loss", "accuracy", "lr", "grad_norm", "padding_share")
_VALIDATE_COLUMNS = ("step", "samples", "tokens", "loss", "perplexity", "bits_per_byte", "accuracy", "floor")
_LN2 = math.log(2)


class History:
    """Rows of figures, merged evenly when there are too many: sums stay exact whatever the merging."""

    def __init__(self, most_rows: int = MOST_ROWS):
        """
        :param most_rows: an even number.
        """
        self._most_rows = most_rows
        self._stride = 1
        self._open = 0  # steps in the newest row, 0 = it is full
        self.rows: dict[str, list[float]] = {name: [] for name in _LAST + _SUMS}

    def __len__(self) -> int:
        return len(self.rows["step"])

    def add(self, **figures: float) -> None:
        """Add the figures of a step; those left out count as 0. Two additions at one step (a validation at the end of a stage) share a row."""
        if len(self) and self.rows["step"][-1] == figures["step"]:
            self._open = (self._open - 1) % self._stride
        elif not self._open:
            if len(self) >= self._most_rows:
                self._merge()
            for values in self.rows.values():
                values.append(0)
        for name in _LAST:
            self.rows[name][-1] = figures.get(name, 0)
        for name in _SUMS:
            self.rows[name][-1] += figures.get(name, 0)
        self._open = (self._open + 1) % self._stride

    def state(self) -> dict[str, Any]:
        """Give all of it as plain values."""
        return {"stride": self._stride, "open": self._open, "rows": {name: list(values) for name, values in self.rows.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state` says."""
        self._stride, self._open = state["stride"], state["open"]
        self.rows = {name: list(values) for name, values in state["rows"].items()}

    def _merge(self) -> None:
        """Merge rows two by two."""
        for name, values in self.rows.items():
            self.rows[name] = values[1::2] if name in _LAST else [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
        self._stride *= 2


class ModelStats:
    """Totals and histories of a run, or of one stage of it."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.train = History()
        self.validate = History()
        self.best: dict[str, float] | None = None
        self.final: dict[str, float] | None = None

    def count_step(self, samples: int, tokens: int, counts: Counter[str]) -> None:
        """Count an optimizer step as soon as it has been asked of the device.

        :param samples: that end in its batch.
        :param tokens: to be learned in it.
        :param counts: more totals to keep (pieces, continuations …).
        """
        self.totals.update({"total_train_steps": 1, "total_train_samples": samples, "total_train_tokens": tokens})
        self.totals.update(counts)

    def add_train(self, place: dict[str, float], figures: dict[str, float]) -> None:
        """Add the figures of a step that has been counted.

        :param place: where the run was after it: step, samples, tokens, seconds, lr.
        :param figures: what happened in it, as sums (see `_SUMS`).
        """
        self.train.add(**place, **figures)
        self.totals["train_loss_total"] += figures["loss_sum"]  # type: ignore[assignment]

    def add_validation(self, place: dict[str, float], figures: dict[str, float], final: bool = False) -> None:
        """Add a validation.

        :param place: where the run is.
        :param figures: its sums.
        :param final: it is the longer one at the end of a stage.
        """
        self.validate.add(**place, **figures)
        self.totals["total_validations"] += 1
        result = {"samples": place["samples"], "loss": figures["loss_sum"] / figures["n_tokens"]}
        if figures["nats_tokens"] == figures["n_tokens"]:
            result["floor"] = figures["nats_sum"] / figures["nats_tokens"]
        if final:
            self.final = result
        if self.best is None or result["loss"] < self.best["loss"]:
            self.best = result

    def state(self) -> dict[str, Any]:
        """Give all of it as plain values."""
        return {**self.totals, "train": self.train.state(), "validate": self.validate.state(), "best": self.best, "final": self.final}

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state` says."""
        state = dict(state)
        self.train.restore(state.pop("train"))
        self.validate.restore(state.pop("validate"))
        self.best, self.final = state.pop("best"), state.pop("final")
        self.totals = Counter(state)


def write_stats(folder: Path, model: str, experiment: str, stage: str | None, stats: ModelStats, stages: list[dict[str, Any]],
                resumes: list[dict[str, float]]) -> None:
    """Write the two JSON files of a run, or of a stage.

    :param folder: the output folder.
    :param model: name of the run: the model file's, without its suffix.
    :param experiment: name of the experiment.
    :param stage: the stage's name; None for the whole run.
    :param stats: what to write.
    :param stages: one entry a stage: name, done, from/to in samples, tokens and seconds, floors.
    :param resumes: where the run was resumed: samples, tokens, seconds.
    """
    prefix = model if stage is None else f"{model}_step_{stage}"
    clock_keys = ("from_seconds", "to_seconds")
    for kind, history, names in (("train", stats.train, _TRAIN_COLUMNS), ("validate", stats.validate, _VALIDATE_COLUMNS)):
        columns = _derive(history)
        write_text(folder / f"{prefix}_{kind}_stats.json", json.dumps({
            "format": FORMAT, "kind": kind, "model": model, "experiment": experiment, "stage": stage,
            "totals": dict(stats.totals), "best": stats.best, "final": stats.final,
            "stages": [{key: value for key, value in entry.items() if key not in clock_keys} for entry in stages],
            "columns": {name: columns[name] for name in names},
            "clock": {**{name: columns[name] for name in ("seconds", "tokens_per_second", "data_wait_share")}, "resumes": resumes,
                      "stages": [{key: entry[key] for key in clock_keys} for entry in stages]},
        }, separators=(",", ":"), allow_nan=False))


def _derive(history: History) -> dict[str, list[float | None]]:
    """Make the columns that people read from the sums."""
    rows = history.rows

    def ratio(top: str, bottom: str, factor: float = 1.0) -> list[float | None]:
        return [a / b * factor if b else None for a, b in zip(rows[top], rows[bottom], strict=True)]

    loss = ratio("loss_sum", "n_tokens")
    floor = [nats / tokens if tokens == all_tokens and tokens else None
             for nats, tokens, all_tokens in zip(rows["nats_sum"], rows["nats_tokens"], rows["n_tokens"], strict=True)]
    return {**{name: list(rows[name]) for name in _LAST}, "loss": loss, "accuracy": ratio("words_right", "words"), "floor": floor,
            "perplexity": [None if value is None else math.exp(min(value, 700.0)) for value in loss],
            "bits_per_byte": ratio("loss_sum", "n_bytes", 1 / _LN2), "grad_norm": ratio("grad_norm_sum", "grad_norms"),
            "padding_share": ratio("padding", "places"), "tokens_per_second": ratio("n_tokens", "step_seconds"),
            "data_wait_share": ratio("data_seconds", "step_seconds")}
