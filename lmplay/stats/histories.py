"""The memory of a run: totals, and histories of bounded size, for the whole run and for each stage.  Stats floor, no torch.

The trainer keeps them in the checkpoint and only ever writes the JSON files, so after any crash the files follow the checkpoint. Everything
that depends on the clock stands apart in the files, under "clock".
"""
from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..files import write_text
from .figures import Progress

FORMAT = 1
# Rows of a history; when they are full, neighbours are merged two by two, and from then on a row holds twice as many steps.
MOST_ROWS = 10_000
# What a row keeps: the newest value, or the sum over its steps.
_LAST = ("step", "samples", "tokens", "seconds", "lr")
_SUMS = ("steps", "loss_sum", "n_tokens", "n_bytes", "nats_sum", "nats_tokens", "words_right", "words", "grad_norm_sum", "grad_norms", "padding",
         "places", "step_seconds", "data_seconds", "skipped_batches", "forced_cuts")
TRAIN_COLUMNS = ("step", "samples", "tokens", "loss", "accuracy", "lr", "grad_norm", "padding_share", "skipped_batches", "forced_cuts")
VALIDATE_COLUMNS = ("step", "samples", "tokens", "loss", "perplexity", "bits_per_byte", "accuracy", "floor")
_SOURCE_SUMS = ("loss_sum", "n_tokens")
_LN2 = math.log(2)
# Places of saves that are kept; when there are more, every second of the older ones is dropped.
MOST_SAVES = 1000
# The share of a stage whose mean loss stands for its end.
_END = 0.1


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
        self.sources: dict[str, dict[str, list[float]]] = {}  # for each source columns beside those of the rows, 0 where it had no part

    def __len__(self) -> int:
        return len(self.rows["step"])

    def add(self, sources: Mapping[str, tuple[float, float]] = MappingProxyType({}), /, **figures: float) -> None:
        """Add the figures of a step; those left out count as 0. Two additions at one step (a validation at the end of a stage) share a row.

        :param sources: loss sum and tokens of each source, where they are told apart.
        :param figures: by the names in `_LAST` and `_SUMS`.
        """
        if len(self) and self.rows["step"][-1] == figures["step"]:
            self._open = (self._open - 1) % self._stride
        elif not self._open:
            if len(self) >= self._most_rows:
                self._merge()
            for columns in (self.rows, *self.sources.values()):
                for values in columns.values():
                    values.append(0)
        for name in _LAST:
            self.rows[name][-1] = figures.get(name, 0)
        for name in _SUMS:
            self.rows[name][-1] += figures.get(name, 0)
        for source, sums in sources.items():
            columns = self.sources.setdefault(source, {name: [0] * len(self) for name in _SOURCE_SUMS})
            for name, value in zip(_SOURCE_SUMS, sums, strict=True):
                columns[name][-1] += value
        self._open = (self._open + 1) % self._stride

    def loss_at_end(self, source: str) -> float | None:
        """Give a source's mean loss over the newest tenth of the rows; None where it had no part in them."""
        newest = slice(-max(1, math.ceil(_END * len(self))), None)
        loss_sum, n_tokens = (sum(self.sources.get(source, {}).get(name, [])[newest]) for name in _SOURCE_SUMS)
        return loss_sum / n_tokens if n_tokens else None

    def state(self) -> dict[str, Any]:
        """Give all of it as plain values."""
        return {"stride": self._stride, "open": self._open, "rows": _copy(self.rows),
                "sources": {source: _copy(columns) for source, columns in self.sources.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state` says."""
        self._stride, self._open = state["stride"], state["open"]
        rows = len(state["rows"]["step"])
        self.rows = {name: list(state["rows"].get(name, [0] * rows)) for name in _LAST + _SUMS}  # older files lack the newest columns
        self.sources = {source: _copy(columns) for source, columns in state.get("sources", {}).items()}

    def _merge(self) -> None:
        """Merge rows two by two."""
        for name, values in self.rows.items():
            self.rows[name] = values[1::2] if name in _LAST else _add_pairs(values)
        for columns in self.sources.values():
            for name, values in columns.items():
                columns[name] = _add_pairs(values)
        self._stride *= 2


class ModelStats:
    """Totals and histories of a run, or of one stage of it."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.sources: dict[str, dict[str, Any]] = {}  # samples, tokens and rows of an epoch (None = unknown) of each, if there are several
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

    def begin_sources(self, rows_per_epoch: Mapping[str, int | None]) -> None:
        """Tell sources apart from here on.

        :param rows_per_epoch: of each source, in the order in which they are to be listed; None = unknown or endless.
        """
        for name, rows in rows_per_epoch.items():
            self.sources.setdefault(name, {"samples": 0, "tokens": 0})["rows_per_epoch"] = rows

    def count_source(self, name: str, samples: int, tokens: int) -> None:
        """Count a source's part of a step: samples that end in it, tokens to be learned."""
        counts = self.sources[name]
        counts["samples"] += samples
        counts["tokens"] += tokens

    def add_train(self, progress: Progress, figures: dict[str, float], sources: Mapping[str, tuple[float, float]] = MappingProxyType({})) -> None:
        """Add the figures of a step that has been counted.

        :param progress: where the run was after it.
        :param figures: what happened in it, as sums (see `_SUMS`); no loss where the batch was passed over.
        :param sources: loss sum and tokens of each source, where they are told apart.
        """
        self.train.add(sources, **progress._asdict(), **figures)
        self.totals["train_loss_total"] += figures.get("loss_sum", 0.0)  # type: ignore[assignment]

    def add_validation(self, progress: Progress, figures: dict[str, float], final: bool = False,
                       sources: Mapping[str, tuple[float, float]] = MappingProxyType({})) -> None:
        """Add a validation.

        :param progress: where the run is.
        :param figures: its sums.
        :param final: it is the longer one at the end of a stage.
        :param sources: loss sum and tokens of each source, where they are told apart.
        """
        self.validate.add(sources, **progress._asdict(), **figures)
        self.totals["total_validations"] += 1
        result = {"samples": progress.samples, "loss": figures["loss_sum"] / figures["n_tokens"]}
        if figures["nats_tokens"] == figures["n_tokens"]:
            result["floor"] = figures["nats_sum"] / figures["nats_tokens"]
        if final:
            self.final = result
        if self.best is None or result["loss"] < self.best["loss"]:
            self.best = result

    def describe_sources(self) -> dict[str, dict[str, Any]]:
        """Say of each source its samples, tokens, epochs (samples / rows of an epoch) and mean losses at the end; None where unknown."""
        return {name: {"samples": counts["samples"], "tokens": counts["tokens"],
                       "epochs": counts["samples"] / counts["rows_per_epoch"] if counts["rows_per_epoch"] else None,
                       "train_loss": self.train.loss_at_end(name), "validate_loss": self.validate.loss_at_end(name)}
                for name, counts in self.sources.items()}

    def state(self) -> dict[str, Any]:
        """Give all of it as plain values."""
        return {**self.totals, "sources": {name: dict(counts) for name, counts in self.sources.items()}, "train": self.train.state(),
                "validate": self.validate.state(), "best": self.best, "final": self.final}

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state` says."""
        state = dict(state)
        self.sources = {name: dict(counts) for name, counts in state.pop("sources", {}).items()}
        self.train.restore(state.pop("train"))
        self.validate.restore(state.pop("validate"))
        self.best, self.final = state.pop("best"), state.pop("final")
        self.totals = Counter(state)


def add_save(saves: list[dict[str, float]], place: dict[str, float]) -> None:
    """Note a save, and keep the list short.

    :param saves: those before, oldest first; at most `MOST_SAVES` afterwards.
    :param place: samples, tokens, seconds.
    """
    if len(saves) >= MOST_SAVES:
        del saves[1::2]
    saves.append(place)


def write_stats(folder: Path, model: str, experiment: str, stage: str | None, stats: ModelStats, stages: list[dict[str, Any]],
                resumes: list[dict[str, float]], by_stage: Mapping[str, ModelStats] = MappingProxyType({}),
                saves: Sequence[dict[str, float]] = (), peak_memory: int | None = None) -> None:
    """Write the two JSON files of a run, or of a stage.

    :param folder: the output folder.
    :param model: name of the run: the model file's, without its suffix.
    :param experiment: name of the experiment.
    :param stage: the stage's name; None for the whole run.
    :param stats: what to write.
    :param stages: one entry a stage: name, done, from/to in samples, tokens and seconds, floors.
    :param resumes: where the run was resumed: samples, tokens, seconds.
    :param by_stage: of a whole run the statistics of its stages: their sources are listed as STAGE/SOURCE.
    :param saves: where it was saved: samples, tokens, seconds.
    :param peak_memory: the most bytes that the run has had in use up to here, None = not known.
    """
    prefix = model if stage is None else f"{model}_step_{stage}"
    clock_keys = ("from_seconds", "to_seconds")
    for kind, history, names in (("train", stats.train, TRAIN_COLUMNS), ("validate", stats.validate, VALIDATE_COLUMNS)):
        columns = derive(history)
        sources: dict[str, dict[str, Any]] = {f"{part}/{name}": said for part, inner in by_stage.items() for name, said in inner.describe_sources().items()}
        for name, said in stats.describe_sources().items():
            sources[name] = {**said, "columns": {"loss": source_losses(history, name)}}
        write_text(folder / f"{prefix}_{kind}_stats.json", json.dumps({
            "format": FORMAT, "kind": kind, "model": model, "experiment": experiment, "stage": stage,
            "totals": dict(stats.totals), "best": stats.best, "final": stats.final,
            "stages": [{key: value for key, value in entry.items() if key not in clock_keys} for entry in stages],
            "columns": {name: columns[name] for name in names}, "sources": sources,
            "clock": {**{name: columns[name] for name in ("seconds", "tokens_per_second", "data_wait_share")}, "resumes": resumes,
                      "saves": list(saves), "peak_memory_bytes": peak_memory, "stages": [{key: entry[key] for key in clock_keys} for entry in stages]},
        }, separators=(",", ":"), allow_nan=False))


def _copy(columns: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Copy columns."""
    return {name: list(values) for name, values in columns.items()}


def _add_pairs(values: Sequence[float]) -> list[float]:
    """Merge rows two by two."""
    return [a + b for a, b in zip(values[::2], values[1::2], strict=True)]


def source_losses(history: History, source: str) -> list[float | None]:
    """Make the column of a source's losses, beside the columns of the history; None in rows where it had no part."""
    if source not in history.sources:
        return [None] * len(history)
    sums = history.sources[source]
    return [loss_sum / tokens if tokens else None for loss_sum, tokens in zip(sums["loss_sum"], sums["n_tokens"], strict=True)]


def derive(history: History) -> dict[str, list[float | None]]:
    """Make the columns that people read from the sums."""
    rows = history.rows

    def ratio(top: str, bottom: str, factor: float = 1.0) -> list[float | None]:
        return [a / b * factor if b else None for a, b in zip(rows[top], rows[bottom], strict=True)]

    loss = ratio("loss_sum", "n_tokens")
    floor = [nats / tokens if tokens == all_tokens and tokens else None
             for nats, tokens, all_tokens in zip(rows["nats_sum"], rows["nats_tokens"], rows["n_tokens"], strict=True)]
    return {**{name: list(rows[name]) for name in (*_LAST, "skipped_batches", "forced_cuts")},
            "loss": loss, "accuracy": ratio("words_right", "words"), "floor": floor,
            "perplexity": [None if value is None else math.exp(min(value, 700.0)) for value in loss],
            "bits_per_byte": ratio("loss_sum", "n_bytes", 1 / _LN2), "grad_norm": ratio("grad_norm_sum", "grad_norms"),
            "padding_share": ratio("padding", "places"), "tokens_per_second": ratio("n_tokens", "step_seconds"),
            "data_wait_share": ratio("data_seconds", "step_seconds")}
